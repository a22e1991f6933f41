"""What nodes looked like a while ago, for lists that lag behind: the newest changes of each node, in memory only.

Pure. `cloud_state` notes every change here and asks only when a fault wants an old list.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable
from typing import Any

from orchestrator.emulator.model.records import Node

CHANGES_KEPT = 64  # for each node; before the oldest of them it is taken to have looked like that
DEPARTED_KEPT = 64


class History:
    def __init__(self) -> None:
        self._changes: dict[str, deque[tuple[float, str, dict[str, Any]]]] = {}  # by uid: since when, state, spec
        self._departed: deque[tuple[float, Node]] = deque()

    def note(self, node: Node, now: float) -> None:
        """Specs are replaced and never changed in place, so that holding one is enough."""
        changes = self._changes.get(node.uid)
        if changes is None:
            changes = self._changes[node.uid] = deque(maxlen=CHANGES_KEPT)
        changes.append((now, node.state, node.spec))

    def gone(self, node: Node, now: float) -> None:
        self._departed.append((now, node))
        if len(self._departed) > DEPARTED_KEPT:
            self._changes.pop(self._departed.popleft()[1].uid, None)

    def at(self, then: float, present: Iterable[Node]) -> list[Node]:
        """The nodes that existed at `then`, as they looked."""
        existed = [node for since, node in self._departed if since > then] + list(present)
        return [self._looked(node, then) for node in existed if node.created_at <= then]

    def _looked(self, node: Node, then: float) -> Node:
        changes = self._changes[node.uid]
        _, state, spec = next((change for change in reversed(changes) if change[0] <= then), changes[0])
        old = copy.copy(node)
        old.state, old.spec = state, spec
        return old
