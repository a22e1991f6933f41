"""The faults of one cloud, and the decision which of them a call meets.

Pure and seeded: `Faults.decide` is asked once for each call, by the daemon and by a simulator alike. The same faults and
the same calls in the same order give the same decisions, also across a restart of the daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.emulator.faults.fault import Fault, read
from orchestrator.emulator.faults.kinds import Role


class NoReply(Exception):
    """This call gets no answer (its effect is another matter). The wire closes the connection."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is wrong with one call. `effect` is for the cloud's state, the rest for whoever carries the reply."""

    effect: Fault | None = None
    ending: Fault | None = None
    slow_s: float = 0.0
    clock_s: float = 0.0
    hits: tuple[str, ...] = ()  # the ids of all these faults

    @property
    def happens(self) -> bool:
        """Does the call reach the cloud at all?"""
        return self.ending is None or self.ending.happens


ALL_IS_WELL = Decision()


class Faults:
    """In the order in which they were added: where several would spoil a call in the same way, the first one does."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self._faults = {fault.id: fault for fault in faults}
        self._count = max((int(name[1:]) for name in self._faults if name[1:].isdigit()), default=0)

    def __bool__(self) -> bool:
        return bool(self._faults)

    def __iter__(self) -> Iterator[Fault]:
        return iter(self._faults.values())

    def add(self, data: object, now: float) -> Fault:
        """From its JSON; BadFault if that is none. The clock of its `when` starts now."""
        return self.add_all([data], now)[0]

    def add_all(self, rows: Iterable[object], now: float) -> list[Fault]:
        """All of them, or none."""
        added = [read(row) for row in rows]
        for fault in added:
            self._count += 1
            fault.id, fault.added_at, fault.calls, fault.hits = f"f{self._count}", now, 0, 0
            self._faults[fault.id] = fault
        return added

    def clear(self, ids: Iterable[str] | None = None) -> int:
        """Remove these, or all; how many there were."""
        gone = [name for name in (self._faults if ids is None else ids) if name in self._faults]
        for name in gone:
            del self._faults[name]
        return len(gone)

    def decide(self, operation: str, caller: str, name: str, now: float, state: str | None = None) -> Decision:
        """`name` is the full name of a node, a queued resource or a place, `caller` "client" or "vm", `state` that of it."""
        if not self._faults:
            return ALL_IS_WELL
        parts = name.split("/")
        zone = parts[3] if len(parts) > 3 else "-"
        node = parts[5] if len(parts) > 5 and parts[4] in ("nodes", "queuedResources") else None
        met = [fault for fault in self._faults.values() if fault.meets(operation, caller, zone, node, state, now)]
        return _decision(met) if met else ALL_IS_WELL

    def dump(self) -> list[dict[str, Any]]:
        return [fault.as_json() for fault in self._faults.values()]

    @classmethod
    def load(cls, rows: Iterable[Mapping[str, Any]]) -> Faults:
        return cls(read(row) for row in rows)


def _decision(met: list[Fault]) -> Decision:
    ending = next((fault for fault in met if fault.role is Role.ENDING), None)
    reaches = ending is None or ending.happens
    effect = next((fault for fault in met if fault.role is Role.EFFECT), None) if reaches else None
    modifiers = [fault for fault in met if fault.role is Role.MODIFIER]
    taken = [*modifiers, *(fault for fault in (effect, ending) if fault is not None)]
    for fault in taken:
        fault.hits += 1
    return Decision(
        effect,
        ending,
        sum(fault.seconds for fault in modifiers if fault.kind == "slow"),
        sum(fault.seconds for fault in modifiers if fault.kind == "clock"),
        tuple(fault.id for fault in taken),
    )
