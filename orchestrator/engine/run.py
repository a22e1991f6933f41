"""Run a job: lease → workers → ship → setup → job → artifacts → release, proven.

The attempt and the lease are two lives. What happens to the attempt, success, failure, signal or bug, is caught once and
becomes its outcome; then the lease is released all the same, and the release's verdict is the last word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.attempt import AttemptState, Began, Ended, Leased, Moved
from orchestrator.core.lease import Lease, LeaseState
from orchestrator.core.slices import Capabilities, SliceState, WorkerAddress
from orchestrator.engine import retry
from orchestrator.engine.cloud_effects import Get, Workers
from orchestrator.engine.effects import Claim, Disclaim, Now, ReadLease, Record, Shield, Tell
from orchestrator.engine.job_run import JobRun, Outcome
from orchestrator.engine.release import note
from orchestrator.engine.tenure import Tenure, first_available, keep, let_go
from orchestrator.engine.worker_effects import Collect, Connect, Hangup, Meet, Push, StartPhase, StopPhase, Watch
from orchestrator.errors import (
    ArtifactError,
    CloudUnavailable,
    DeadlineExceeded,
    Interrupted,
    PayloadFailed,
    Preempted,
    RemoteError,
    TpujobError,
    Vanished,
)

if TYPE_CHECKING:
    from orchestrator.remote.fleet import Fleet, FleetStatus

CONNECT_S = 300.0  # sshd of a fresh VM may take minutes to come up
COLLECT_S = 30 * 60.0
STOP_GRACE_S = 10.0
WATCH_S = 2.0
LOOK_S = 15.0  # how often the API is asked whether the slice is still there, while SSH is silent about it
SILENT_S = 600.0  # a worker that cannot be reached for so long is lost
LAST_MINUTE_S = 60.0  # kept free before the deadline, to stop the job and save what it made


async def run_job(job: JobRun, can: Capabilities) -> Outcome:
    """Never raises a TpujobError: whatever happens is in the outcome, and the slice is released (or said not to be)."""
    outcome = Outcome(job.run, started_at=await Now())
    await Claim(job.attempt.id)
    await Record(Began(job.run, job.attempt))
    try:
        await _attempt(job, can, outcome)
        outcome.state = AttemptState.SUCCEEDED
    except TpujobError as error:
        outcome.error = error
        outcome.state = _state_after(error)
    except Exception as error:  # a bug of ours must not leave a slice behind either
        outcome.error = TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint="please report it")
        outcome.error.__cause__ = error
        outcome.state = AttemptState.ERROR
    await _end(job, can, outcome)
    return outcome


def _state_after(error: TpujobError) -> AttemptState:
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
    elif outcome.error is None and job.keep_s is not None:
        try:
            await keep(outcome.tenure, await Now() + job.keep_s)
        except TpujobError as error:
            outcome.error, outcome.state = error, _state_after(error)
    if not borrowed and outcome.tenure.kept_until is None:
        await let_go(outcome.tenure, can, "the run ended" if outcome.error is None else outcome.error.message)
    if outcome.fleet is not None:
        await Hangup(outcome.fleet)
    await _write_down(job, outcome)


async def _write_down(job: JobRun, outcome: Outcome) -> None:
    """What became of the attempt. Trouble with the ledger is said, and changes neither result nor exit code."""
    outcome.spans["release"] = outcome.tenure.release_s
    outcome.ended_at = await Now()
    if outcome.lease is None and outcome.tenure.released is not None:
        outcome.lease = outcome.tenure.released.lease  # it never became READY, but it was there
        await note(Leased(job.attempt.id, outcome.ended_at, outcome.lease.id))
    rc = outcome.error.rc if isinstance(outcome.error, PayloadFailed) else None
    detail = outcome.error.message if outcome.error else ""
    await note(Ended(job.attempt.id, outcome.ended_at, outcome.state, rc=rc, detail=detail))
    await Disclaim(job.attempt.id)


async def _give_back(outcome: Outcome) -> None:
    """A slice that `up` brought stays, but without our job on it."""
    assert outcome.lease is not None
    lost = isinstance(outcome.error, Vanished | Preempted)
    if outcome.fleet is not None and outcome.error is not None and not lost:
        await _stop(outcome.fleet, outcome.lease)
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
    spare_s = min(LAST_MINUTE_S, job.max_duration_s / 10)
    stop_at = min(lease.deadline, began + job.max_duration_s) - spare_s

    await Tell("connect", f"waiting for SSH on {lease.name.node}", passing=True)
    workers = await retry.until(ready_at + CONNECT_S, Workers(lease.name))
    outcome.fleet = await Connect(lease, workers, CONNECT_S)
    await _work(job, outcome, lease, workers, stop_at)


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
    job: JobRun, outcome: Outcome, lease: Lease, workers: tuple[WorkerAddress, ...], stop_at: float
) -> None:
    fleet = outcome.fleet
    assert fleet is not None
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
        try:
            await _follow(lease, fleet, phase.name, stop_at)
        except (PayloadFailed, DeadlineExceeded) as error:
            failure = error
        if failure is not None:
            break
    await _collect(job, fleet, outcome)
    if failure is not None:
        raise failure
    if outcome.collected is not None and outcome.collected.problems:
        first = outcome.collected.problems[0]
        raise ArtifactError(
            f"{len(outcome.collected.problems)} artifacts were refused or damaged: {first}",
            hint="the others are in the run's directory",
        )


async def _collect(job: JobRun, fleet: Fleet, outcome: Outcome) -> None:
    await outcome.enter("collect")
    await Record(Moved(job.attempt.id, await Now(), AttemptState.COLLECTING))
    await Tell("collect", "bringing the artifacts home", passing=True)
    outcome.collected = await Collect(fleet, job.directory, job.artifacts, COLLECT_S)


async def _follow(lease: Lease, fleet: Fleet, phase: str, stop_at: float) -> None:
    """Until the phase ended on every worker. One that fails ends all; the end of a log stream ends nothing."""
    looked_at = await Now()
    while True:
        status = await Watch(fleet, WATCH_S)
        if status.failed:
            await _stop(fleet, lease)
            raise _payload_failed(status, phase)
        if status.all_succeeded:
            return
        now = await Now()
        if now >= stop_at:
            await _stop(fleet, lease)
            raise DeadlineExceeded(
                "the job reached limits.max_duration and was stopped", hint="raise limits.max_duration"
            )
        silent_s = status.silent_s(now)
        if now - looked_at >= (LOOK_S if silent_s == 0 else WATCH_S):
            looked_at = now
            await _still_ours(lease)
        if silent_s > SILENT_S:
            raise RemoteError(
                f"a worker of {lease.name.node} cannot be reached since {silent_s:.0f} s, though the API lists it"
            )


async def _stop(fleet: Fleet, lease: Lease) -> None:
    """A worker that cannot be told to stop must not hide why it should."""
    try:
        await StopPhase(fleet, STOP_GRACE_S)
    except RemoteError as error:
        await Tell("warning", f"the job may still be running on {lease.name.node}: {error.message}")


async def _still_ours(lease: Lease) -> None:
    """Is the slice still there, and still wanted? (Another terminal may have said `tpujob down`.)"""
    if (await ReadLease(lease.id)).state in (LeaseState.DOWN, LeaseState.GONE):
        raise Vanished(f"{lease.name.node} was released by another tpujob command")
    try:
        view = await Get(lease.name)
    except CloudUnavailable:
        return
    if view is None:
        raise Vanished(f"{lease.name.node} was deleted by somebody else while the job was running")
    if view.state is SliceState.TOMBSTONE:
        raise Preempted(f"{lease.name.node} was taken away while the job was running ({view.native_state})")
    if view.state in (SliceState.STOPPED, SliceState.STOPPING, SliceState.DELETING):
        raise Vanished(f"{lease.name.node} is {view.native_state} though the job is running")


def _payload_failed(status: FleetStatus, phase: str) -> PayloadFailed:
    worker, rc = status.first_failure
    what = "the setup" if phase == "setup" else "the job"
    hint = f"the last lines of worker{worker} are above; `tpujob logs` shows them again"
    if rc is None:
        return PayloadFailed(f"{what} on worker{worker} was lost: its supervisor is gone", rc=63, hint=hint)
    return PayloadFailed(f"{what} failed on worker{worker} with code {rc}", rc=rc, hint=hint)
