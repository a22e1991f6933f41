"""What the engine needs of the workers of a job: a `Crew` at every place, and more of those that can be sent something.

`remote.fleet.fleet.Fleet` reaches them over SSH, `places.gke.pods.fleet.PodFleet` reads their logs, and
`places.local.crew.LocalCrew` is this machine.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.remote.fleet.forward import Forwarded
from orchestrator.remote.fleet.steps import FleetStatus, Sink, StartRequest, WorkerFacts
from orchestrator.remote.shipping.sending import PushResult
from orchestrator.remote.shipping.shipment import OnProgress, Shipment
from orchestrator.remote.transfer.collect import CollectRequest
from orchestrator.remote.transfer.collection import Collection


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
