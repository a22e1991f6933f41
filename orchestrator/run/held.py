"""A slice that is there already: of `tpujob up`, or of this job since it failed. May this run use it?"""

from __future__ import annotations

from orchestrator.core.lease.cloud_api import Capabilities, SliceState
from orchestrator.core.lease.lease import Held, HeldFor, Lease, LeaseState
from orchestrator.engine.effects.base import Lock, Now, ReadLease, Report, Unlock
from orchestrator.engine.effects.cloud import Get
from orchestrator.engine.leases.release import try_start_guardian
from orchestrator.engine.leases.renewal import move_claim
from orchestrator.engine.runtime import retry
from orchestrator.errors import Canceled, CloudError, SliceLost, Vanished
from orchestrator.places.place import Stay
from orchestrator.run.job_run import JobRun
from orchestrator.run.progress import JobProgress


async def use_held(job: JobRun, held: Lease, capabilities: Capabilities, progress: JobProgress) -> Lease | None:
    """Return the held slice, locked, for this run; None, and why is reported, if the run needs one of its own."""
    why_not = await _why_unusable(held)
    if why_not is None and held.held_for is HeldFor.FAILURE:
        why_not = await _take_held(held, capabilities, progress)
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


async def _take_held(held: Lease, capabilities: Capabilities, progress: JobProgress) -> str | None:
    """Make the slice, which is locked, one that this run has to release. Return why that cannot be.

    It stays held while the job runs, for one time to live ahead: if this process dies, the slice ends as a held one does.
    """
    now = await Now()
    until = max(held.hold_until or now, now + capabilities.timings.ttl_s)
    try:
        lease = await move_claim(held, Held(held.id, now, until, HeldFor.FAILURE), capabilities)
    except CloudError as error:
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
    run_alone = isinstance(progress.error, Canceled) and lease.state is LeaseState.READY  # was canceled, not its slice
    lost = isinstance(progress.error, Vanished | SliceLost) and not run_alone
    if progress.crew is not None and progress.error is not None and not lost:
        await stay.stop(progress.lease, progress.crew)
    progress.lease = await ReadLease(lease.id)
    if progress.lease.state is LeaseState.READY and not lost:
        progress.owed.kept_until = progress.lease.hold_until
    await Unlock(progress.lease.id)
