"""Restart a run whose slice was lost: the slice is proven gone, the loss is recorded, and the next attempt begins.

The use of the lost slice counts: of the job's time, less what `extend` added to it, and of its money.
"""

from collections.abc import Sequence
from dataclasses import replace

from orchestrator import errors
from orchestrator.hosts.fleet.crew import StartRequest
from orchestrator.hosts.fleet.effects import DescribeSaved, Disconnect
from orchestrator.places.place import Standing
from orchestrator.promise.effects.base import Lock, MaskSignals, Now, Record, Report, Unlock, UnmaskSignals
from orchestrator.promise.lease.changes import AttemptChange, AttemptEnded, Began, Continued, Leased, NotAllowed
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.lease import CANCEL
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, SavedState
from orchestrator.promise.obligations import release_owed
from orchestrator.promise.release import latest_lease
from orchestrator.run.finish import check_canceled
from orchestrator.run.held import is_borrowed
from orchestrator.run.job_run import JobRun
from orchestrator.run.progress import JobProgress, Loss


async def begin(job: JobRun) -> None:
    """Record that the run begins, or which attempt of another process it continues."""
    if job.resumed is None:
        await Record(Began(job.run, job.attempt))
        return
    continues = await _continued(job, job.resumed, job.attempt.id, job.resumed.at)
    # Before its slices were asked for: they count for it.
    began_at = min([continues.at, *(draft.lease.created_at for draft in job.stay.drafts)])
    await Record(Began(job.run, job.attempt, began_at), continues)
    await Report("restart", f"attempt {job.attempt.number} {continues.text}")


def with_saved_work(request: StartRequest, job: JobRun, saved: Sequence[str | None]) -> StartRequest:
    """Return the request with where the workers find what is saved, for `vm.buckets.restore_work`.

    `saved`: the shipments of this machine's copy, by worker.
    """
    resumed = job.resumed is not None and job.resumed.files > 0
    in_bucket = resumed or (job.saved_work is not None and job.saved_work.is_in_bucket)
    if not any(saved) and not in_bucket:
        return replace(request, saved_by_worker=saved)
    source = {"TPUJOB_SAVED_WORK": "client" if any(saved) else "bucket"}
    return replace(request, saved_by_worker=saved, env_by_worker=[{**env, **source} for env in request.env_by_worker])


RESTARTS = "with `on_preemption: restart` in its job file, a run goes on with another slice"


async def goes_on(job: JobRun, capabilities: Capabilities, progress: JobProgress, lost: errors.SliceLost) -> bool:
    """Begin another attempt after the loss of a slice; return False if none may follow. Raises TeardownUnproven, Canceled."""
    if job.stay.starts_again(lost, progress.attempt):
        await await_next_start(progress, lost)
        return True
    borrowed = is_borrowed(job, progress)
    # An attach takes the lease as owed at its end only: a restart before that would not release it.
    attached = job.attached_to is not None
    if not (borrowed or attached) and len(progress.losses) < job.max_restarts:
        await restart(job, capabilities, progress, lost)
        return True
    if not (progress.detached or attached or borrowed or job.max_restarts) and job.stay.traits.held:
        lost.hint = lost.hint or RESTARTS
    return False


async def restart(job: JobRun, capabilities: Capabilities, progress: JobProgress, lost: errors.SliceLost) -> None:
    """Prove the lost slice gone and record it; then begin the next attempt. Raises TeardownUnproven."""
    await MaskSignals()
    await progress.enter("release")
    now = await Now()
    if progress.crew is not None:
        await Disconnect(progress.crew)
    progress.crew = None
    await Report("lost", f"{lost.reason}: {lost.message}")
    await release_owed(progress.owed, capabilities, lost.message)
    await check_canceled(progress)
    if progress.owed.unproven:
        raise errors.TeardownUnproven(f"{lost.message}, and its slice is not proven gone") from lost
    following = _next(progress.attempt)
    continues = await _describe_saved(job, progress, following.id, now)
    await _begin_next(progress, lost, now, Began(job.run, following, await Now()), continues)
    await _count_use(job, progress, lost, now)
    progress.attempt = following
    await UnmaskSignals()
    await progress.enter("wait")
    most = job.attempt.number + job.max_restarts
    await Report("restart", f"attempt {following.number} {continues.text} · at most {most} attempts")


def _next(attempt: Attempt) -> Attempt:
    return Attempt(f"{attempt.run_id}-{attempt.number + 1}", attempt.run_id)


async def _begin_next(
    progress: JobProgress, lost: errors.SliceLost, lost_at: float, began: Began, event: AttemptChange
) -> None:
    """Record that the attempt was lost, and that the next one begins, with one more event of that one."""
    ended = AttemptEnded.by(progress.attempt.id, lost_at, AttemptState.INTERRUPTED, lost, cause=lost.reason)
    await Lock(began.attempt.id)
    try:  # one transaction: no command may take a run that goes on for one that has ended
        await Record(ended, began, event)
    except NotAllowed as error:
        raise errors.Canceled(CANCEL) from error
    await Unlock(progress.attempt.id)


async def await_next_start(progress: JobProgress, lost: errors.SliceLost) -> None:
    """Begin the next attempt of a job that its place starts again by itself."""
    await progress.enter("wait")
    if progress.crew is not None:
        await Disconnect(progress.crew)
    progress.crew = None
    await Report("lost", f"{lost.reason}: {lost.message}")
    await check_canceled(progress)
    await _count_start(progress, lost, await Now())


async def count_starts(job: JobRun, progress: JobProgress, at: Standing) -> None:
    """Record the attempts of a job that its place has started again, unseen, and from where the last one goes on."""
    for start in at.starts[progress.attempt.number :]:
        unseen = errors.Preempted("the cluster took the job away and started it again, while no process followed it")
        await _count_start(progress, unseen, start)
    if progress.follows is not None:
        lost_at, progress.follows = progress.follows, None
        continues = await _describe_saved(job, progress, progress.attempt.id, lost_at)
        await Record(continues)
        await Report("restart", f"attempt {progress.attempt.number} {continues.text}")


async def _count_start(progress: JobProgress, lost: errors.SliceLost, lost_at: float) -> None:
    following, lease = _next(progress.attempt), progress.lease
    assert lease is not None, "the job runs on it"
    began = Began(progress.run, following, lost_at)
    await _begin_next(progress, lost, lost_at, began, Leased(following.id, lost_at, lease.id))
    progress.losses.append(Loss(progress.attempt, lease, lost.reason, lost_at))
    progress.attempt, progress.follows = following, lost_at


async def _describe_saved(job: JobRun, progress: JobProgress, following: str, lost_at: float) -> Continued:
    """Return from where the next attempt continues."""
    state = await job.stay.saved()
    if state is None:
        state = SavedState() if job.saved_work is None else await DescribeSaved(job.saved_work)
    saved_at = progress.saved_at if state.at is None else state.at
    return await _continued(job, state, following, saved_at, lost_at)


async def _continued(
    job: JobRun, state: SavedState, following: str, saved_at: float | None, lost_at: float | None = None
) -> Continued:
    train = job.run.spec.train
    built_in = train is not None and not train.entry
    text = state.text(None if saved_at is None or lost_at is None else max(lost_at - saved_at, 0.0), built_in=built_in)
    saved_at = saved_at if state.is_of_use(built_in=built_in) else None
    return Continued(following, await Now(), text, state.files, state.size_bytes, state.step, saved_at)


async def _count_use(job: JobRun, progress: JobProgress, lost: errors.SliceLost, lost_at: float) -> None:
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
