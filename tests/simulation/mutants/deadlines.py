"""Deadlines: nothing is waited for past the end of a slice, and results are held for a limited time."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from orchestrator.errors import CloudUnavailable, Vanished
from orchestrator.places.vms import stay
from orchestrator.promise import release, renewal
from orchestrator.promise.effects.base import Now, ReadLease, Record, Unlock
from orchestrator.promise.effects.cloud import Get
from orchestrator.promise.lease import claim_labels
from orchestrator.promise.lease.changes import HeldUntil
from orchestrator.promise.lease.cloud_api import SliceState
from orchestrator.promise.lease.lease import LeaseState
from orchestrator.promise.obtain import acquire
from orchestrator.run import collection, finish, program
from orchestrator.run.progress import JobProgress
from tests.simulation.model.faults import FOREVER, cloud_fault
from tests.simulation.model.world import GC_ONLY, GUARDIAN_ONLY, NO_LAYER, WATCHDOG_ONLY
from tests.simulation.mutants.registry import RUN, NoEffect, Plays, mutant, no_op, one, power_cut, replaces, scenario
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
    await Record(HeldUntil(lease.id, await Now(), until, held_for))
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


# -- scenarios -------------------------------------------------------------------------------------------------------


@scenario
def long_runs() -> Plays:
    for workers in (1, 2):
        workload = Workload("run", lasts_s=420.0, workers=workers, gc_every_s=30.0)
        yield f"{workers} workers", one(workload)


@scenario
def kept() -> Plays:
    yield "kept", one(Workload("keep", lasts_s=4.0, hold_s=90.0))


@scenario
def kept_labels_fail() -> Plays:
    for kind in ("operation_fails", "operation_forgets"):
        effects = [cloud_fault(kind, "nodes.patch", seconds=1.0)]
        yield kind, one(Workload("keep", lasts_s=4.0, hold_s=90.0), patch_effects=effects)


@scenario
def extended() -> Plays:
    for workers in (1, 2):
        workload = Workload("run", lasts_s=300.0, workers=workers, extend_at=15.0, gc_every_s=30.0)
        yield f"{workers} workers", one(workload)


@scenario
def extended_reply_lost() -> Plays:
    workload = Workload("up", hold_s=60.0, extend_at=20.0, gc_every_s=10.0, life_s=60.0)
    yield "a held slice", one(workload, layers=GC_ONLY, lost_patches=2, **power_cut(40.0))


@scenario
def extended_at_hand_over() -> Plays:
    for tenth in range(60, 120):
        workload = Workload("detached", lasts_s=80.0, extend_at=tenth / 10)
        yield f"at {tenth / 10} s", one(workload)


@scenario
def extended_before_followed() -> Plays:
    for extend_at in (10.0, 18.6, 23.0):
        workload = Workload("detached", lasts_s=40.0, life_s=30.0, extend_at=extend_at, boot_s=4.0)
        yield f"extended at {extend_at} s", one(workload)


@scenario
def down_at_hand_over() -> Plays:
    for tenth in range(70, 110, 2):
        yield f"down at {tenth / 10} s", one(Workload("detached", lasts_s=40.0, down_at=tenth / 10))


@scenario
def proven_by_other_process() -> Plays:
    workload = Workload("run", lasts_s=20.0, down_at=15.0)
    rest: dict[str, Any] = {"stopped": [(10.0, 40.0)], "forbidden": {"laptop-api": [(30.0, FOREVER)]}}
    yield "down, then no permission", one(workload, layers=NO_LAYER, **rest)


@scenario
def client_cut_off() -> Plays:
    for at in (12.0, 15.0):
        yield f"at {at} s", one(RUN, layers=WATCHDOG_ONLY, cut={"laptop-api": [(at, FOREVER)]})


@scenario
def detached_unarmed() -> Plays:
    yield "no watchdog", one(Workload("detached", lasts_s=10.0), script_runs=False)
    yield "no permission", one(Workload("detached", lasts_s=10.0), forbidden={"vm-api": [(0.0, FOREVER)]})


# -- mutants ---------------------------------------------------------------------------------------------------------


@mutant("worlds")
def no_heartbeat() -> Any:
    """An attached run sends no heartbeat."""
    return patch.object(program, "SendHeartbeats", NoEffect)


@mutant("long_runs")
def no_renewal() -> Any:
    """An attached run never renews its label."""
    return patch.object(renewal.LeaseRenewal, "_renew", no_op)


@mutant("kept")
def kept_in_ledger_only() -> Any:
    """`--keep` is written to the ledger, not to the labels."""
    return patch.object(renewal, "_write", no_op)


@mutant("kept_labels_fail")
def label_update_believed() -> Iterator[None]:
    """An accepted label update counts as done."""
    asked: list[bool] = []

    def shows(view: Any, said: Any) -> bool:
        asked.append(True)
        return len(asked) % 2 == 0  # first no (an update is needed), then yes

    with patch.object(renewal, "_has", shows):
        yield


@mutant("extended")
def claim_may_shrink() -> Any:
    """An update may shorten a claim."""
    return patch.object(claim_labels, "read_claimed_until", lambda said: 0.0)


@mutant("client_cut_off")
def heartbeats_during_release() -> Any:
    """Heartbeats continue while the release waits for the API."""
    return patch.object(finish, "Disconnect", NoEffect)


@mutant("detached_unarmed")
def detach_unarmed() -> Iterator[None]:
    """A detached run starts although its watchdog proved nothing (SkyPilot#5946)."""

    async def handed_over(lease: Any, capabilities: Any) -> Any:
        await renewal._write(lease, renewal.apply(lease, renewal.Detached(lease.id, await Now())), capabilities)
        await Record(renewal.Detached(lease.id, await Now()))
        return await ReadLease(lease.id)

    with patch.object(program, "wait_for_watchdogs", no_op), patch.object(program, "hand_over", handed_over):
        yield


@replaces(renewal, "_write", "extended_reply_lost")
async def extended_twice(real: Any, before: Any, wanted: Any, capabilities: Any, **how: Any) -> None:
    """An extension whose reply was lost is added again."""
    if before.deadline == wanted.deadline:
        return await real(before, wanted, capabilities, **how)
    for _ in range(5):
        found, skew_s = await renewal._listed(wanted)
        said = await renewal._claim_labels(before, wanted, found, skew_s, capabilities)
        try:
            await renewal.SetLabels(wanted.name, {**found.labels, **said})
        except CloudUnavailable:
            await renewal.Sleep(1.0)
        else:
            return None
    return None


@replaces(stay, "end_of", "extended_before_followed")
def follower_ignores_extension(real: Any, lease: Any, began: float, max_duration_s: float) -> Any:
    """Whatever follows a detached job uses the limit of the job file, not the extended one."""
    return real(lease, began, min(max_duration_s, 30.0))


@replaces(renewal, "_exclusively", "down_at_hand_over")
async def released_during_hand_over(alone: Any, lease: Any, made: Any) -> Any:
    """A slice that is released during a hand-over is reported as a bug."""
    try:
        return await alone(lease, made)
    except Vanished as error:
        raise (error.__cause__ or error) from None


@mutant("extended_at_hand_over")
def concurrent_label_updates() -> Any:
    """Two commands update the labels of one slice at once."""
    return patch.object(renewal, "_exclusively", lambda lease, made: made())


@replaces(release, "latest_lease", "proven_by_other_process")
async def other_proof_ignored(_: Any, lease: Any) -> Any:
    """A release ignores the proof that another process recorded."""
    return replace(lease, state=LeaseState.DOWN)
