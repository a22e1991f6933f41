"""The work on a slice that is there: phases followed to their end, the slice watched meanwhile.

Shared by a run and by an `attach` to a detached one. What comes after it is in `engine.jobs.collection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator.core.lease.lease import Lease, LeaseState
from orchestrator.core.lease.slices import SliceState, SliceView
from orchestrator.core.text.durations import format_duration
from orchestrator.engine.effects.base import Now, ReadLease, Report
from orchestrator.engine.effects.cloud import Get, GetGuestAttributes
from orchestrator.engine.effects.workers import StopPhase, WaitForWorkers
from orchestrator.engine.leases.release import as_written
from orchestrator.errors import (
    CloudError,
    CloudUnavailable,
    DeadlineExceeded,
    PayloadFailed,
    Preempted,
    RemoteError,
    SliceLost,
    Vanished,
)

if TYPE_CHECKING:
    from orchestrator.remote.fleet.fleet import Fleet, FleetStatus

STOP_GRACE_S = 10.0
WATCH_S = 2.0
LOOK_S = 15.0  # how often the API is asked whether the slice is still there, while SSH is silent about it
SILENT_S = 600.0  # a worker that cannot be reached for so long is lost
ILL_S = 60.0  # a worker is silent and the API says that the slice is not well: it may come back
NOTICE = "tpujob/notice"  # published by the switch when its VM is about to be taken away
SUSPENDING = "SUSPENDING"  # a queued request whose node the cloud has taken: on its way to SUSPENDED
TOLD_BEFORE_S = (7200.0, 1800.0)  # the end is announced
LAST_MINUTE_S = 60.0  # kept free before the deadline, to stop the job and save what it made


@dataclass(frozen=True, slots=True)
class End:
    """When the work is stopped, and what ran out."""

    at: float
    why: str = "limits.max_duration"


def end_of(lease: Lease, began: float, max_duration_s: float) -> End:
    """Early enough to save what the job made before the slice has to go."""
    own_end = began + max_duration_s
    spare_s = min(LAST_MINUTE_S, (min(lease.deadline, own_end) - began) / 10)
    if lease.deadline >= own_end or lease.budget_usd is None:
        return End(min(lease.deadline, own_end) - spare_s)
    return End(lease.deadline - spare_s, "limits.max_cost")


class PeriodicTask(Protocol):
    """What else has to be done while a job runs, a little at a time."""

    async def tick(self, silent_s: float = 0.0) -> None:
        """`silent_s`: for so long a worker has not answered."""


async def monitor(
    lease: Lease,
    fleet: Fleet,
    phase: str,
    end: End,
    tasks: Sequence[PeriodicTask] = (),
    *,
    stall_s: float | None = None,
) -> None:
    """Until the phase ended on every worker. One that fails ends all; the end of a log stream ends nothing.

    A job that prints nothing for `stall_s` hangs. Raises SliceLost for all that is not the job's own fault.
    """
    looked_at = printed_at = await Now()
    printed = -1
    ill_since: float | None = None
    last_s = end.at - looked_at  # nobody needs to hear of the two hours that a short job never had
    extended_s = 0.0  # by `tpujob extend` in another terminal
    while True:
        status = await WaitForWorkers(fleet, WATCH_S)
        if status.failed:
            await stop(fleet, lease)
            await classify_failure(lease, status)
            raise _payload_failed(status, phase)
        if status.all_succeeded:
            return
        now = await Now()
        if status.log_bytes != printed:
            printed, printed_at = status.log_bytes, now
        elif stall_s is not None and now - printed_at > stall_s:
            await stop(fleet, lease)
            raise SliceLost(
                f"the job printed nothing for {format_duration(stall_s)} and was stopped",
                reason="hung",
                still_there=True,
            )
        left_s = end.at + extended_s - now
        if any(left_s <= mark_s < last_s for mark_s in TOLD_BEFORE_S):
            text = f"{format_duration(left_s)} until {end.why}; `tpujob extend {lease.handle} --by 2h` moves the end"
            await Report("limit", text)
        last_s = left_s
        if now >= end.at + extended_s:  # perhaps it was extended a moment ago
            extended_s = (await as_written(lease)).deadline - lease.deadline
        if now >= end.at + extended_s:
            await stop(fleet, lease)
            raise DeadlineExceeded(f"the job reached {end.why} and was stopped", hint=f"raise {end.why}")
        silent_s = status.silent_s(now)
        for chore in tasks:
            await chore.tick(silent_s)
        if now - looked_at >= (LOOK_S if silent_s == 0 else WATCH_S):
            looked_at = now
            current, ailment = await check_slice(lease)
            extended_s = current.deadline - lease.deadline
            ill_since = None if ailment is None or silent_s == 0 else ill_since or now
            if ill_since is not None and ailment is not None and now - ill_since > ILL_S:
                raise SliceLost(f"{lease.name.node} is {ailment.words}, and a worker is silent", reason=ailment.reason)
        if silent_s > SILENT_S:
            raise SliceLost(
                f"a worker of {lease.name.node} cannot be reached since {silent_s:.0f} s, though the API lists it",
                reason="unreachable",
            )


async def stop(fleet: Fleet, lease: Lease) -> None:
    """A worker that cannot be told to stop must not hide why it should."""
    try:
        await StopPhase(fleet, STOP_GRACE_S)
    except RemoteError as error:
        await Report("warning", f"the job may still be running on {lease.name.node}: {error.message}")


@dataclass(frozen=True, slots=True)
class SliceProblem:
    """What the API says of a slice that is there and not well."""

    words: str
    reason: str


async def check_slice(lease: Lease) -> tuple[Lease, SliceProblem | None]:
    """The lease as it is now, if the slice is still there and still wanted. (Another terminal may have said `down`.)"""
    current = await ReadLease(lease.id)
    if current.state in (LeaseState.DOWN, LeaseState.GONE, LeaseState.FORGOTTEN):
        raise Vanished(f"{lease.name.node} was released by another tpujob command")
    try:
        view = await Get(lease.name)
    except CloudUnavailable:
        return current, None
    if view is None:
        raise Vanished(f"{lease.name.node} was deleted by somebody else while the job was running")
    if view.state is SliceState.TOMBSTONE or view.native_state == SUSPENDING:
        raise Preempted(f"{lease.name.node} was taken away while the job was running ({view.native_state})")
    if view.state in (SliceState.STOPPED, SliceState.STOPPING, SliceState.DELETING):
        raise Vanished(f"{lease.name.node} is {view.native_state} though the job is running")
    return current, problem_of(view)


def problem_of(view: SliceView) -> SliceProblem | None:
    if "MAINTENANCE" in (view.health or ""):
        return SliceProblem("under maintenance", "maintenance")
    if view.state is SliceState.UNKNOWN:
        return SliceProblem(view.native_state, "host-failure")
    return None


async def classify_failure(lease: Lease, status: FleetStatus) -> None:
    """Raise SliceLost if a failed phase is the slice's doing: the notice of a preemption ends a job before the slice goes."""
    lost = status.first_failure[1] is None
    if not (lost or lease.spot):
        return
    try:
        _, ailment = await check_slice(lease)
        noticed = lease.spot and any(NOTICE in said for said in await GetGuestAttributes(lease.name))
    except SliceLost:
        raise
    except CloudError as error:
        if lost and isinstance(error, Vanished):
            raise
        return  # no answer blames nobody
    if noticed:
        raise Preempted(f"{lease.name.node} is being taken away: its VM was given notice", still_there=True)
    if ailment is not None and lost:
        raise SliceLost(f"{lease.name.node} is {ailment.words}, and the job is gone from it", reason=ailment.reason)


def _payload_failed(status: FleetStatus, phase: str) -> PayloadFailed:
    worker, rc = status.first_failure
    what = "the setup" if phase == "setup" else "the job"
    hint = f"the last lines of worker{worker} are above; `tpujob logs` shows them again"
    if rc is None:
        return PayloadFailed(f"{what} on worker{worker} was lost: its supervisor is gone", rc=63, hint=hint)
    return PayloadFailed(f"{what} failed on worker{worker} with code {rc}", rc=rc, hint=hint)
