"""Deadlines: nothing is waited for past the end of a slice, and results are held for a limited time."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.core.lease.cloud_api import SliceState
from orchestrator.core.lease.lease import Held
from orchestrator.engine.effects.base import Now, ReadLease, Record, Unlock
from orchestrator.engine.effects.cloud import Get
from orchestrator.engine.provision import acquire
from orchestrator.errors import CloudUnavailable
from orchestrator.run import collection
from orchestrator.run.progress import JobProgress
from tests.simulation.model.world import GUARDIAN_ONLY, NO_LAYER, WATCHDOG_ONLY
from tests.simulation.mutants.registry import RUN, Plays, mutant, one, replaces, scenario
from tests.simulation.scenarios.random_worlds import Workload

# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def slow_create() -> Plays:
    workload = replace(RUN, life_s=30.0)
    yield "READY after its deadline", one(workload, layers=NO_LAYER, provision_s=100.0)


@scenario
def deadline_with_dead_worker() -> Plays:
    workload = Workload("run", lasts_s=900.0, life_s=300.0)
    yield "no answer at the deadline", one(workload, layers=NO_LAYER, worker_dies=[(0, 200.0, None)])
    yield (
        "no answer at the end of the job",
        one(replace(workload, lasts_s=250.0), layers=NO_LAYER, worker_dies=[(0, 254.0, None)]),
    )


@scenario
def deadline_while_collecting() -> Plays:
    """Collecting takes very long: the deadline ends it."""
    yield "after the job", one(replace(RUN, life_s=200.0, collect_s=1500.0), layers=NO_LAYER)
    yield "at the deadline", one(replace(RUN, lasts_s=900.0, life_s=300.0, collect_s=1500.0), layers=NO_LAYER)


@scenario
def results_left_behind() -> Plays:
    """The disk is full: the slice is held for its results, for a limited time, and released once they are collected."""
    full = replace(RUN, no_room_until=1e6)
    yield "the guardian ends the hold", one(full, layers=GUARDIAN_ONLY)
    yield "the watchdog ends the hold", one(full, layers=WATCHDOG_ONLY, crashes=[(None, 60.0, "machine")])
    yield "the deadline comes first", one(replace(full, life_s=60.0), layers=GUARDIAN_ONLY)
    yield "in vain, again and again", one(replace(full, collect_at=60.0), layers=GUARDIAN_ONLY)
    later = replace(full, no_room_until=50.0, collect_at=60.0)
    yield "collected", one(later, layers=NO_LAYER)
    yield "collected, slowly", one(replace(later, collect_s=100.0), layers=GUARDIAN_ONLY)
    yield (
        "killed while it collects",
        one(replace(later, collect_s=100.0), layers=GUARDIAN_ONLY, crashes=[(None, 90.0, "cli")]),
    )
    yield "of a detached run", one(replace(full, kind="detached"), layers=WATCHDOG_ONLY)


@scenario
def kept_after_failure() -> Plays:
    """The slice of a failed job is held for a limited time, or until the next run on it has ended."""
    failed = Workload("failing", lasts_s=10.0, rc=7, hold_s=60.0, keeps_failed=True)
    yield "the guardian ends the hold", one(failed, layers=GUARDIAN_ONLY)
    yield "the watchdog ends the hold", one(failed, layers=WATCHDOG_ONLY, crashes=[(None, 60.0, "machine")])
    yield "run again", one(replace(failed, again_at=50.0), layers=NO_LAYER)
    long = replace(failed, lasts_s=200.0, again_at=240.0)
    yield "run again, for longer than the hold", one(long, layers=WATCHDOG_ONLY)
    yield "it fails again", one(replace(failed, again_at=50.0, fails_again=True), layers=GUARDIAN_ONLY)
    yield "killed while it runs again", one(long, layers=WATCHDOG_ONLY, crashes=[("again", 40, "cli")])


# -- mutants ---------------------------------------------------------------------------------------------------------


@replaces(acquire, "wait_until_ready", "slow_create")
async def waits_past_deadline(
    real: Any, lease: Any, capabilities: Any, *, give_up_at: float, operation: str | None = None
) -> Any:
    """A command waits for its slice past the deadline of the slice."""
    for pause_s in acquire.retry.pauses(longest_s=10.0):
        try:
            view = await Get(lease.name)
        except CloudUnavailable:
            view = None
        if view is not None and view.state is SliceState.READY:
            return await real(lease, capabilities, give_up_at=give_up_at, operation=operation)
        if await Now() > give_up_at:
            raise CloudUnavailable("still not READY")
        await acquire.Sleep(pause_s)
    raise AssertionError


@mutant("deadline_while_collecting")
def collects_past_deadline() -> Any:
    """Artifacts are collected past the deadline."""
    return patch.object(collection, "LAST_COLLECT_S", 1800.0)


async def _held_to_deadline(real: Any, owed: Any, until: float, capabilities: Any, held_for: Any) -> Any:
    return await real(owed, owed.lease.deadline, capabilities, held_for)


@replaces(collection, "keep_slice", "results_left_behind")
async def results_held_to_deadline(*args: Any) -> Any:
    """A slice with uncollected results is held to its deadline."""
    return await _held_to_deadline(*args)


@replaces(collection, "keep_slice", "results_left_behind")
async def results_held_in_ledger_only(_: Any, owed: Any, until: float, capabilities: Any, held_for: Any) -> Any:
    """A slice is held for its results in the ledger, not in its labels."""
    lease, owed.lease = owed.lease, None
    await Record(Held(lease.id, await Now(), until, held_for))
    owed.kept_until = until
    await Unlock(lease.id)
    return await ReadLease(lease.id)


@replaces(collection, "keep_slice", "kept_after_failure")
async def failed_held_to_deadline(*args: Any) -> Any:
    """The slice of a failed job is held to its deadline."""
    return await _held_to_deadline(*args)


@replaces(collection, "hold_slice", "kept_after_failure")
async def taken_over_not_released(real: Any, progress: JobProgress, *args: Any, **settings: Any) -> None:
    """The next run leaves the slice of a failed one as it found it, like one of `tpujob up`."""
    if progress.taken_over_at is not None:
        progress.owed.lease = None
    await real(progress, *args, **settings)
