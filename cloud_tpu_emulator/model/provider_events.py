"""Events that no client of the API causes: preemption, maintenance, repair, and deletion by another party.

Between `transitions` and `cloud_state`, and as pure as both. Scheduled events are kept in the order of time.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.plain_data import check_value
from cloud_tpu_emulator.model.records import LOST, SETTLED_POWER, Maintenance, Node, Settings
from cloud_tpu_emulator.model.transitions import NodeTransitions

FOREVER = 1e18
IGNORES_EVENTS = ("DELETING", "STOPPING", "STOPPED", *LOST)  # scheduled events skip nodes in these states


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    """`kind`: announce_preemption (with a notice of `seconds`), preempt, begin_maintenance, end_maintenance, or recover
    (from `state` to READY)."""

    at: float
    uid: str
    kind: str
    seconds: float = 0.0
    state: str = ""


class ProviderEvents(NodeTransitions):
    """Nodes with their scheduled events, in the order of time."""

    def __init__(self, seed: str, settings: Settings | None = None) -> None:
        super().__init__(seed, settings)
        self.events: list[ProviderEvent] = []

    # --- time ---------------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> bool:
        changed = super().advance(now)
        while self.events and self.events[0].at <= self.now:
            changed |= self._apply(self.events.pop(0))
        return changed

    def _dues(self) -> list[float]:
        return super()._dues() + [event.at for event in self.events[:1]]

    def _schedule(self, seconds: float, node: Node, kind: str, *, notice_s: float = 0.0, state: str = "") -> None:
        event = ProviderEvent(self.now + seconds, node.uid, kind, notice_s, state)
        insort(self.events, event, key=lambda other: other.at)

    def _apply(self, event: ProviderEvent) -> bool:
        """Return whether the event still applied."""
        node = self.by_uid(event.uid)
        if node is None or node.state in IGNORES_EVENTS:
            return False
        match event.kind:
            case "announce_preemption":
                self.preempt(node.name, self.now, event.seconds)
            case "preempt" if node.preempted_at is not None:
                self.set_state(node.name, "PREEMPTED", self.now)
            case "begin_maintenance" if node.maintenance is not None and not node.maintenance.ongoing:
                self._begin_maintenance(node)
            case "end_maintenance" if node.maintenance is not None and node.maintenance.ongoing:
                node.maintenance = None
                node.boot_pending = node.state == "READY"
            case "recover" if node.state == event.state:
                self.set_state(node.name, "READY", self.now)
            case _:
                return False
        return True

    def _remove(self, node: Node) -> None:
        super()._remove(node)
        if self.events:
            self.events = [event for event in self.events if event.uid != node.uid]

    # --- preemption ---------------------------------------------------------------------------------------------------

    def insert(self, node: Node) -> None:
        super().insert(node)
        self._schedule_preemptions(node, "CREATING")

    def _became_ready(self, node: Node) -> None:
        self._schedule_preemptions(node, "READY")

    def _schedule_preemptions(self, node: Node, since: str) -> None:
        for rule in self.supply.preemptions:
            seconds = rule.draw(node.node_id, node.demand, since)
            if seconds is not None:
                notice_s = self.settings.notice_s if rule.notice_s is None else rule.notice_s
                self._schedule(seconds, node, "announce_preemption", notice_s=notice_s)

    def preempt(self, name: str, now: float, notice_s: float = 0.0) -> Node:
        """Announce a preemption to the node's VMs, and preempt it after the notice; at once if it is not READY.

        Raises ApiError if there is no such node.
        """
        node = self._existing(name, now)
        if notice_s <= 0 or node.state != "READY":
            return self.set_state(name, "PREEMPTED", now)
        if node.preempted_at is None:  # the first notice holds
            node.preempted_at = self.now + notice_s
            self._schedule(notice_s, node, "preempt")
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
        """Announce maintenance, which begins after `notice_s` and powers the hosts off while it lasts.

        `lasts_s` None: as in the settings; `workers`: those that see the notice in their metadata, by default all.
        Raises ApiError if there is no such node, or if it is not READY or has maintenance already.
        """
        node = self._existing(name, now)
        if node.state != "READY" or node.maintenance is not None:
            raise api_errors.wrong_state("maintenance", node.state if node.maintenance is None else "MAINTENANCE")
        begins_at = self.now + notice_s
        length_s = self.settings.maintenance_s if lasts_s is None else lasts_s
        node.maintenance = Maintenance(kind, begins_at, begins_at + length_s, tuple(workers))
        self._schedule(notice_s, node, "begin_maintenance")
        self.advance(now)
        return node

    def begin_maintenance(self, name: str, now: float) -> Node:
        """Begin announced maintenance on the customer's request. Raises ApiError as `may_begin_maintenance` does."""
        self.advance(now)
        node = self.may_begin_maintenance(name)
        self._begin_maintenance(node)
        return node

    def may_begin_maintenance(self, name: str) -> Node:
        """Return the node. Raises ApiError unless it has announced maintenance that the customer may begin."""
        node = self._existing(name, self.now)
        if node.maintenance is None or node.maintenance.ongoing or not node.can_reschedule:
            raise api_errors.no_maintenance(name)
        return node

    def _begin_maintenance(self, node: Node) -> None:
        planned = node.maintenance
        assert planned is not None, "only announced maintenance begins"
        length_s = planned.ends_at - planned.starts_at
        node.maintenance = replace(planned, starts_at=self.now, ends_at=self.now + length_s, ongoing=True)
        node.boot_pending = False
        self._schedule(length_s, node, "end_maintenance")

    # --- by hand ------------------------------------------------------------------------------------------------------

    def set_state(self, name: str, state: str, now: float, lasts_s: float | None = None) -> Node:
        """Put a node into a settled state at once, as the service does; after `lasts_s` (if given) back to READY.

        Raises ApiError if there is no such node, BadData if the state is not a settled one.
        """
        node = self._existing(name, now)
        check_value("state", state, str, choices=tuple(SETTLED_POWER))
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
            self._schedule(lasts_s, node, "recover", state=state)
        self.advance(now)
        return node

    def vanish(self, name: str, now: float) -> Node:
        """Delete a node as another party does: it is invisible from now on. Its name is free once its hosts are removed.

        Raises ApiError if there is no such node.
        """
        node = self._existing(name, now)
        self.delete_by_service(node)
        node.hidden_until = FOREVER
        node.due = self.now
        self.advance(now)
        return node

    def _existing(self, name: str, now: float) -> Node:
        self.advance(now)
        if name not in self.nodes:
            raise api_errors.not_found(name)
        return self.nodes[name]
