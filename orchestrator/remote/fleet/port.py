"""What the engine needs of the workers of a job: `Fleet` has it over SSH, `remote.pods.fleet.PodFleet` by their logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.remote.fleet.forward import Forwarded
from orchestrator.remote.fleet.steps import FleetStatus, StartRequest, WorkerFacts
from orchestrator.remote.shipping.sending import PushResult
from orchestrator.remote.shipping.shipment import OnProgress, Shipment
from orchestrator.remote.transfer.collect import CollectRequest
from orchestrator.remote.transfer.collection import Collection

Sink = Callable[[int, bytes], None]  # the worker, and the next piece of its output


class FleetPort(Protocol):
    """The workers of one job. `Fleet` describes each call; `PodFleet` refuses those that send something."""

    @property
    def workers(self) -> tuple[WorkerAddress, ...]: ...

    def connect(self, deadline_s: float, on_wait: Callable[[str], None] = ...) -> None: ...

    def send_heartbeats(self, every_s: float, *, everywhere: bool = False) -> None: ...

    def facts(self, worker: int = 0) -> WorkerFacts: ...

    def push(self, shipment: Shipment, on_progress: OnProgress | None = None) -> list[PushResult]: ...

    def push_each(
        self, shipments: Sequence[Shipment | None], on_progress: OnProgress | None = None
    ) -> list[PushResult]: ...

    def start(self, request: StartRequest) -> None: ...

    def attach(self, attempt: str, phase: str) -> None: ...

    def follow(self, sink: Sink, metrics: Sink | None = None) -> None: ...

    def wait(self, timeout_s: float) -> FleetStatus: ...

    def stop(self, grace_s: float) -> None: ...

    def collect(self, order: CollectRequest) -> Collection: ...

    def forward(self, port: int, worker: int = 0, local: int | None = None) -> Forwarded: ...

    def end_forwards(self) -> None: ...

    def cancel(self) -> None: ...

    def canceled(self, timeout_s: float) -> bool: ...
