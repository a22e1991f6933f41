"""Effects on the cloud: one call each, made once. `promise.effects.retry` repeats it, the programs decide."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.errors import CloudError
from orchestrator.promise.effects.base import Effect, QuickEffect, T, World
from orchestrator.promise.lease.access import LOGIN_USER
from orchestrator.promise.lease.cloud_api import Listing, Operation, SliceRequest, SliceView, WorkerAddress
from orchestrator.promise.lease.lease import Lease, SliceName


@dataclass(frozen=True, slots=True)
class SliceEffect(Effect[T]):
    """An effect on one slice."""

    name: SliceName


@dataclass(frozen=True, slots=True)
class Create(Effect[Operation]):
    """Create a slice. Raises CloudError; after CloudUnavailable or UnexpectedReply it may have taken effect.

    `at`: the ledger's time that is recorded for it. A call that has not left soon after it does not leave at all: its process
    stood still, and another one may have taken the silence for an end.
    """

    request: SliceRequest
    at: float

    def perform(self, world: World) -> Operation:
        leave_by = self.at + world.cloud.capabilities.leaves_within_s
        with world.own_creates.under_way(self.request.name, world.now):
            return world.cloud.create(self.request, lambda: world.now() <= leave_by)


@dataclass(frozen=True, slots=True)
class OwnCreate(QuickEffect["float | None"]):
    """Return the ledger's time at which the last create call of this process for a slice ended; `inf` while one is under way.

    None: this process made none. An interrupt abandons a call and does not end it.
    """

    name: SliceName

    def perform(self, world: World) -> float | None:
        return world.own_creates.ended_at(self.name)


@dataclass(frozen=True, slots=True)
class LapsesAfter(QuickEffect[float]):
    """Return how many seconds a standstill takes, at least, that ends the claim of an attached run: a heartbeat was due."""

    def perform(self, world: World) -> float:
        timings = world.cloud.capabilities.timings
        return timings.ttl_s - timings.heartbeat_s


class Get(SliceEffect["SliceView | None"]):
    """Return a slice; None only for a 404."""

    def perform(self, world: World) -> SliceView | None:
        return world.cloud.get(self.name)


@dataclass(frozen=True, slots=True)
class ListSlices(Effect[Listing[SliceView]]):
    """Return every slice of a zone."""

    project: str
    zone: str
    queued: bool = False  # also the queued requests without a node

    def perform(self, world: World) -> Listing[SliceView]:
        return world.cloud.list(self.project, self.zone, self.queued)


class Delete(SliceEffect["Operation | None"]):
    """Delete a slice. None: it does not exist now, which proves nothing while a create has not settled."""

    def perform(self, world: World) -> Operation | None:
        return world.cloud.delete(self.name)


@dataclass(frozen=True, slots=True)
class DeleteAll(Effect[tuple["Operation | CloudError | None", ...]]):
    """Delete several slices at once: no delete waits for the reply to another. An error takes the place of its result."""

    names: tuple[SliceName, ...]

    def perform(self, world: World) -> tuple[Operation | CloudError | None, ...]:
        answers: list[Operation | CloudError | None] = [None] * len(self.names)
        bugs: list[Exception] = []

        def delete(index: int) -> None:
            try:
                answers[index] = world.cloud.delete(self.names[index])
            except CloudError as error:
                answers[index] = error
            except Exception as error:
                bugs.append(error)

        threads = [threading.Thread(target=delete, args=(index,), daemon=True) for index in range(len(self.names))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if bugs:
            raise bugs[0]
        return tuple(answers)


class StartSlice(SliceEffect[Operation]):
    """Start a stopped slice."""

    def perform(self, world: World) -> Operation:
        return world.cloud.start(self.name)


class StopSlice(SliceEffect[Operation]):
    """Stop a READY slice."""

    def perform(self, world: World) -> Operation:
        return world.cloud.stop(self.name)


@dataclass(frozen=True, slots=True)
class GetOperation(Effect["Operation | None"]):
    """Return an operation; None if the API no longer knows it."""

    operation: str

    def perform(self, world: World) -> Operation | None:
        return world.cloud.operation(self.operation)


@dataclass(frozen=True, slots=True)
class ListOperations(Effect[Listing[Operation]]):
    """Return every operation of a zone that the API knows."""

    project: str
    zone: str

    def perform(self, world: World) -> Listing[Operation]:
        return world.cloud.operations(self.project, self.zone)


class Workers(SliceEffect[tuple[WorkerAddress, ...]]):
    """Return addresses and host keys of a READY slice, in worker order."""

    def perform(self, world: World) -> tuple[WorkerAddress, ...]:
        return world.cloud.workers(self.name)


@dataclass(frozen=True, slots=True)
class SetLabels(SliceEffect[Operation]):
    """Replace all labels of a READY slice."""

    labels: Mapping[str, str] = field(hash=False)

    def perform(self, world: World) -> Operation:
        return world.cloud.set_labels(self.name, self.labels)


class GetGuestAttributes(SliceEffect[tuple[Mapping[str, str], ...]]):
    """Return the guest attributes of every worker: what the programs on the VMs publish."""

    def perform(self, world: World) -> tuple[Mapping[str, str], ...]:
        return world.cloud.guest_attributes(self.name)


@dataclass(frozen=True, slots=True)
class ListZones(Effect[Listing[str]]):
    """Return every zone in which the project may have slices."""

    project: str

    def perform(self, world: World) -> Listing[str]:
        return world.cloud.zones(self.project)


@dataclass(frozen=True, slots=True)
class GrantLogin(Effect[str]):
    """Import the SSH key of a lease into the user's OS Login profile; return whom to log in as.

    `expires_at`: by the cloud's clock. It may be repeated. Raises CloudError.
    """

    lease: Lease
    expires_at: float

    def perform(self, world: World) -> str:
        return world.reach.grant_login(self.lease, self.expires_at)


@dataclass(frozen=True, slots=True)
class LetIn(Effect["bool | None"]):
    """Ask for a key of this machine in the metadata of the node; return whether it is there already.

    None: its VMs take keys of OS Login only. Raises CloudError.
    """

    lease: Lease

    def perform(self, world: World) -> bool | None:
        return world.cloud.let_in(self.lease.name, LOGIN_USER, world.reach.public_line(self.lease))


@dataclass(frozen=True, slots=True)
class ExtendLogin(Effect[None]):
    """Move the expiry of that key. It never comes back by that once it is removed. Raises CloudError."""

    lease: Lease
    expires_at: float

    def perform(self, world: World) -> None:
        world.reach.extend_login(self.lease, self.expires_at)


@dataclass(frozen=True, slots=True)
class RevokeLogin(Effect[None]):
    """Remove that key, if it is there. Raises CloudError."""

    lease: Lease

    def perform(self, world: World) -> None:
        world.reach.revoke_login(self.lease)
