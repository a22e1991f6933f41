"""The faults of one cloud, and the decision which of them a call meets.

Pure and seeded: the daemon and simulators call `Faults.decide` once for each call. The same faults and the same calls in
the same order give the same decisions, also across a restart of the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.emulator.faults.fault import Fault, read
from orchestrator.emulator.faults.kinds import Role


class NoReply(Exception):
    """The call gets no reply, whether or not it took effect. On the wire the connection closes."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Which faults one call meets. `effect` goes to the cloud's state; the rest concerns the reply."""

    effect: Fault | None = None
    reply: Fault | None = None
    slow_s: float = 0.0
    clock_s: float = 0.0  # by how much the Date header is ahead
    hits: tuple[str, ...] = ()  # the ids of all these faults

    @property
    def takes_effect(self) -> bool:
        """Whether the call reaches the cloud at all."""
        return self.reply is None or self.reply.takes_effect


NO_FAULT = Decision()


class Faults:
    """Faults in the order in which they were added: of several with the same role, the first one applies."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._faults = {fault.id: fault for fault in faults}
        self._count = max((int(name[1:]) for name in self._faults if name[1:].isdigit()), default=0)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults.values())

    def add(self, data: object, now: float) -> Fault:
        """Add a fault from its JSON. The times of its `when` count from `now`. Raises BadData."""
        return self.add_all([data], now)[0]

    def add_all(self, rows: Iterable[object], now: float) -> list[Fault]:
        """Add all of them, or none. Raises BadData."""
        added = [read(row) for row in rows]
        for fault in added:
            self._count += 1
            fault.id, fault.added_at, fault.calls, fault.hits = f"f{self._count}", now, 0, 0
            self._faults[fault.id] = fault
        return added

    def clear(self, ids: Iterable[str] | None = None) -> int:
        """Remove these faults, or all; return how many there were."""
        removed = [name for name in (self._faults if ids is None else ids) if name in self._faults]
        for name in removed:
            del self._faults[name]
        return len(removed)

    def decide(self, operation: str, caller: str, name: str, now: float, state: str | None = None) -> Decision:
        """Count the call, and return the faults that it meets; NO_FAULT if none.

        `name` is the full name of a node, a queued resource or a place, `state` the state of that node or queued resource;
        `caller` is "client" or "vm".
        """
        if not self._faults:
            return NO_FAULT
        parts = name.split("/")
        zone = parts[3] if len(parts) > 3 else "-"
        node = parts[5] if len(parts) > 5 and parts[4] in ("nodes", "queuedResources") else None
        met = [fault for fault in self._faults.values() if fault.strikes(operation, caller, zone, node, state, now)]
        return _decision(met) if met else NO_FAULT

    def dump(self) -> list[dict[str, Any]]:
        """Return what `load` reads."""
        return [fault.as_json() for fault in self._faults.values()]

    @classmethod
    def load(cls, rows: Iterable[Mapping[str, Any]]) -> Faults:
        """Return the faults of `dump`. Raises BadData."""
        return cls(read(row) for row in rows)


def _decision(met: list[Fault]) -> Decision:
    reply = next((fault for fault in met if fault.role is Role.REPLY), None)
    takes_effect = reply is None or reply.takes_effect
    effect = next((fault for fault in met if fault.role is Role.EFFECT), None) if takes_effect else None
    modifiers = [fault for fault in met if fault.role is Role.MODIFIER]
    applied = [*modifiers, *(fault for fault in (effect, reply) if fault is not None)]
    for fault in applied:
        fault.hits += 1
    return Decision(
        effect,
        reply,
        sum(fault.seconds for fault in modifiers if fault.kind == "slow"),
        sum(fault.seconds for fault in modifiers if fault.kind == "clock"),
        tuple(fault.id for fault in applied),
    )
