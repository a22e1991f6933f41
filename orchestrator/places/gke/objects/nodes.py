"""The nodes of a cluster that ran a job. They are the cluster's: they are named and watched, and never deleted here. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node that exists. Times: unix seconds, the server's clock."""

    name: str
    pool: str = ""  # its node pool; empty if it names none
    ends_at: float | None = None  # when the cloud itself deletes it, if its pool has such a limit
    busy: bool = False  # other pods on it ask for TPUs


def in_words(nodes: Sequence[NodeView]) -> str:
    """Return which nodes exist, by pool: `2 nodes of pool v5e-4x4 (gke-a, gke-b), 1 of them in use by others`."""
    pools: dict[str, list[NodeView]] = {}
    for node in nodes:
        pools.setdefault(node.pool, []).append(node)
    parts = []
    for pool, members in pools.items():
        count = f"{len(members)} node{'s'[: len(members) != 1]}"
        named = ", ".join(node.name for node in members[:3]) + (", …" if len(members) > 3 else "")
        busy = sum(node.busy for node in members)
        parts.append(
            f"{count}{f' of pool {pool}' if pool else ''} ({named}){f', {busy} in use by others' if busy else ''}"
        )
    return "; ".join(parts)
