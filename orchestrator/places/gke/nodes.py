"""Watch the nodes that ran a job until they are gone: what is billed on a cluster is nodes, and the cluster deletes them."""

from dataclasses import dataclass
from typing import Protocol, cast

from orchestrator.core.text.durations import format_duration
from orchestrator.engine.effects.base import Effect, Now, Report, Sleep, World
from orchestrator.engine.runtime import retry
from orchestrator.errors import AuthError, CloudError
from orchestrator.places.gke.objects.nodes import NodeView, in_words

WATCH_S = 15 * 60.0  # an autoscaler takes up to ten minutes
LOOK_FIRST_S, LOOK_S = 0.5, 10.0
ASK_S = 30.0  # for an API server that does not answer


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


async def watch_nodes(project: str, names: tuple[str, ...], watch_s: float = WATCH_S) -> tuple[NodeView, ...]:
    """Return the nodes that still exist after `watch_s`; nothing once all are gone or used by others. Raises CloudError."""
    began = await Now()
    said = False
    for pause_s in retry.pauses(first_s=LOOK_FIRST_S, longest_s=LOOK_S):
        left = await retry.until(await Now() + ASK_S, GetNodes(project, names))
        waiting = tuple(node for node in left if not node.busy)
        waited_s = await Now() - began
        if not waiting:
            others = f"; {in_words(left)}" if left else ""
            await Report("nodes", f"{_gone(len(names) - len(left))} after {format_duration(waited_s)}{others}")
            return ()
        if not said:
            said = True
            for_s = format_duration(watch_s)
            them = "them" if len(left) > 1 else "it"
            text = f"{in_words(left)}: billed until the cluster deletes {them}; watching for {for_s} at most (Ctrl-C ends that)"
            await Report("nodes", text)
        if waited_s >= watch_s:
            return left
        await Report("nodes", f"{len(waiting)} still exist, {format_duration(waited_s)}", passing=True)
        await Sleep(min(pause_s, watch_s - waited_s))
    raise AssertionError("pauses() never ends")


def _gone(count: int) -> str:
    return "the node is gone" if count == 1 else f"all {count} nodes are gone" if count else "no node is left idle"


async def report_nodes(project: str, names: tuple[str, ...]) -> None:
    """Watch the nodes, and report which are left. A failure is reported: nothing depends on the watch."""
    if not names:
        return
    try:
        left = await watch_nodes(project, names)
    except AuthError as error:
        await Report("nodes", f"you may not read nodes, so that they are gone is not known: {error.message}")
    except CloudError as error:
        await Report("nodes", f"whether the nodes are gone is not known: {error.message}")
    else:
        if left:
            why = "a minimum size of the pool or other pods keep them; its admin knows (docs/gke.md)"
            await Report("warning", f"nodes STILL THERE, and billed: {in_words(left)}; {why}")
