"""A cloud whose replies are written down, and a ledger: a program of `promise/` is driven against both, effect by effect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import TpujobError
from orchestrator.promise.effects.base import Effect, Lock, Now, Program, ReadLease, Record, Report, Sleep, T, Unlock
from orchestrator.promise.effects.cloud import OwnCreate
from orchestrator.promise.lease.changes import Intent, LeaseChange, NotAllowed, apply
from orchestrator.promise.lease.lease import Lease
from tests.simulation.model.bench import driven


@dataclass
class ScriptedCloud:
    """`replies` by the name of the call, one after the other; the last one stays. A call lasts a tenth of a second."""

    replies: dict[str, list[Any]] = field(default_factory=dict)
    now: float = 1_800_000_000.0
    calls: list[str] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)  # the effects of these calls
    log: list[Any] = field(default_factory=list)  # events, and what is reported for good
    passing: list[str] = field(default_factory=list)  # what is reported in passing
    unlocked: list[str] = field(default_factory=list)
    ledger: dict[str, Lease] = field(default_factory=dict)
    ledger_fails: TpujobError | NotAllowed | None = None

    def drive(self, program: Program[T]) -> T:
        return driven(program, self.answer)

    def answer(self, effect: Effect[Any]) -> Any:
        match effect:
            case Now():
                return self.now
            case Sleep(seconds=seconds):
                self.now += seconds
            case OwnCreate():  # none is under way
                return None
            case Lock():
                return True
            case Unlock(lease_id=identity):
                self.unlocked.append(identity)
            case ReadLease() if isinstance(self.ledger_fails, TpujobError):
                raise self.ledger_fails
            case ReadLease(lease_id=identity):
                return self.ledger[identity]
            case Record(events=(event,)):
                if self.ledger_fails is not None:
                    raise self.ledger_fails
                self._record(event)
            case Report(text=text, passing=passing):
                (self.passing if passing else self.log).append(text)
            case _:
                return self.call(type(effect).__name__, effect)
        return None

    def _record(self, event: Any) -> None:
        if isinstance(event, Intent):
            self.ledger[event.lease.id] = event.lease
        elif isinstance(event, LeaseChange):
            self.ledger[event.lease_id] = apply(self.ledger[event.lease_id], event)
        self.log.append(event)

    def call(self, name: str, effect: Any) -> Any:
        self.calls.append(name)
        self.asked.append(effect)
        self.now += 0.1
        if name == "GetOperation":
            name = f"operation {effect.operation}"
        left = self.replies.get(name, [])
        reply = (left.pop(0) if len(left) > 1 else left[0]) if left else None
        if isinstance(reply, Exception):
            raise reply
        return reply
