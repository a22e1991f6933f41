"""Recovery by the guardian, by the timer and by the next command."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from orchestrator.core.lease.lease import LeaseState
from orchestrator.engine.effects.base import Record
from orchestrator.engine.guardian import loop
from orchestrator.engine.leases import recover
from tests.simulation.model.faults import FOREVER
from tests.simulation.model.world import GUARDIAN_ONLY
from tests.simulation.mutants.registry import RUN, NoEffect, Plays, mutant, one, scenario
from tests.simulation.scenarios.random_worlds import Workload

# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def disk_full() -> Plays:
    for at in (3.0, 8.0):
        rest = {"disk_full": (at, FOREVER), "crashes": [(None, at + 0.5, "cli")]}
        yield f"killed at {at + 0.5} s", one(RUN, layers=GUARDIAN_ONLY, **rest)


@scenario
def held_guardian_only() -> Plays:
    yield "held", one(Workload("up", hold_s=60.0), layers=GUARDIAN_ONLY)


@scenario
def timer_beside_runs() -> Plays:
    yield "a timer", one(Workload("run", lasts_s=40.0, timer_s=10.0))


# -- mutants ---------------------------------------------------------------------------------------------------------


@mutant("recovery ignores leases in the state DOWN", "deaths_guardian_only")
def down_is_ignored() -> Iterator[None]:
    real = recover.release_reason

    def dead_wood(lease: Any, *, now: float, owner_alive: bool) -> str | None:
        return None if lease.state is LeaseState.DOWN else real(lease, now=now, owner_alive=owner_alive)

    with patch.object(recover, "release_reason", dead_wood), patch.object(loop, "release_reason", dead_wood):
        yield


@mutant("a full disk keeps recovery from deleting", "disk_full")
def full_disk_blocks_recovery() -> Iterator[None]:
    async def strict(event: Any) -> None:
        await Record(event)

    with patch.object(recover, "try_record", strict):
        yield


@mutant("the guardian ignores held slices", "held_guardian_only")
def guardian_ignores_held() -> Iterator[None]:
    with patch.object(loop, "TakeGuardianLock", lambda: NoEffect(answer=False)):
        yield


@mutant("recovery takes leases from living processes", "timer_beside_runs")
def recovery_ignores_locks() -> Iterator[None]:
    unlocked = patch.object(recover, "IsLocked", lambda lease_id: NoEffect(answer=False))
    with unlocked, patch.object(recover, "Lock", lambda lease_id: NoEffect(answer=True)):
        yield
