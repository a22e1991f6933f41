"""The workers of a job as a process reaches them; SSH to those of a node, as `hosts.fleet.fleet.Fleet` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import Unreachable
from orchestrator.hosts.fleet.effects import (
    Connect,
    KeepSave,
    Push,
    RestoreWork,
    StartSave,
    StopCollection,
    StopPhase,
    WaitForCollection,
    WaitForWorkers,
)
from orchestrator.hosts.fleet.follow import WorkerState, WorkerStatus
from orchestrator.promise.lease.run_and_attempt import SavedState
from tests.simulation.model.hosts import TERMINATED, Job, NodeVms, Worker
from tests.simulation.oracle import periods

if TYPE_CHECKING:
    from tests.simulation.model.process import Process


LOCAL_S = 0.02  # one step over SSH
STOP_TIMEOUT_S = 40.0
SAVE_S = 2.0


class SimCrew:
    """The workers of a job as one process reaches them, with the methods of a fleet that effects call."""

    def __init__(self, process: Process) -> None:
        self.process, self.world, self.machine = process, process.world, process.machine
        self.disconnected = False
        self.reached_at = self.world.timeline.now
        process.fleets.append(self)

    @classmethod
    def begin(cls, process: Process, effect: Any, token: int) -> None:
        """Start the effect, and answer the process at the right time."""
        kind, timeline = type(effect), process.timeline
        if kind is Connect:
            timeline.after(LOCAL_S, cls._try_connect, process, effect, token, timeline.now + effect.deadline_s)
        elif kind is WaitForCollection:
            effect.collection.advance(process, token, timeline.now + effect.timeout_s)
        elif kind is StopCollection:
            process.answer_later(LOCAL_S, token, effect.collection.stop(effect.why), None)
        elif kind is KeepSave:
            timeline.after(LOCAL_S, process._perform_and_answer, token, effect)
        else:
            effect.fleet._begin(token, effect)

    @classmethod
    def _try_connect(cls, process: Process, effect: Connect, token: int, deadline: float) -> None:
        raise NotImplementedError

    def _begin(self, token: int, effect: Any) -> None:
        raise NotImplementedError

    def _do(self, token: int, effect: Any) -> None:
        try:
            self.process.answered(token, effect.perform(self.process), None)
        except Exception as error:
            self.process.answered(token, None, error)

    def cut(self) -> bool:
        raise NotImplementedError

    def attach(self, attempt: str, phase: str) -> None:
        pass

    def follow(self, sink: object, metrics: object = None) -> None:
        pass

    def collect(self, order: object) -> SimCollection:
        return SimCollection(self)

    def cancel(self) -> None:
        self.disconnected = True


class SimFleet(SimCrew):
    """SSH to all workers of a node."""

    def __init__(self, process: Process, vm: NodeVms) -> None:
        super().__init__(process)
        self.vm = vm
        self.phase = ""
        self.last_state: tuple[int, int] = (0, 0)
        self.restored_s = 0.0  # time of the job that an earlier attempt did and saved
        self._sending = False
        self._sent = 0
        self.world.fleets.append(self)
        self.world.oracle.connection_made(self)

    # -- durations -----------------------------------------------------------------------------------------------------

    def _begin(self, token: int, effect: Any) -> None:
        kind, timeline = type(effect), self.world.timeline
        if kind is WaitForWorkers:
            self._watch(token, effect, timeline.now + effect.timeout_s)
        elif kind in (StopPhase, Push, RestoreWork) or (self.cut() and kind is not StartSave):
            last_s = 0.5 if kind is StopPhase else 0.2
            self._when_reachable(token, effect, timeline.now + STOP_TIMEOUT_S, last_s)
        else:
            timeline.after(LOCAL_S, self._do, token, effect)

    @classmethod
    def _try_connect(cls, process: Process, effect: Connect, token: int, deadline: float) -> None:
        """Connect as soon as sshd of a fresh VM is up."""
        world, now = process.world, process.timeline.now
        vm = next((vm for vm in world.cloud.vms.values() if vm.node.node_id == effect.lease.name.node and vm.on), None)
        reachable = vm is not None and all(w.up for w in vm.workers) and not world.faults.is_cut("laptop-vm")
        sshd_at = (vm.ready_at or now) + world.boot_s if vm is not None and reachable else now + 1.0
        if vm is not None and reachable and now >= sshd_at:
            process.answer_later(LOCAL_S, token, cls(process, vm), None)
        elif now >= deadline:
            process.answer_later(0.0, token, None, Unreachable(f"{effect.lease.name.node} could not be reached"))
        else:
            timeline = process.timeline
            timeline.at(min(sshd_at, deadline + 0.001), cls._try_connect, process, effect, token, deadline)

    def cut(self) -> bool:
        return not all(w.up for w in self.vm.workers) or self.world.faults.is_cut("laptop-vm")

    def _when_reachable(self, token: int, effect: Any, deadline: float, last_s: float) -> None:
        if not self.cut():
            self.world.timeline.after(last_s, self._do, token, effect)
        elif self.world.timeline.now >= deadline:
            self.process.answer_later(0.0, token, None, Unreachable("a worker could not be reached"))
        else:
            pause_s = min(1.0, deadline - self.world.timeline.now + 0.001)
            self.world.timeline.after(pause_s, self._when_reachable, token, effect, deadline, last_s)

    def _watch(self, token: int, effect: WaitForWorkers, deadline: float) -> None:
        now = self.world.timeline.now
        if self.cut():
            self.world.timeline.at(deadline, self._do, token, effect)
            return
        self.reached_at = now
        news = [
            job.ends_at for w in self.vm.workers if (job := w.jobs.get(self.phase)) is not None and job.ends_at > now
        ]
        if self._state() != self.last_state or not news:
            self.world.timeline.after(LOCAL_S, self._do, token, effect)
        else:
            self.world.timeline.at(min(deadline, min(news) + LOCAL_S), self._do, token, effect)

    # -- methods of Fleet ----------------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[Worker]:
        return self.vm.workers

    def send_heartbeats(self, every_s: float, *, everywhere: bool = False) -> None:
        if not self._sending:
            self._sending = True
            self._send(every_s, self.vm.workers if everywhere else self.vm.workers[:1])

    def _send(self, every_s: float, workers: list[Worker]) -> None:
        if self.disconnected or not self.process.alive:
            return
        if not self.process.frozen and not self.world.faults.is_cut("laptop-vm"):
            self._sent += 1
            for worker in workers:
                if worker.up:
                    worker.last_heartbeat = f"{self.process.name} {self._sent}"
            if workers[0].up:
                self.world.oracle.heartbeat(self.vm)
        self.world.timeline.after(self.machine.clock.true_s(every_s), self._send, every_s, workers)

    def hold(self, attempt: str, name: str) -> str | None:
        return None

    def facts(self, worker: int) -> SimFacts:
        return SimFacts()

    def push(self, shipment: object, progress: object) -> list[Any]:
        return []

    def attach(self, attempt: str, phase: str) -> None:
        self.phase, self.last_state = phase, (0, 0)

    def start(self, request: SimStartRequest) -> None:
        self.attach(request.attempt, request.phase)
        now = self.world.timeline.now
        lasts_s = request.lasts_s
        if request.phase == "main":
            lasts_s = max(lasts_s - self.restored_s, 0.1)
            self.world.oracle.job_started(self.vm, now + lasts_s)
        for worker in self.vm.workers:
            if (there := worker.jobs.get(request.phase)) is None or there.attempt != request.attempt:
                worker.jobs[request.phase] = Job(now, now + lasts_s, request.rc, attempt=request.attempt)

    def _state(self) -> tuple[int, int]:
        now = self.world.timeline.now
        jobs = [worker.jobs[self.phase] for worker in self.vm.workers if self.phase in worker.jobs]
        return (sum(now >= job.ends_at for job in jobs), sum(now >= job.ends_at and job.rc != 0 for job in jobs))

    def wait(self, timeout_s: float) -> SimStatus:
        now = self.world.timeline.now
        if not self.cut():
            self.reached_at, self.last_state = now, self._state()
        ended, failed = self.last_state
        jobs = [worker.jobs[self.phase] for worker in self.vm.workers if self.phase in worker.jobs]
        rc = next((job.rc for job in sorted(jobs, key=lambda job: job.ends_at) if job.rc), 1)
        return SimStatus(
            failed > 0,
            ended == len(self.vm.workers),
            WorkerStatus(0, WorkerState.EXITED, now, 0, rc),
            now - self.reached_at,
            all_exited=ended == len(self.vm.workers),
            any_stopped=failed > 0 and rc == TERMINATED,
        )

    def stop(self, grace_s: float) -> None:
        now = self.world.timeline.now
        for worker in self.vm.workers:
            job = worker.jobs.get(self.phase)
            if job is not None and job.ends_at > now:
                job.ends_at, job.rc = now, TERMINATED

    def done_s(self) -> float:
        """Return the progress of the job in seconds, including earlier attempts."""
        job, now = self.vm.workers[0].jobs.get("main"), self.world.timeline.now
        return self.restored_s + (min(now, job.ends_at) - job.started_at if job is not None else 0.0)

    def push_each(self, shipments: Sequence[SimSaved | None], progress: object) -> None:
        self.restored_s = max((saved.done_s for saved in shipments if saved is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class SimStartRequest:
    """Replaces a StartRequest: how long the simulated job runs, and its exit code."""

    attempt: str
    phase: str
    lasts_s: float
    rc: int
    saved_by_worker: tuple[str | None, ...] = ()
    env_by_worker: tuple[dict[str, str], ...] = ()
    delete: str | None = None


@dataclass(frozen=True, slots=True)
class SimSaved:
    """Saved work: the progress of a job."""

    done_s: float
    id: str = "saved"


@dataclass(slots=True)
class SimSavedWork:
    """Replaces `hosts.fleet.saved_work.SavedWork`: the saved work is the progress of the job."""

    saved: SimSaved | None = None
    left: tuple[object, ...] = ()
    directory: Path = Path("saved")
    is_in_bucket: bool = False

    def start(self, fleet: SimFleet) -> SimSave:
        return SimSave(fleet)

    def keep(self, copied: SimCollectResult) -> tuple[int, ...]:
        if copied.waiting:
            return ()
        self.saved = SimSaved(float(copied.done_s))
        return (0,)

    def at_hand(self) -> dict[int, object]:
        return {}

    def state(self) -> SavedState:
        return SavedState() if self.saved is None else SavedState(1, 1, step=round(self.saved.done_s))

    def shipments(self, workers: int, progress: object) -> tuple[SimSaved | None, ...]:
        return (self.saved,) * workers


@dataclass(frozen=True, slots=True)
class SimFacts:
    address: str = "127.0.0.1"
    free_port: int = 1


@dataclass(frozen=True, slots=True)
class SimCollectResult:
    waiting: tuple[str, ...] = ()
    files: tuple[object, ...] = ()
    done_s: float = 0.0  # of a copy of the job's work: its progress

    @property
    def problems(self) -> tuple[str, ...]:
        return self.waiting

    uncollected = problems


@dataclass(frozen=True, slots=True)
class SimProgress:
    result: SimCollectResult | None = None
    total_files: int = 0
    hashed_bytes: int = 0
    activity: int = 0


class SimCollection:
    """A collection that takes some seconds of an open connection. Without room on the disk the results stay on the slice."""

    def __init__(self, fleet: Any) -> None:
        self.fleet, self.world = fleet, fleet.world
        self.left_s = self.world.collect_s
        self.seen_at = self.moved_at = self.world.timeline.now

    def stop(self, why: str) -> SimCollectResult:
        self.world.oracle.results_left_behind(self.fleet.vm)
        return SimCollectResult((f"(the rest): {why}",))

    def _ended(self, process: Process, token: int, *waiting: str) -> None:
        if waiting:
            self.world.oracle.results_left_behind(self.fleet.vm)
        process.answered(token, SimProgress(SimCollectResult(waiting)), None)

    def advance(self, process: Process, token: int, deadline: float) -> None:
        now = self.world.timeline.now
        if not self.fleet.cut():
            self.left_s -= now - self.seen_at
            self.moved_at = now
        self.seen_at = now
        if self.left_s <= 0:
            full = now < self.world.no_room_until
            self._ended(process, token, *(("no room",) if full else ()))
        elif now - self.moved_at > periods.STALL_S:
            self._ended(process, token, "(everything)")
        elif now >= deadline:
            process.answered(token, SimProgress(activity=int(1e6 * (self.world.collect_s - self.left_s))), None)
        else:
            next_s = min(1.0, deadline - now, self.left_s)
            self.world.timeline.after(max(next_s, 0.001), self.advance, process, token, deadline)


class SimSave(SimCollection):
    """A copy of the job's work, as it is when the copy begins."""

    def __init__(self, fleet: SimFleet) -> None:
        super().__init__(fleet)
        self.left_s = min(self.left_s, SAVE_S) if self.world.save_s is None else self.world.save_s
        self.done_s = fleet.done_s()

    def stop(self, why: str) -> SimCollectResult:
        return SimCollectResult((f"(the rest): {why}",))

    def _ended(self, process: Process, token: int, *waiting: str) -> None:
        process.answered(token, SimProgress(SimCollectResult(waiting, done_s=self.done_s)), None)


@dataclass(frozen=True, slots=True)
class SimStatus:
    failed: bool
    all_succeeded: bool
    first_failed: WorkerStatus
    silence_s: float
    log_bytes: int = 0
    all_exited: bool = False
    any_stopped: bool = False
    workers: tuple[()] = ()
    ends: tuple[()] = ()
    ran_s: float | None = None

    @property
    def ended(self) -> bool:
        return self.all_exited

    def silent_s(self, now: float) -> float:
        return self.silence_s if self.silence_s > 1.0 else 0.0
