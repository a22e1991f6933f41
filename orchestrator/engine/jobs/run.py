"""Run a job: attempt after attempt, as often as it may be restarted, and every slice released, proven.

The attempt and the lease are two lives. What happens to the attempt, success, failure, signal or bug, is caught once and
becomes its outcome; then the lease is released all the same, and the release's verdict is the last word.
"""

from __future__ import annotations

from orchestrator.core.lease.attempt import Attempt, AttemptEnded, AttemptState, Began, Leased
from orchestrator.core.lease.lease import LeaseState
from orchestrator.core.lease.slices import Capabilities
from orchestrator.engine.effects.base import Lock, Now, ReadLease, Record, Report, Shield, Unlock
from orchestrator.engine.effects.workers import Disconnect
from orchestrator.engine.jobs import monitor
from orchestrator.engine.jobs.attempt import attempt
from orchestrator.engine.jobs.collection import keep_what_waits
from orchestrator.engine.jobs.job_run import JobRun, Loss, Outcome
from orchestrator.engine.leases.obligations import keep, release_owed
from orchestrator.engine.leases.release import as_written, note
from orchestrator.errors import (
    ArtifactError,
    CloudError,
    DeadlineExceeded,
    Interrupted,
    PayloadFailed,
    RemoteError,
    SliceLost,
    TeardownUnproven,
    TpujobError,
    Vanished,
)


async def run_job(job: JobRun, capabilities: Capabilities) -> Outcome:
    """Never raises a TpujobError: whatever happens is in the outcome, and the slice is released (or said not to be)."""
    outcome = Outcome(job.run, job.attempt, started_at=await Now())
    await Lock(job.attempt.id)
    await Record(Began(job.run, job.attempt))
    try:
        while not await _tried(job, capabilities, outcome):
            pass
        outcome.state = AttemptState.RUNNING if outcome.detached else AttemptState.SUCCEEDED
    except TpujobError as error:
        outcome.error = error
        outcome.state = state_after(error)
    except Exception as error:  # a bug of ours must not leave a slice behind either
        outcome.error = TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint="please report it")
        outcome.error.__cause__ = error
        outcome.state = AttemptState.ERROR
    await _end(job, capabilities, outcome)
    return outcome


async def _tried(job: JobRun, capabilities: Capabilities, outcome: Outcome) -> bool:
    """One attempt. False: its slice was lost, and another attempt may be made."""
    try:
        await _attempt(job, capabilities, outcome)
    except SliceLost as lost:
        borrowed = job.held is not None and outcome.lease is not None and outcome.lease.id == job.held.id
        if borrowed or len(outcome.losses) >= job.max_restarts:
            raise
        await _start_over(job, capabilities, outcome, lost)
        return False
    return True


async def _attempt(job: JobRun, capabilities: Capabilities, outcome: Outcome) -> None:
    """A worker that does not answer cannot say why. If its slice was taken away, the API knows."""
    try:
        await attempt(job, capabilities, outcome)
    except RemoteError as error:
        if outcome.lease is not None:
            try:
                await monitor.check_slice(outcome.lease)
            except SliceLost as lost:
                raise lost from error
            except CloudError:
                pass  # no answer, or somebody else deleted it
        raise


async def _start_over(job: JobRun, capabilities: Capabilities, outcome: Outcome, lost: SliceLost) -> None:
    """What is left of the slice is proven gone, and written down, before anything is asked for again."""
    await Shield()
    await outcome.enter("release")
    now = await Now()
    if outcome.fleet is not None:
        await Disconnect(outcome.fleet)
    outcome.fleet = None
    await Report("lost", f"{lost.reason}: {lost.message}")
    await release_owed(outcome.owed, capabilities, lost.message)
    if outcome.owed.unproven:
        raise TeardownUnproven(f"{lost.message}, and what is left of it is not proven gone") from lost
    ended = AttemptEnded(
        outcome.attempt.id,
        now,
        AttemptState.INTERRUPTED,
        detail=lost.message,
        exit_code=lost.exit_code,
        cause=lost.reason,
    )
    await note(ended)
    await Unlock(outcome.attempt.id)
    await _count(job, outcome, lost, now)
    number = len(outcome.losses) + 1
    outcome.attempt = Attempt(f"{job.run.id}-{number}", job.run.id)
    await Lock(outcome.attempt.id)
    await Record(Began(job.run, outcome.attempt, await Now()))
    await Shield(raised=False)
    await outcome.enter("wait")
    await Report("restart", f"attempt {number} of at most {job.max_restarts + 1}")


async def _count(job: JobRun, outcome: Outcome, lost: SliceLost, lost_at: float) -> None:
    """What the attempt used up of the job's time and money."""
    released = outcome.owed.released
    lease = outcome.lease or (released.lease if released is not None else None)
    outcome.lease = None
    if lease is not None:
        deadline, lease = lease.deadline, await as_written(lease)
        extended_s = lease.deadline - deadline  # a person gave the run more time, not that slice
        outcome.used_s += max(lost_at - (lease.ready_at or lost_at), 0.0) - extended_s
        billed_s = (lease.gone_at or lost_at) - (lease.billed_from or lost_at)
        outcome.spent_usd += (lease.usd_per_hour or 0.0) * max(billed_s, 0.0) / 3600
    outcome.losses.append(Loss(outcome.attempt, lease, lost.reason, lost_at))


def state_after(error: TpujobError) -> AttemptState:
    """What an attempt that ended with this error is called."""
    if isinstance(error, PayloadFailed | DeadlineExceeded | ArtifactError):
        return AttemptState.FAILED
    return AttemptState.INTERRUPTED if isinstance(error, Interrupted | Vanished | SliceLost) else AttemptState.ERROR


async def _end(job: JobRun, capabilities: Capabilities, outcome: Outcome) -> None:
    """Release before anything else: a person who pressed Ctrl-C wants the delete on the wire now."""
    await Shield()
    await outcome.enter(None)
    borrowed = job.held is not None and outcome.lease is not None and outcome.lease.id == job.held.id
    if borrowed:
        await _give_back(outcome)
    elif outcome.error is None and job.keep_s is not None and not outcome.detached:
        try:
            await keep(outcome.owed, await Now() + job.keep_s, capabilities)
        except TpujobError as error:
            outcome.error, outcome.state = error, state_after(error)
    elif not outcome.detached:
        await keep_what_waits(outcome, job.linger_s, capabilities)
    if outcome.detached:
        outcome.owed.lease = None  # the job on the VM has the claim now, not this process
    if outcome.fleet is not None:
        await Disconnect(
            outcome.fleet
        )  # signs of life end with the claim: if we cannot delete, the switch on the VM can
    if outcome.owed.lease is not None or outcome.owed.losers:
        await release_owed(
            outcome.owed, capabilities, "the run ended" if outcome.error is None else outcome.error.message
        )
    await _write_down(job, outcome)


async def _write_down(job: JobRun, outcome: Outcome) -> None:
    """What became of the attempt. Trouble with the ledger is said, and changes neither result nor exit code."""
    outcome.spans["release"] = outcome.owed.release_s
    outcome.ended_at = await Now()
    if outcome.lease is None and outcome.owed.released is not None:
        outcome.lease = outcome.owed.released.lease  # it never became READY, but it was there
        await note(Leased(outcome.attempt.id, outcome.ended_at, outcome.lease.id))
    if outcome.detached:
        assert outcome.lease is not None
        await Unlock(outcome.lease.id)
        await Unlock(outcome.attempt.id)
        return
    rc = outcome.error.rc if isinstance(outcome.error, PayloadFailed) else None
    detail = outcome.error.message if outcome.error else ""
    ended = AttemptEnded(
        outcome.attempt.id, outcome.ended_at, outcome.state, rc=rc, detail=detail, exit_code=outcome.own_code
    )
    await note(ended)
    await Unlock(outcome.attempt.id)


async def _give_back(outcome: Outcome) -> None:
    """A slice that `up` brought stays, but without our job on it."""
    assert outcome.lease is not None
    lost = isinstance(outcome.error, Vanished | SliceLost)
    if outcome.fleet is not None and outcome.error is not None and not lost:
        await monitor.stop(outcome.fleet, outcome.lease)
    outcome.lease = await ReadLease(outcome.lease.id)
    if outcome.lease.state is LeaseState.READY and not lost:
        outcome.owed.kept_until = outcome.lease.hold_until
    await Unlock(outcome.lease.id)
