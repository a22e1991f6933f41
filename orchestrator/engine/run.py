"""Run a job: lease → workers → ship → setup → job → artifacts → release, proven.

The attempt and the lease are two lives. What happens to the attempt, success, failure, signal or bug, is caught once and
becomes its outcome; then the lease is released all the same, and the release's verdict is the last word.
"""

from __future__ import annotations

from orchestrator.core.attempt import AttemptState, Began, Ended, Leased, Moved
from orchestrator.core.lease import Lease, LeaseState, Mode
from orchestrator.core.slices import Capabilities, SliceState, WorkerAddress
from orchestrator.engine import retry, work
from orchestrator.engine.claim import Upkeep, await_armed, hand_over
from orchestrator.engine.cloud_effects import Get, Workers
from orchestrator.engine.effects import Claim, Disclaim, Now, ReadLease, Record, Shield, Tell
from orchestrator.engine.job_run import JobRun, Outcome
from orchestrator.engine.release import note
from orchestrator.engine.tenure import Tenure, first_available, keep, let_go
from orchestrator.engine.worker_effects import Beat, Connect, Hangup, Meet, Push, StartPhase
from orchestrator.errors import (
    ArtifactError,
    DeadlineExceeded,
    Interrupted,
    PayloadFailed,
    Preempted,
    TpujobError,
    Vanished,
)

CONNECT_S = 300.0  # sshd of a fresh VM may take minutes to come up


async def run_job(job: JobRun, can: Capabilities) -> Outcome:
    """Never raises a TpujobError: whatever happens is in the outcome, and the slice is released (or said not to be)."""
    outcome = Outcome(job.run, started_at=await Now())
    await Claim(job.attempt.id)
    await Record(Began(job.run, job.attempt))
    try:
        await _attempt(job, can, outcome)
        outcome.state = AttemptState.RUNNING if outcome.detached else AttemptState.SUCCEEDED
    except TpujobError as error:
        outcome.error = error
        outcome.state = state_after(error)
    except Exception as error:  # a bug of ours must not leave a slice behind either
        outcome.error = TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint="please report it")
        outcome.error.__cause__ = error
        outcome.state = AttemptState.ERROR
    await _end(job, can, outcome)
    return outcome


def state_after(error: TpujobError) -> AttemptState:
    """What an attempt that ended with this error is called."""
    if isinstance(error, PayloadFailed | DeadlineExceeded | ArtifactError):
        return AttemptState.FAILED
    return AttemptState.INTERRUPTED if isinstance(error, Interrupted | Vanished) else AttemptState.ERROR


async def _end(job: JobRun, can: Capabilities, outcome: Outcome) -> None:
    """Release before anything else: a person who pressed Ctrl-C wants the delete on the wire now."""
    await Shield()
    await outcome.enter(None)
    borrowed = job.held is not None and outcome.lease is not None and outcome.lease.id == job.held.id
    if borrowed:
        await _give_back(outcome)
    elif outcome.error is None and job.keep_s is not None and not outcome.detached:
        try:
            await keep(outcome.tenure, await Now() + job.keep_s, can)
        except TpujobError as error:
            outcome.error, outcome.state = error, state_after(error)
    if outcome.detached:
        outcome.tenure.lease = None  # the job on the VM has the claim now, not this process
    if outcome.fleet is not None:
        await Hangup(outcome.fleet)  # signs of life end with the claim: if we cannot delete, the switch on the VM can
    if not outcome.detached and not borrowed and outcome.tenure.kept_until is None:
        await let_go(outcome.tenure, can, "the run ended" if outcome.error is None else outcome.error.message)
    await _write_down(job, outcome)


async def _write_down(job: JobRun, outcome: Outcome) -> None:
    """What became of the attempt. Trouble with the ledger is said, and changes neither result nor exit code."""
    outcome.spans["release"] = outcome.tenure.release_s
    outcome.ended_at = await Now()
    if outcome.lease is None and outcome.tenure.released is not None:
        outcome.lease = outcome.tenure.released.lease  # it never became READY, but it was there
        await note(Leased(job.attempt.id, outcome.ended_at, outcome.lease.id))
    if outcome.detached:
        assert outcome.lease is not None
        await Disclaim(outcome.lease.id)
        await Disclaim(job.attempt.id)
        return
    rc = outcome.error.rc if isinstance(outcome.error, PayloadFailed) else None
    detail = outcome.error.message if outcome.error else ""
    ended = Ended(job.attempt.id, outcome.ended_at, outcome.state, rc=rc, detail=detail, exit_code=outcome.own_code)
    await note(ended)
    await Disclaim(job.attempt.id)


async def _give_back(outcome: Outcome) -> None:
    """A slice that `up` brought stays, but without our job on it."""
    assert outcome.lease is not None
    lost = isinstance(outcome.error, Vanished | Preempted)
    if outcome.fleet is not None and outcome.error is not None and not lost:
        await work.stop(outcome.fleet, outcome.lease)
    outcome.lease = await ReadLease(outcome.lease.id)
    if outcome.lease.state is LeaseState.READY and not lost:
        outcome.tenure.kept_until = outcome.lease.hold_until
    await Disclaim(outcome.lease.id)


async def _attempt(job: JobRun, can: Capabilities, outcome: Outcome) -> None:
    began = await Now()
    await outcome.enter("wait")
    lease = outcome.lease = await _obtain(job, can, outcome.tenure)
    ready_at = await Now()
    await Record(Leased(job.attempt.id, ready_at, lease.id))
    await outcome.enter("connect")
    end = work.end_of(lease, began, job.max_duration_s)
    await Tell("connect", f"waiting for SSH on {lease.name.node}", passing=True)
    patience_s = max(min(CONNECT_S, lease.deadline - ready_at), 1.0)  # nobody waits past the slice's own end
    workers = await retry.until(ready_at + patience_s, Workers(lease.name))
    outcome.fleet = await Connect(lease, workers, patience_s)
    if lease.mode is Mode.RUN:
        await Beat(outcome.fleet, can.pace.beat_s)
    await _work(job, can, outcome, lease, workers, end)


async def _obtain(job: JobRun, can: Capabilities, tenure: Tenure) -> Lease:
    """The slice to work on: the one that `up` brought, if it is READY and free, else the first candidate that exists."""
    if job.held is not None:
        if await _usable(job.held):
            await Tell("ready", f"{job.held.name.node} ({job.held.handle}, brought by `tpujob up`)")
            return job.held
        await Tell("plan", f"{job.held.handle} is not ready or busy: this run takes a slice of its own")
    return await first_available(job.drafts, can, tenure)


async def _usable(lease: Lease) -> bool:
    view = await retry.until(await Now() + 60, Get(lease.name))
    return view is not None and view.state is SliceState.READY and await Claim(lease.id)


async def _work(
    job: JobRun, can: Capabilities, outcome: Outcome, lease: Lease, workers: tuple[WorkerAddress, ...], end: work.End
) -> None:
    fleet = outcome.fleet
    assert fleet is not None
    upkeep = Upkeep(lease, len(workers), can, await Now())
    if job.detach:
        await await_armed(lease, len(workers), can)
    if job.bundle is not None:
        await outcome.enter("ship")
        shipped = await Push(fleet, job.bundle)
        await outcome.enter("connect")
        size = f"{job.bundle.size_bytes / 1000:,.0f} KB"
        there = "" if shipped else " (was there already)"
        await Tell(
            "ship", f"{size} → {len(workers)} worker{'s'[: len(workers) > 1]} in {outcome.spans['ship']:.1f} s{there}"
        )
    meet = await Meet(fleet)
    meeting_point = f"{meet.address}:{meet.free_port}"
    failure: TpujobError | None = None
    for phase in job.phases:
        await outcome.enter(phase.name)
        await Record(Moved(job.attempt.id, await Now(), phase.state))
        await StartPhase(fleet, phase.request(lease, len(workers), meeting_point), job.sink)
        if job.detach and phase is job.phases[-1]:
            outcome.lease = await hand_over(lease, can)
            outcome.detached = True
            return
        try:
            await work.follow(lease, fleet, phase.name, end, upkeep)
        except (PayloadFailed, DeadlineExceeded) as error:
            failure = error
        if failure is not None:
            break
    await upkeep.turn()
    await outcome.enter("collect")
    await Record(Moved(job.attempt.id, await Now(), AttemptState.COLLECTING))
    outcome.collected = await work.collect(lease, fleet, job.directory, job.artifacts)
    if failure is not None:
        raise failure
    work.check_collected(outcome.collected)
