"""A slice that is there already: of `tpujob up`, of this job since it failed, or of the run before in a lane (`run.job_run`).

May this run use it, and does it stay after it?
"""

from functools import partial
from operator import attrgetter

from orchestrator import errors
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.hosts.fleet.effects import Disconnect
from orchestrator.places.place import Stay
from orchestrator.promise.effects import retry
from orchestrator.promise.effects.base import Lock, Make, Now, ReadLease, Report, Unlock, UnmaskSignals
from orchestrator.promise.effects.cloud import Get
from orchestrator.promise.lease.changes import HandedToNextRun, HeldUntil
from orchestrator.promise.lease.cloud_api import Capabilities, SliceState
from orchestrator.promise.lease.lease import HeldFor, Lease, LeaseState, Mode, Purpose
from orchestrator.promise.obligations import release_owed
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.promise.release import latest_lease, try_start_guardian
from orchestrator.promise.renewal import move_claim
from orchestrator.run.job_run import JobRun
from orchestrator.run.progress import JobProgress

LOOK_S = 60.0  # how long to ask the API whether the slice is there
LEAST_LEFT_S = 30.0  # with less time than this, the slice may reach its deadline before the next run moves that
_KIND = attrgetter("accelerator_type", "runtime_version", "provisioning", "spot", "name.project", "name.zone")
_SLICE_IS_FINE = (errors.PayloadFailed, errors.DeadlineExceeded, errors.ArtifactError)  # after these errors of a run


async def use_held(job: JobRun, held: Lease, capabilities: Capabilities, progress: JobProgress) -> Lease | None:
    """Return the held slice, locked, for this run; None, and why is reported, if the run needs one of its own."""
    why_not = await _why_unusable(held)
    if why_not is None and held.held_for is HeldFor.FAILURE:
        why_not = await _take_held(job.run.id, held, capabilities, progress)
        if progress.owed.lease is not None:
            await Report("ready", f"{held.name.node} ({held.handle}, held since this job failed on it)")
            return progress.owed.lease
    elif why_not is None:
        await Report("ready", f"{held.name.node} ({held.handle}, held by `tpujob up`)")
        return held
    await Report("plan", f"{held.handle} {why_not}: this run creates a slice of its own")
    return None


async def _why_unusable(lease: Lease) -> str | None:
    """Lock the held slice and return None, or return why the job cannot run on it."""
    view = await retry.until(await Now() + 60, Get(lease.name))
    if view is None:
        return "does not exist any more"
    if view.state is SliceState.STOPPED:
        return f"is {view.native_state} (`tpujob start {lease.handle}` starts it)"
    if view.state is not SliceState.READY:
        return f"is {view.native_state}"
    return None if await Lock(lease.id) else "is busy with another command"


async def _take_held(run: str, held: Lease, capabilities: Capabilities, progress: JobProgress) -> str | None:
    """Make the slice, which is locked, one that this run has to release. Return why that cannot be.

    It stays held while the job runs, for one time to live ahead: if this process dies, the slice ends as a held one does.
    """
    now = await Now()
    until = max(held.hold_until or now, now + capabilities.timings.ttl_s)
    try:
        lease = await move_claim(held, HeldUntil(held.id, now, until, HeldFor.FAILURE, run), capabilities)
    except errors.CloudError as error:
        await Unlock(held.id)
        return f"cannot be taken over ({error.message})"
    progress.owed.lease, progress.taken_over_at = lease, now
    await try_start_guardian()
    return None


def is_borrowed(job: JobRun, progress: JobProgress) -> bool:
    """Whether the attempt works on a held slice that stays (`tpujob up`), not on one that it has taken over."""
    if job.held is None or progress.taken_over_at is not None:
        return False
    return progress.lease is not None and progress.lease.id == job.held.id


async def leave_held(stay: Stay, progress: JobProgress) -> None:
    """Stop the job on the slice of `tpujob up`, which stays."""
    assert progress.lease is not None
    lease = await ReadLease(progress.lease.id)
    was_canceled = isinstance(progress.error, errors.Canceled)
    run_alone = was_canceled and lease.state is LeaseState.READY  # not its slice
    lost = isinstance(progress.error, errors.Vanished | errors.SliceLost) and not run_alone
    if progress.crew is not None and progress.error is not None and not lost:
        await stay.stop(progress.lease, progress.crew)
    progress.lease = await ReadLease(lease.id)
    if progress.lease.state is LeaseState.READY and not lost:
        progress.owed.kept_until = progress.lease.hold_until
    await Unlock(progress.lease.id)


async def take_over(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> Lease | None:
    """Return the slice of the run before, claimed for this one; None if it does not fit any more and is proven gone.

    Raises TeardownUnproven if it is not proven gone.
    """
    lease = progress.owed.lease
    assert lease is not None
    try:
        draft = await _fitting(job, lease)
        life_s = draft.lease.deadline - draft.lease.created_at
        event = HandedToNextRun(
            lease.id, now := await Now(), job.run.id, draft.lease.handle, now + life_s, draft.lease.budget_usd
        )
        taken = progress.owed.lease = await move_claim(lease, event, capabilities)
        progress.taken_over_at = now
        await Report("ready", f"{lease.name.node}, the slice of the run before")
        return taken
    except errors.CloudError as error:
        why_not = error.message
    await Report("plan", f"{lease.name.node} {why_not}: this run creates another slice")
    if progress.crew is not None:
        await Disconnect(progress.crew)
    progress.crew = None
    await release_owed(progress.owed, capabilities, f"it {why_not}")
    if progress.owed.unproven:
        raise errors.TeardownUnproven(f"{lease.name.node} is not proven gone, so no other slice is created")
    await UnmaskSignals()
    return None


async def _fitting(job: JobRun, lease: Lease) -> Draft:
    """Return the candidate of the job that the slice stands for. Raises CloudError with what is wrong with the slice."""
    draft = next((draft for draft in job.stay.drafts if _KIND(draft.lease) == _KIND(lease)), None)
    if draft is None:
        raise errors.CloudError("is not what this job asks for")
    now = await Now()
    life_s = draft.lease.deadline - draft.lease.created_at
    if lease.provisioning == Provisioning.FLEX_START and lease.deadline - now < life_s:
        raise errors.CloudError("is ended by the cloud before this job could be done")
    view = await retry.until(now + LOOK_S, Get(lease.name))
    if view is None:
        raise errors.CloudError("does not exist any more")
    if view.state is not SliceState.READY:
        raise errors.CloudError(f"is {view.native_state}")
    return draft


async def tell_end(job: JobRun, progress: JobProgress) -> None:
    """Tell the lane that the job has ended, before its slice is released or passed on. What fails there delays neither."""
    if job.lane is None or job.lane.ended is None or progress.detached:
        return
    try:
        await Make(partial(job.lane.ended, progress.state, progress.error))
    except errors.TpujobError as error:
        await Report("warning", error.message)


async def pass_on(job: JobRun, progress: JobProgress) -> bool:
    """Leave the slice to the next run, if there is one and the slice is fine; return whether."""
    lane, lease = job.lane, progress.owed.lease
    if lane is None or lease is None or progress.crew is None or progress.lease is None:
        return False
    if progress.is_bug or not (progress.error is None or isinstance(progress.error, _SLICE_IS_FINE)):
        return False
    if progress.collected is None or progress.collected.uncollected:
        return False  # the slice is held for these results, or they were lost in a way that may concern it
    lease = await latest_lease(lease)
    left_s = lease.deadline - await Now()
    is_ours = lease.mode is Mode.RUN or (lease.mode, lease.purpose) == (Mode.DETACHED, Purpose.QUEUE)
    if lease.state is not LeaseState.READY or not is_ours or left_s < LEAST_LEFT_S:
        return False
    try:
        follows = await Make(lane.reserve_next)
    except errors.TpujobError as error:  # of a store that does not answer: the slice is released
        await Report("warning", error.message)
        return False
    if not follows:
        return False
    lane.lease, lane.losers, lane.crew = lease, progress.owed.losers, progress.crew
    lane.collected = progress.attempt.id
    progress.owed.lease, progress.owed.losers, progress.crew = None, [], None
    progress.passed_on = True
    return True
