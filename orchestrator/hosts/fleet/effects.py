"""Effects on the workers of a slice, over SSH: one step each, on all workers at once. They raise RemoteError."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from orchestrator.hosts.shipping.shipment import paced
from orchestrator.promise.effects.base import Effect, QuickEffect, Report, T, World
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import SavedState

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import Crew, FleetPort, FleetStatus, StartedCrew, StartRequest, WorkerFacts
    from orchestrator.hosts.fleet.saved_work import SavedWork
    from orchestrator.hosts.shipping.shipment import OnProgress, PushResult, Shipment
    from orchestrator.hosts.transfer.collect import CollectionProgress, CollectRequest, CollectResult
    from orchestrator.hosts.transfer.collection import Collection


@dataclass(frozen=True, slots=True)
class CrewEffect(Effect[T]):
    """An effect on the workers of a job."""

    fleet: Crew


@dataclass(frozen=True, slots=True)
class Connect(Effect["Crew"]):
    """Connect to every worker; return them as a crew."""

    lease: Lease
    workers: tuple[WorkerAddress, ...]
    deadline_s: float

    def perform(self, world: World) -> Crew:
        return cast("Crew", world.connect(self.lease, self.workers, self.deadline_s))  # of the lease's place


@dataclass(frozen=True, slots=True)
class SendHeartbeats(QuickEffect[None]):
    """Send heartbeats to the watchdog on worker 0, or on all, until the fleet is closed or this process dies."""

    fleet: FleetPort
    every_s: float
    everywhere: bool = False

    def perform(self, world: World) -> None:
        self.fleet.send_heartbeats(self.every_s, everywhere=self.everywhere)


@dataclass(frozen=True, slots=True)
class FindCoordinator(Effect["WorkerFacts"]):
    """Return worker 0's address for the other workers, and a port that is free there now."""

    fleet: StartedCrew

    def perform(self, world: World) -> WorkerFacts:
        return self.fleet.facts(0)


@dataclass(frozen=True, slots=True)
class HoldAttempt(Effect["str | None"]):
    """Lock the attempt on worker 0 for this process, of this name, until the fleet is closed; return who else has the lock."""

    fleet: FleetPort
    attempt: str
    name: str

    def perform(self, world: World) -> str | None:
        return self.fleet.hold(self.attempt, self.name)


@dataclass(frozen=True, slots=True)
class Push(Effect["list[PushResult]"]):
    """Send each worker what it lacks of the shipment; return what travelled to each."""

    fleet: FleetPort
    shipment: Shipment

    def perform(self, world: World) -> list[PushResult]:
        return self.fleet.push(self.shipment, _progress(world, "ship"))


@dataclass(frozen=True, slots=True)
class StartPhase(Effect[None]):
    """Start a phase on every worker, detached there, and follow its log and metrics. A second start has no effect."""

    fleet: StartedCrew
    request: StartRequest
    sink: Callable[[int, bytes], None]
    metrics: Callable[[int, bytes], None] | None = None

    def perform(self, world: World) -> None:
        self.fleet.start(self.request)
        self.fleet.follow(self.sink, self.metrics)


@dataclass(frozen=True, slots=True)
class FollowPhase(CrewEffect[None]):
    """Follow the log and metrics of a phase that another process started, from their first bytes."""

    attempt: str
    phase: str
    sink: Callable[[int, bytes], None]
    metrics: Callable[[int, bytes], None] | None = None

    def perform(self, world: World) -> None:
        self.fleet.attach(self.attempt, self.phase)
        self.fleet.follow(self.sink, self.metrics)


@dataclass(frozen=True, slots=True)
class WaitForWorkers(CrewEffect["FleetStatus"]):
    """Wait until the status of a worker changes, `timeout_s` at most; return the status of all."""

    timeout_s: float

    def perform(self, world: World) -> FleetStatus:
        return self.fleet.wait(self.timeout_s)


@dataclass(frozen=True, slots=True)
class StopPhase(CrewEffect[None]):
    """Stop the phase on every worker: SIGTERM, and SIGKILL after `grace_s`."""

    grace_s: float

    def perform(self, world: World) -> None:
        self.fleet.stop(self.grace_s)


@dataclass(frozen=True, slots=True)
class ForwardPorts(QuickEffect["tuple[str, ...]"]):
    """Let ports of this machine lead to these ports of worker 0, and no others; return a line for each."""

    fleet: FleetPort
    ports: tuple[int, ...]

    def perform(self, world: World) -> tuple[str, ...]:
        self.fleet.end_forwards()
        return tuple(map(self._forward, self.ports))

    def _forward(self, port: int) -> str:
        try:
            return str(self.fleet.forward(port))
        except OSError as error:
            return f"no port of this machine leads to worker0:{port}: {error.strerror}"


@dataclass(frozen=True, slots=True)
class StartCollection(QuickEffect["Collection"]):
    """Start to collect the results, in the background."""

    fleet: Crew
    order: CollectRequest

    def perform(self, world: World) -> Collection:
        return self.fleet.collect(self.order)


@dataclass(frozen=True, slots=True)
class WaitForCollection(Effect["CollectionProgress"]):
    """Wait until the results are collected, `timeout_s` at most; return how far they are."""

    collection: Collection
    timeout_s: float

    def perform(self, world: World) -> CollectionProgress:
        return self.collection.wait(self.timeout_s)


@dataclass(frozen=True, slots=True)
class StopCollection(Effect["CollectResult"]):
    """Stop the collection; return what was collected."""

    collection: Collection
    why: str

    def perform(self, world: World) -> CollectResult:
        return self.collection.stop(self.why)


@dataclass(frozen=True, slots=True)
class StartSave(CrewEffect["Collection"]):
    """Start to copy the job's work so far to this machine, in the background, for another attempt on other workers."""

    saved_work: SavedWork

    def perform(self, world: World) -> Collection:
        return self.saved_work.start(self.fleet)


@dataclass(frozen=True, slots=True)
class KeepSave(Effect["tuple[int, ...]"]):
    """Let complete copies take the place of the last ones; return the workers of which that is so."""

    saved_work: SavedWork
    copied: CollectResult

    def perform(self, world: World) -> tuple[int, ...]:
        return self.saved_work.keep(self.copied)


@dataclass(frozen=True, slots=True)
class DescribeSaved(QuickEffect["SavedState"]):
    """Return what is saved: files, size, and the step of its checkpoint."""

    saved_work: SavedWork

    def perform(self, world: World) -> SavedState:
        return self.saved_work.state()


@dataclass(frozen=True, slots=True)
class RestoreWork(Effect["tuple[str | None, ...]"]):
    """Send its saved work to each worker; return the id of each shipment, None for a worker without saved work."""

    fleet: FleetPort
    saved_work: SavedWork

    def perform(self, world: World) -> tuple[str | None, ...]:
        shipments = self.saved_work.shipments(len(self.fleet.workers), _progress(world, "restore"))
        self.fleet.push_each(shipments, _progress(world, "restore"))
        return tuple(shipment.id if shipment else None for shipment in shipments)


def _progress(world: World, stage: str) -> OnProgress:
    return paced(lambda text: world.report(Report(stage, text, passing=True)))


@dataclass(frozen=True, slots=True)
class Disconnect(QuickEffect[None]):
    """Close every connection, at once, whatever is in flight on them."""

    fleet: Crew

    def perform(self, world: World) -> None:
        self.fleet.cancel()
