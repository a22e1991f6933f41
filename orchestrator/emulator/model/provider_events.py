"""What happens to nodes that nobody asked for: Google takes them back, maintains and repairs them, or somebody deletes them.

The middle of `cloud_state.CloudState`, between what passes by itself and what clients ask for; as pure as both. What is
to come is in the agenda, in the order of time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.emulator import api_errors
from orchestrator.emulator.model.records import LOST, SETTLED_POWER, Maintenance, Node, Settings
from orchestrator.emulator.model.transitions import Machine

FOREVER = 1e18
GOING = ("DELETING", "STOPPING", "STOPPED", *LOST)  # from such a node nothing is taken any more


@dataclass(frozen=True, slots=True)
class Happening:
    """`what`: preempt (after a notice of `seconds`), take, maintain, mended, or back (from `state` to READY)."""

    at: float
    uid: str
    what: str
    seconds: float = 0.0
    state: str = ""


class Happenings(Machine):
    def __init__(self, seed: str, settings: Settings | None = None) -> None:
        super().__init__(seed, settings)
        self.agenda: list[Happening] = []

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> bool:
        changed = super().advance(now)
        while self.agenda and self.agenda[0].at <= self.now:
            changed |= self._happen(self.agenda.pop(0))
        return changed

    def next_due(self) -> float | None:
        due = super().next_due()
        if not self.agenda:
            return due
        return self.agenda[0].at if due is None else min(due, self.agenda[0].at)

    def _plan(self, seconds: float, node: Node, what: str, *, notice_s: float = 0.0, state: str = "") -> None:
        happening = Happening(self.now + seconds, node.uid, what, notice_s, state)
        insort(self.agenda, happening, key=lambda other: other.at)

    def _happen(self, happening: Happening) -> bool:
        node = self.by_uid(happening.uid)
        if node is None or node.state in GOING:
            return False
        match happening.what:
            case "preempt":
                self.preempt(node.name, self.now, happening.seconds)
            case "take" if node.preempted_at is not None:
                self.put(node.name, "PREEMPTED", self.now)
            case "maintain" if node.maintenance is not None and not node.maintenance.ongoing:
                self._begin_maintenance(node)
            case "mended" if node.maintenance is not None and node.maintenance.ongoing:
                node.maintenance = None
                node.boot_pending = node.state == "READY"
            case "back" if node.state == happening.state:
                self.put(node.name, "READY", self.now)
            case _:
                return False
        return True

    def _remove(self, node: Node) -> None:
        super()._remove(node)
        if self.agenda:
            self.agenda = [happening for happening in self.agenda if happening.uid != node.uid]

    # --- preemption ---------------------------------------------------------------------------------------------------

    def bear(self, node: Node, usd_per_hour: float | None) -> None:
        super().bear(node, usd_per_hour)
        if self.supply.preemptions:
            self._plan_preemptions(node, "CREATING")

    def _arrived(self, node: Node) -> None:
        if self.supply.preemptions:
            self._plan_preemptions(node, "READY")

    def _plan_preemptions(self, node: Node, since: str) -> None:
        want = node.want
        for rule in self.supply.preemptions:
            seconds = rule.draw(node.node_id, want, since)
            if seconds is not None:
                notice_s = self.settings.notice_s if rule.notice_s is None else rule.notice_s
                self._plan(seconds, node, "preempt", notice_s=notice_s)

    def preempt(self, name: str, now: float, notice_s: float = 0.0) -> Node:
        """Announced on its VMs, and taken after the notice. One that is not READY has no VM to tell: at once."""
        self.advance(now)
        node = self._any(name)
        if notice_s <= 0 or node.state != "READY":
            return self.put(name, "PREEMPTED", now)
        if node.preempted_at is None:  # the first notice holds
            node.preempted_at = self.now + notice_s
            self._plan(notice_s, node, "take")
        return node

    # --- maintenance --------------------------------------------------------------------------------------------------

    def maintain(
        self,
        name: str,
        now: float,
        *,
        notice_s: float,
        lasts_s: float | None = None,
        kind: str = "UNSCHEDULED",
        workers: Iterable[int] = (),
    ) -> Node:
        """Announced from now on. When it begins, the hosts go off; when it is over, they come back and boot again."""
        self.advance(now)
        node = self._any(name)
        if node.state != "READY" or node.maintenance is not None:
            raise api_errors.wrong_state("maintenance", node.state if node.maintenance is None else "MAINTENANCE")
        begins_at = self.now + notice_s
        length_s = self.settings.maintenance_s if lasts_s is None else lasts_s
        node.maintenance = Maintenance(kind, begins_at, begins_at + length_s, tuple(workers))
        self._plan(notice_s, node, "maintain")
        self.advance(now)
        return node

    def begin_maintenance(self, name: str, now: float) -> Node:
        """The customer triggers what was announced."""
        self.advance(now)
        node = self.may_begin_maintenance(name)
        self._begin_maintenance(node)
        return node

    def may_begin_maintenance(self, name: str) -> Node:
        """The node, if maintenance was announced for it that the customer may trigger."""
        node = self._any(name)
        if node.maintenance is None or node.maintenance.ongoing or not node.can_reschedule:
            raise api_errors.no_maintenance(name)
        return node

    def _begin_maintenance(self, node: Node) -> None:
        planned = node.maintenance
        assert planned is not None, "only what was announced begins"
        length_s = planned.ends_at - planned.starts_at
        node.maintenance = replace(planned, starts_at=self.now, ends_at=self.now + length_s, ongoing=True)
        node.boot_pending = False
        self._plan(length_s, node, "mended")

    # --- by hand ------------------------------------------------------------------------------------------------------

    def put(self, name: str, state: str, now: float, lasts_s: float | None = None) -> Node:
        """Into one of the settled states, at once, as Google does to nodes; `lasts_s`: and then back to READY."""
        self.advance(now)
        node = self._any(name)
        if state not in SETTLED_POWER:
            raise api_errors.bad_field(f'A node can be put into {", ".join(SETTLED_POWER)}, not into "{state}".')
        self._interrupt(node, lambda _: api_errors.interrupted(state))
        node.boot_pending = state == "READY" and node.state != "READY"
        node.state = state
        node.preempted_at = node.maintenance = None
        if state in LOST:
            self.meter.close(node.uid, self.now)
        else:
            self.meter.reopen(node.uid, self.now)
        self.history.note(node, self.now)
        if lasts_s is not None:
            self._plan(lasts_s, node, "back", state=state)
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

    # --- as plain data ------------------------------------------------------------------------------------------------

    def load_agenda(self, rows: Iterable[dict[str, Any]]) -> None:
        self.agenda = [Happening(**row) for row in rows]
