"""What a guardian decides once its process is gone, under a clock that only sleeping moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.core.lease.lease import Lease, LeaseState, Purpose
from orchestrator.engine.effects.base import Effect, Report, Sleep
from orchestrator.engine.guardian import loop
from orchestrator.engine.guardian.loop import guardian_loop
from orchestrator.ledger.file import LedgerUnavailable
from tests.leases import lease_on
from tests.simulation.model.bench import driven

START = 1_000_000.0
DAY = 86400.0


def lease(node: str = "a", **changes: Any) -> Lease:
    name = SliceName("p", "us-central1-a", f"tpujob-owner0-{node}")
    return lease_on(name, START, **{"handle": node, "state": LeaseState.READY, **changes})


@dataclass
class Machine:
    """One guardian's view: leases, what is locked, how well recovery goes, which guardian has the lock."""

    leases: list[Lease]
    alive: set[str] = field(default_factory=set)
    recoveries_that_fail: int = 0
    lock_is_taken: bool = False
    time: float = START
    recovered_at: list[float] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    unreadable: int = 0
    lock_asked: int = 0
    at: dict[float, Callable[[Machine], None]] = field(default_factory=dict)

    @property
    def ledger(self) -> Machine:
        return self

    @property
    def locks(self) -> Any:
        return type("Locks", (), {"is_locked": lambda _, lease_id: lease_id in self.alive})()

    def open_leases(self) -> list[Lease]:
        if self.unreadable:
            self.unreadable -= 1
            raise LedgerUnavailable("the ledger cannot be used: disk full")
        return list(self.leases)

    def now(self, cloud: str | None = None) -> float:
        return self.time

    def report(self, told: Report) -> None:
        self.told.append(told.text)

    def recover(self) -> None:
        self.recovered_at.append(self.time)
        if self.recoveries_that_fail:
            self.recoveries_that_fail -= 1
            return
        self.leases = [each for each in self.leases if self._claimed(each)]

    def _claimed(self, each: Lease) -> bool:
        if each.state is LeaseState.READY and (each.detached_at or each.hold_until or each.id in self.alive):
            return self.time < each.ends_at
        return False

    def take_lock(self) -> bool:
        self.lock_asked += 1
        return not self.lock_is_taken

    def watch(self) -> None:
        driven(guardian_loop(), self._answer)

    def _answer(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Sleep):
            assert effect.seconds > 0
            self.slept.append(effect.seconds)
            self.time += effect.seconds
            for moment in [moment for moment in self.at if moment <= self.time]:
                self.at.pop(moment)(self)
            return None
        return effect.perform(self)  # type: ignore[arg-type]


def test_with_nothing_owed_it_ends_at_once() -> None:
    machine = Machine([])
    machine.watch()
    assert (machine.recovered_at, machine.slept, machine.lock_asked) == ([], [], 0)


@pytest.mark.parametrize("other_guardian", [False, True])
def test_a_lock_that_the_killed_process_held_for_a_moment_longer_delays_the_recovery_as_little(
    other_guardian: bool,
) -> None:
    """Its pipe may end before its locks."""
    machine = Machine([lease()], alive={"a"}, lock_is_taken=other_guardian)
    machine.at[START + 0.5] = lambda m: m.alive.clear()
    machine.watch()
    assert machine.leases == [] and machine.recovered_at[0] <= START + 1


def test_a_recovery_that_proves_nothing_is_repeated_for_ever_with_growing_pauses() -> None:
    machine = Machine([lease()], recoveries_that_fail=12)
    machine.watch()
    assert len(machine.recovered_at) == 13
    assert machine.slept == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60]


def test_a_held_slice_is_waited_for_by_one_guardian_and_released_at_its_end() -> None:
    held = lease(purpose=Purpose.HOLD, hold_until=START + 100)
    machine = Machine([held])
    machine.watch()
    [at] = machine.recovered_at
    assert START + 100 <= at <= START + 100 + 1
    assert max(machine.slept) == loop.POLL_S, "it looks now and then, because the end may have been moved"
    assert machine.lock_asked == 1
    another = Machine([held], lock_is_taken=True)
    another.watch()
    assert another.recovered_at == [] and another.time < START + 5


def test_a_detached_run_is_left_alone_until_its_deadline() -> None:
    machine = Machine([lease(detached_at=START, deadline=START + 3600)])
    machine.watch()
    [at] = machine.recovered_at
    assert START + 3600 <= at <= START + 3600 + 1


def test_the_slice_of_a_living_process_is_not_touched_and_taken_over_when_that_dies_without_its_guardian() -> None:
    machine = Machine([lease()], alive={"a"}, at={START + 1000: lambda machine: machine.alive.clear()})
    machine.watch()
    [at] = machine.recovered_at
    assert START + 1000 <= at <= START + 1000 + loop.POLL_S


def test_the_pauses_begin_anew_after_a_time_in_which_nothing_was_overdue() -> None:
    machine = Machine([lease("a"), lease("b", hold_until=START + 200, purpose=Purpose.HOLD)], recoveries_that_fail=2)

    def fail_again(machine: Machine) -> None:
        machine.recoveries_that_fail = 1

    machine.at = {START + 150: fail_again}
    machine.watch()
    assert machine.slept[:2] == [1, 2]
    assert machine.slept[-1] == 1


def test_a_ledger_that_cannot_be_read_is_asked_again() -> None:
    machine = Machine([lease()], unreadable=6)
    machine.watch()
    assert machine.recovered_at == [START + sum(loop.QUICK_LOOKS_S) + 2 * loop.POLL_S]
    assert machine.told == ["the ledger cannot be used: disk full; asking again"] * 6
