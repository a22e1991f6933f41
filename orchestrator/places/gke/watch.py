"""The nodes that ran a job, watched until they are gone: what is billed on a cluster is nodes, and the cluster deletes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from orchestrator.errors import AuthError, CloudError
from orchestrator.places.gke.objects.nodes import NodeView, in_words
from orchestrator.promise.effects import retry
from orchestrator.promise.effects.base import Effect, Now, Report, Sleep, World
from orchestrator.text.units import format_duration

if TYPE_CHECKING:
    from orchestrator.places.gke.api.client import ClusterCloud


WATCH_S = 15 * 60.0  # an autoscaler takes up to ten minutes
LOOK_FIRST_S, LOOK_S = 0.5, 10.0
ASK_S = 30.0  # for an API server that does not answer


@dataclass(frozen=True, slots=True)
class GetNodes(Effect[tuple[NodeView, ...]]):
    """Return those of these nodes that exist. Raises CloudError, AuthError where nodes may not be read."""

    project: str
    names: tuple[str, ...]

    def perform(self, world: World) -> tuple[NodeView, ...]:
        return cast("ClusterCloud", world.cloud).nodes(self.project, self.names)


async def watch_nodes(project: str, names: tuple[str, ...]) -> tuple[NodeView, ...]:
    """Return the nodes that still exist after WATCH_S; nothing once all are gone or used by others. Raises CloudError."""
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
            for_s = format_duration(WATCH_S)
            them = "them" if len(left) > 1 else "it"
            text = f"{in_words(left)}: billed until the cluster deletes {them}; watching for {for_s} at most (Ctrl-C ends that)"
            await Report("nodes", text)
        if waited_s >= WATCH_S:
            return left
        await Report("nodes", f"{len(waiting)} still exist, {format_duration(waited_s)}", passing=True)
        await Sleep(min(pause_s, WATCH_S - waited_s))
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
