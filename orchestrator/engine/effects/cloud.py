"""Effects on the cloud: one question each, tried once. `retry` asks again, the programs decide."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.core.lease.slices import Listing, Operation, SliceName, SliceRequest, SliceView, WorkerAddress
from orchestrator.engine.effects.base import Effect, World
from orchestrator.errors import CloudError


@dataclass(frozen=True, slots=True)
class Create(Effect[Operation]):
    request: SliceRequest

    def perform(self, world: World) -> Operation:
        return world.cloud.create(self.request)


@dataclass(frozen=True, slots=True)
class Get(Effect["SliceView | None"]):
    name: SliceName

    def perform(self, world: World) -> SliceView | None:
        return world.cloud.get(self.name)


@dataclass(frozen=True, slots=True)
class ListSlices(Effect[Listing[SliceView]]):
    project: str
    zone: str
    queued: bool = False  # the queued requests, too

    def perform(self, world: World) -> Listing[SliceView]:
        return world.cloud.list(self.project, self.zone, self.queued)


@dataclass(frozen=True, slots=True)
class Delete(Effect["Operation | None"]):
    name: SliceName

    def perform(self, world: World) -> Operation | None:
        return world.cloud.delete(self.name)


@dataclass(frozen=True, slots=True)
class DeleteAll(Effect[tuple["Operation | CloudError | None", ...]]):
    """Several at once: while one is not answered the others leave all the same. An error stands in its answer's place."""

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


@dataclass(frozen=True, slots=True)
class StartSlice(Effect[Operation]):
    name: SliceName

    def perform(self, world: World) -> Operation:
        return world.cloud.start(self.name)


@dataclass(frozen=True, slots=True)
class StopSlice(Effect[Operation]):
    name: SliceName

    def perform(self, world: World) -> Operation:
        return world.cloud.stop(self.name)


@dataclass(frozen=True, slots=True)
class GetOperation(Effect["Operation | None"]):
    operation: str

    def perform(self, world: World) -> Operation | None:
        return world.cloud.operation(self.operation)


@dataclass(frozen=True, slots=True)
class ListOperations(Effect[Listing[Operation]]):
    project: str
    zone: str

    def perform(self, world: World) -> Listing[Operation]:
        return world.cloud.operations(self.project, self.zone)


@dataclass(frozen=True, slots=True)
class Workers(Effect[tuple[WorkerAddress, ...]]):
    name: SliceName

    def perform(self, world: World) -> tuple[WorkerAddress, ...]:
        return world.cloud.workers(self.name)


@dataclass(frozen=True, slots=True)
class SetLabels(Effect[Operation]):
    name: SliceName
    labels: Mapping[str, str] = field(hash=False)

    def perform(self, world: World) -> Operation:
        return world.cloud.set_labels(self.name, self.labels)


@dataclass(frozen=True, slots=True)
class GetGuestAttributes(Effect[tuple[Mapping[str, str], ...]]):
    """The guest attributes of every worker: what the programs on the VMs say about themselves."""

    name: SliceName

    def perform(self, world: World) -> tuple[Mapping[str, str], ...]:
        return world.cloud.guest_attributes(self.name)


@dataclass(frozen=True, slots=True)
class ListZones(Effect[Listing[str]]):
    project: str

    def perform(self, world: World) -> Listing[str]:
        return world.cloud.zones(self.project)
