"""Run a job: one attempt, or several if it may be restarted, and every slice released, proven.

Attempt and lease end separately. However the attempt ends, by success, failure, signal or bug, becomes the outcome; then the
lease is released in any case, and a release without a proof decides the exit code.
"""

from orchestrator.core.lease.cloud_api import Capabilities
from orchestrator.core.lease.lease import CANCEL, LeaseState, NotAllowed
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptEnded, AttemptState, Began, Continued
from orchestrator.core.lease.saved_state import SavedState
from orchestrator.engine.effects.base import Lock, Now, ReadLease, Record, Report, Shield, Unlock
from orchestrator.engine.effects.workers import DescribeSaved, Disconnect
from orchestrator.engine.leases.obligations import keep_slice, release_owed
from orchestrator.engine.leases.release import latest_lease
from orchestrator.engine.leases.standing import check_slice
from orchestrator.errors import Canceled, CloudError, RemoteError, SliceLost, TeardownUnproven, TpujobError, Vanished
from orchestrator.run import monitor
from orchestrator.run.attempt import attempt
from orchestrator.run.collection import hold_slice
from orchestrator.run.finish import capture, check_canceled, finish
from orchestrator.run.job_run import JobRun
from orchestrator.run.lane import pass_on
from orchestrator.run.progress import JobProgress, Loss, Outcome


async def run_job(job: JobRun, capabilities: Capabilities) -> Outcome:
    """Run the job and release its slices. Raises no TpujobError: whatever happens is in the outcome."""
    progress = JobProgress(job.run, job.attempt)
    await Lock(job.attempt.id)
    await Record(Began(job.run, job.attempt))
    if job.lane is not None:
        job.lane.hand_to(progress)
    await capture(progress, _attempts(job, capabilities, progress))
    await Shield()  # release before anything else: after Ctrl-C the delete leaves now
    await progress.enter(None)
    if _is_borrowed(job, progress):
        await _leave_held_slice(progress)
    elif await pass_on(job, progress):
        pass
    elif progress.error is None and job.keep_s is not None and not progress.detached:
        try:
            await keep_slice(progress.owed, await Now() + job.keep_s, capabilities)
        except TpujobError as error:
            progress.fail(error)
    elif not progress.detached:
        await hold_slice(progress, job.linger_s, capabilities, keep_on_failure_s=job.keep_on_failure_s)
    return await finish(progress, capabilities)


async def _attempts(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> None:
    while not await _tried(job, capabilities, progress):
        pass


def _is_borrowed(job: JobRun, progress: JobProgress) -> bool:
    """Whether the attempt works on a held slice that stays (`tpujob up`), not on one that it has taken over."""
    if job.held is None or progress.taken_over_at is not None:
        return False
    return progress.lease is not None and progress.lease.id == job.held.id


async def _tried(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> bool:
    """Make one attempt; return False when its slice was lost and another attempt may follow."""
    try:
        await _attempt(job, capabilities, progress)
    except SliceLost as lost:
        borrowed = _is_borrowed(job, progress)
        if borrowed or len(progress.losses) >= job.max_restarts:
            if not borrowed and not job.max_restarts and lost.hint is None:
                lost.hint = "with `on_preemption: restart` in its job file, a run goes on with another slice"
            raise
        await _restart(job, capabilities, progress, lost)
        return False
    return True


async def _attempt(job: JobRun, capabilities: Capabilities, progress: JobProgress) -> None:
    """Make one attempt. If workers do not answer because the slice was preempted, raise what the API says of it."""
    try:
        await attempt(job, capabilities, progress)
    except RemoteError as error:
        if progress.lease is not None:
            try:
                await check_slice(progress.lease)
            except SliceLost as lost:
                raise lost from error
            except CloudError:
                pass  # no answer, or another process deleted it
        raise


async def _restart(job: JobRun, capabilities: Capabilities, progress: JobProgress, lost: SliceLost) -> None:
    """Prove the lost slice gone and record it; then begin the next attempt. Raises TeardownUnproven."""
    await Shield()
    await progress.enter("release")
    now = await Now()
    if progress.fleet is not None:
        await Disconnect(progress.fleet)
    progress.fleet = None
    await Report("lost", f"{lost.reason}: {lost.message}")
    await release_owed(progress.owed, capabilities, lost.message)
    await check_canceled(progress)
    if progress.owed.unproven:
        raise TeardownUnproven(f"{lost.message}, and its slice is not proven gone") from lost
    ended = AttemptEnded.by(progress.attempt.id, now, AttemptState.INTERRUPTED, lost, cause=lost.reason)
    number = len(progress.losses) + 2
    following = Attempt(f"{job.run.id}-{number}", job.run.id)
    continues = await _describe_saved(job, progress, following.id, now)
    await Lock(following.id)
    try:  # one transaction: no command may take a run that goes on for one that has ended
        await Record(ended, Began(job.run, following, await Now()), continues)
    except NotAllowed as error:
        raise Canceled(CANCEL) from error
    await Unlock(progress.attempt.id)
    await _count_use(job, progress, lost, now)
    progress.attempt = following
    await Shield(raised=False)
    await progress.enter("wait")
    await Report("restart", f"attempt {number} {continues.text} · at most {job.max_restarts + 1} attempts")


async def _describe_saved(job: JobRun, progress: JobProgress, following: str, lost_at: float) -> Continued:
    """Return from where the next attempt continues."""
    state = SavedState() if job.saved_work is None else await DescribeSaved(job.saved_work)
    saved_s = None if progress.saved_at is None else max(lost_at - progress.saved_at, 0.0)
    train = job.run.spec.train
    text = state.text(saved_s, built_in=train is not None and not train.entry)
    return Continued(following, await Now(), text, state.files, state.size_bytes, state.step, saved_s)


async def _count_use(job: JobRun, progress: JobProgress, lost: SliceLost, lost_at: float) -> None:
    """Add what the attempt used of the job's time and money."""
    released = progress.owed.released
    lease = progress.lease or (released.lease if released is not None else None)
    progress.lease = None
    taken_at, progress.taken_over_at = progress.taken_over_at or 0.0, None  # before that another run used it
    if lease is not None:
        deadline, lease = lease.deadline, await latest_lease(lease)
        extended_s = lease.deadline - deadline  # `tpujob extend` gave that time to the run, not to that slice
        progress.used_s += max(lost_at - max(lease.ready_at or lost_at, taken_at), 0.0) - extended_s
        billed_s = (lease.gone_at or lost_at) - max(lease.billed_from or lost_at, taken_at)
        progress.spent_usd += (lease.usd_per_hour or 0.0) * max(billed_s, 0.0) / 3600
    progress.losses.append(Loss(progress.attempt, lease, lost.reason, lost_at))


async def _leave_held_slice(progress: JobProgress) -> None:
    """Stop the job on the slice of `tpujob up`, which stays."""
    assert progress.lease is not None
    lease = await ReadLease(progress.lease.id)
    run_alone = isinstance(progress.error, Canceled) and lease.state is LeaseState.READY  # was canceled, not its slice
    lost = isinstance(progress.error, Vanished | SliceLost) and not run_alone
    if progress.fleet is not None and progress.error is not None and not lost:
        await monitor.stop(progress.fleet, progress.lease)
    progress.lease = await ReadLease(lease.id)
    if progress.lease.state is LeaseState.READY and not lost:
        progress.owed.kept_until = progress.lease.hold_until
    await Unlock(progress.lease.id)
