"""What a program needs of the workers of a job: a `Crew` at every place, its steps, and more of a crew that can be sent files.

`hosts.fleet.fleet.Fleet` reaches them over SSH, `places.gke.pods.fleet.PodFleet` reads their logs, and
`hosts.fleet.local.LocalCrew` is this machine.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from orchestrator.hosts.fleet.follow import OWN_ENDS, WorkerFollower, WorkerState, WorkerStatus
from orchestrator.hosts.fleet.on_workers import Forwarded
from orchestrator.hosts.shipping.shipment import OnProgress, PushResult, Shipment
from orchestrator.hosts.ssh.fan_out import Wakeup
from orchestrator.hosts.transfer.collect import CollectRequest
from orchestrator.hosts.transfer.collection import Collection
from orchestrator.promise.lease.cloud_api import WorkerAddress

Sink = Callable[[int, bytes], None]  # the worker, and the next piece of its output


def locked(lock: threading.Lock, receive: Sink) -> Sink:
    """Return a sink for several threads: each holds `lock` while `receive` gets its piece."""

    def deliver(index: int, piece: bytes) -> None:
        with lock:
            receive(index, piece)

    return deliver


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A phase to run, detached, on every worker. `env_by_worker` may hold secrets and never appears in an argument list."""

    attempt: str
    phase: str  # "setup" or "main"
    script: str  # bash, run in runs/<attempt>/work
    env_by_worker: Sequence[Mapping[str, str]]
    manifest: str | None = None  # the id of the shipment to unpack first
    saved_by_worker: Sequence[str | None] = ()  # the id of the work saved from an earlier attempt, by worker
    delete: str | None = None  # an earlier attempt whose results are collected: its files make room first
    max_log: int | None = None  # bytes of the log that are kept
    record: Mapping[str, Any] | None = None  # of run and attempt, for machines without the ledger: worker 0 keeps it


@dataclass(frozen=True, slots=True)
class FoundAttempt:
    """An attempt of which worker 0 has a record, and the state of its phase `main` there, as `vm.files.phases` has it."""

    attempt: str
    record: Mapping[str, Any]
    state: str


def found_attempts(said: Any) -> list[FoundAttempt]:
    """Return the attempts that worker 0 names; nothing it says is trusted."""
    rows = [each for each in said if isinstance(each, dict)] if isinstance(said, list) else []
    return [
        FoundAttempt(each["attempt"], each["record"], str(status.get("state")))
        for each in rows
        if isinstance(each.get("attempt"), str)
        and isinstance(each.get("record"), dict)
        and isinstance(status := each.get("status"), dict)
    ]


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    index: int
    address: str  # by which other workers reach it
    free_port: int


@dataclass(frozen=True, slots=True)
class FleetStatus:
    workers: tuple[WorkerStatus, ...]

    @property
    def failed(self) -> bool:
        return any(worker.failed for worker in self.workers)

    @property
    def all_succeeded(self) -> bool:
        return all(worker.final and worker.rc == 0 for worker in self.workers)

    @property
    def ended(self) -> bool:
        return all(worker.final for worker in self.workers)

    @property
    def ran_s(self) -> float | None:
        """Return for how long the phase ran, by the worker that took longest; None where one does not say it."""
        found = [worker.ran_s for worker in self.workers if worker.ran_s is not None]
        return max(found) if len(found) == len(self.workers) > 0 else None

    @property
    def ends(self) -> tuple[WorkerStatus, ...]:
        """Return the workers on which the phase has ended, as that was seen, then by index; stopped ones last."""
        ended = (worker for worker in self.workers if worker.final)
        return tuple(sorted(ended, key=lambda worker: (worker.stopped, worker.since, worker.index)))

    @property
    def all_exited(self) -> bool:
        """Return whether nothing of the phase is left on any worker, by the workers themselves."""
        return all(worker.state is WorkerState.EXITED for worker in self.workers)

    @property
    def any_stopped(self) -> bool:
        """Return whether the phase ended on a worker because it was asked to, as the worker itself says."""
        return any(worker.stopped and worker.state is WorkerState.EXITED for worker in self.workers)

    @property
    def first_failed(self) -> WorkerStatus:
        """Return the worker that failed first among the `ends`, of those that the job itself ended if there are any."""
        failed = [each for each in self.ends if each.failed]
        # The cluster stops the pods beside it.
        return next((each for each in failed if each.why in OWN_ENDS), failed[0])

    @property
    def log_bytes(self) -> int:
        return sum(worker.log_bytes for worker in self.workers)

    def silent_s(self, now: float) -> float:
        """Return for how many seconds the longest unreachable worker has been unreachable; 0.0 if all are reachable."""
        return max((now - w.since for w in self.workers if w.state is WorkerState.UNREACHABLE), default=0.0)


F = TypeVar("F", bound=WorkerFollower)


@dataclass(slots=True)
class Following(Generic[F]):
    """Those who follow the workers of a phase, and how much of their news was seen."""

    followers: list[F] = field(default_factory=list)
    changes_seen: int = -1

    def wait(self, wakeup: Wakeup, timeout_s: float) -> FleetStatus:
        """Wait until a worker's state changes, `timeout_s` at most; return all states. Raises the error of a follower."""
        assert self.followers, "follow comes before wait"

        def changes() -> int:
            return sum(each.changes + (each.error is not None) for each in self.followers)

        with wakeup.changed:
            wakeup.wait_for(
                lambda: changes() != self.changes_seen or all(each.done for each in self.followers), timeout_s
            )
            self.changes_seen = changes()
            for each in self.followers:
                if each.error is not None:
                    raise each.error
            return FleetStatus(tuple(each.status for each in self.followers))


class Crew(Protocol):
    """The workers of one job, at any place. Calls raise only errors of `orchestrator.errors`; `cancel` ends them at once."""

    @property
    def workers(self) -> tuple[WorkerAddress, ...]:
        """The workers in their order."""

    def connect(self, deadline_s: float, on_wait: Callable[[str], None] = ...) -> None:
        """Wait until every worker can be followed, `deadline_s` at most. Raises Unreachable."""

    def attach(self, attempt: str, phase: str) -> None:
        """Select the phase that later calls act on."""

    def follow(self, sink: Sink, metrics: Sink | None = None) -> None:
        """Pass on the log of every worker from its first byte, and the metrics of worker 0; a piece at a time."""

    def wait(self, timeout_s: float) -> FleetStatus:
        """Wait until the state of a worker changes, `timeout_s` at most; return all states."""

    def stop(self, grace_s: float) -> None:
        """End the phase on every worker: SIGTERM, and after `grace_s` SIGKILL."""

    def collect(self, order: CollectRequest) -> Collection:
        """Start collecting every worker's results into `order.destination/worker<i>/`; return the running collection."""

    def cancel(self) -> None:
        """End every running call, in any thread; every later call, too. What runs on the workers goes on."""

    def canceled(self, timeout_s: float) -> bool:
        """Wait until `cancel`, `timeout_s` at most; return whether it was called."""


class FoundCrew(Crew, Protocol):
    """Workers that another machine made, with what they keep of their job for this one."""

    def attempts(self, run: str) -> list[FoundAttempt]:
        """Return the attempts of a run of which there is a record."""

    def log_sizes(self, attempt: str) -> dict[int, int]:
        """Return how many bytes the log of an attempt has by now, by worker; where none says that, a number beyond any log."""


class StartedCrew(Crew, Protocol):
    """Workers that wait for this machine to start a phase."""

    def facts(self, worker: int = 0) -> WorkerFacts:
        """Return the address of a worker for the others, and a port that is free there now."""

    def start(self, request: StartRequest) -> None:
        """Start a phase on every worker. Starting again has no effect."""


class FleetPort(StartedCrew, Protocol):
    """Workers behind connections: they can be sent files, their ports are forwarded, their watchdogs hear heartbeats."""

    def send_heartbeats(self, every_s: float, *, everywhere: bool = False) -> None:
        """Send heartbeats to the watchdog on worker 0 (or on all), in the background, until `cancel`."""

    def hold(self, attempt: str, name: str) -> str | None:
        """Lock the attempt on worker 0 for a process of this name, until `cancel`; return who has the lock; None: it has."""

    def push(self, shipment: Shipment, on_progress: OnProgress | None = None) -> list[PushResult]:
        """Send each worker what it lacks of the shipment; return what travelled to each."""

    def push_each(
        self, shipments: Sequence[Shipment | None], on_progress: OnProgress | None = None
    ) -> list[PushResult]:
        """Send each worker what it lacks of its shipment, in their order. None: nothing for that worker."""

    def forward(self, port: int, worker: int = 0, local: int | None = None) -> Forwarded:
        """Let a port of 127.0.0.1 lead to a port of the worker's loopback, until `end_forwards`; return which one."""

    def end_forwards(self) -> None:
        """Close every port that `forward` opened."""
