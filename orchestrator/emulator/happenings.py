"""What happens to nodes that nobody asked for: Google takes them back, repairs them, or somebody else deletes them.

The middle of `cloud_state.CloudState`, between what passes by itself and what clients ask for; as pure as both.
"""

from __future__ import annotations

from orchestrator.emulator import api_errors
from orchestrator.emulator.machine import Machine
from orchestrator.emulator.records import SETTLED_POWER, Node

FOREVER = 1e18


class Happenings(Machine):
    # --- what happens to nodes ----------------------------------------------------------------------------------------

    def put(self, name: str, state: str, now: float) -> Node:
        """Into one of the settled states, at once, as Google does to nodes: preempted, under repair, unknown."""
        self.advance(now)
        node = self._any(name)
        if state not in SETTLED_POWER:
            raise api_errors.bad_field(f'A node can be put into {", ".join(SETTLED_POWER)}, not into "{state}".')
        self._interrupt(node, lambda _: api_errors.interrupted(state))
        node.boot_pending = state == "READY" and node.state != "READY"
        node.state = state
        self.history.note(node, self.now)
        self.advance(now)
        return node

    def vanish(self, name: str, now: float) -> Node:
        """Somebody else deletes it: from now on nobody sees it. (Its name is free once its hosts are gone.)"""
        self.advance(now)
        node = self._any(name)
        self.withdraw(node)
        node.hidden_until = FOREVER
        node.due = self.now
        self.advance(now)
        return node

    def _any(self, name: str) -> Node:
        if name not in self.nodes:
            raise api_errors.not_found(name)
        return self.nodes[name]
