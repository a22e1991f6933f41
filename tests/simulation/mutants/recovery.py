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
from tests.simulation.mutants.registry import RUN, NoEffect, Plays, mutant, one, replaces, scenario
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


@replaces(recover, "release_reason", "deaths_guardian_only", also=loop)
def down_is_ignored(real: Any, lease: Any, **how: Any) -> Any:
    """Recovery ignores leases in the state DOWN."""
    return None if lease.state is LeaseState.DOWN else real(lease, **how)


@replaces(recover, "try_record", "disk_full")
async def full_disk_blocks_recovery(_: Any, event: Any) -> None:
    """A full disk keeps recovery from deleting."""
    await Record(event)


@mutant("held_guardian_only")
def guardian_ignores_held() -> Any:
    """The guardian ignores held slices."""
    return patch.object(loop, "TakeGuardianLock", lambda: NoEffect(answer=False))


@mutant("timer_beside_runs")
def recovery_ignores_locks() -> Iterator[None]:
    """Recovery takes leases from living processes."""
    unlocked = patch.object(recover, "IsLocked", lambda lease_id: NoEffect(answer=False))
    with unlocked, patch.object(recover, "Lock", lambda lease_id: NoEffect(answer=True)):
        yield
