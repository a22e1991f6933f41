"""The newest changes of each node, in memory only, for lists that show an earlier state.

Pure. `transitions` records every change; `cloud_state` reads it only under the fault "stale_list".
"""

import copy
from collections import deque
from collections.abc import Iterable
from typing import Any

from orchestrator.emulator.model.records import Node

CHANGES_KEPT = 64  # for each node; before the oldest of them the node is assumed to have looked the same
REMOVED_KEPT = 64


class History:
    """The changes of present nodes, and of the last ones that were removed."""

    def __init__(self) -> None:
        self._changes: dict[str, deque[tuple[float, str, dict[str, Any]]]] = {}  # by uid: since when, state, spec
        self._removed: deque[tuple[float, Node]] = deque()

    def note(self, node: Node, now: float) -> None:
        """Record the present state and spec. Specs are replaced, never changed in place, so no copy is needed."""
        changes = self._changes.get(node.uid)
        if changes is None:
            changes = self._changes[node.uid] = deque(maxlen=CHANGES_KEPT)
        changes.append((now, node.state, node.spec))

    def note_removal(self, node: Node, now: float) -> None:
        """Record that a node is absent from now on."""
        self._removed.append((now, node))
        if len(self._removed) > REMOVED_KEPT:
            self._changes.pop(self._removed.popleft()[1].uid, None)

    def at(self, then: float, present: Iterable[Node]) -> list[Node]:
        """Return the nodes that existed at `then`, as they were. `present` are those that exist now."""
        existed = [node for since, node in self._removed if since > then] + list(present)
        return [self._as_of(node, then) for node in existed if node.created_at <= then]

    def _as_of(self, node: Node, then: float) -> Node:
        changes = self._changes[node.uid]
        _, state, spec = next((change for change in reversed(changes) if change[0] <= then), changes[0])
        old = copy.copy(node)
        old.state, old.spec = state, spec
        return old
