"""Effects on what only a job on a cluster has: its nodes, and its code in a bucket."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from orchestrator.engine.effects.base import Effect, World
from orchestrator.places.gke.objects.nodes import NodeView


class ClusterPort(Protocol):
    """What a cluster's `Cloud` has beyond that of slices."""

    def nodes(self, project: str, names: tuple[str, ...]) -> tuple[NodeView, ...]: ...


@dataclass(frozen=True, slots=True)
class GetNodes(Effect[tuple[NodeView, ...]]):
    """Return those of these nodes that exist. Raises CloudError, AuthError where nodes may not be read."""

    project: str
    names: tuple[str, ...]

    def perform(self, world: World) -> tuple[NodeView, ...]:
        return cast(ClusterPort, world.cloud).nodes(self.project, self.names)


@dataclass(frozen=True, slots=True)
class UploadCode(Effect[None]):
    """Store the code of a run in its bucket. Raises CloudError."""

    upload: Callable[[], None]

    def perform(self, world: World) -> None:
        self.upload()
