"""Monitor a phase of a job to its end: its workers over SSH, its slice over the API. A run and an `attach` share it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from orchestrator import errors
from orchestrator.core.lease import access_commands
from orchestrator.core.lease.access import Via
from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.run_and_attempt import RunRecord, WorkerEnd
from orchestrator.core.text.alike import worker_names
from orchestrator.core.text.durations import format_duration
from orchestrator.engine.effects.base import JobClock, Now, Report, Sleep, SliceWorkers
from orchestrator.engine.effects.cloud import GetGuestAttributes
from orchestrator.engine.effects.workers import StopPhase, WaitForWorkers
from orchestrator.engine.leases.cancellation import check_attempt
from orchestrator.engine.leases.standing import LOOK_S, check_lease, check_slice
from orchestrator.places.gke import pod_ends
from orchestrator.run.silence import Silence

if TYPE_CHECKING:
    from orchestrator.remote.fleet.fleet import FleetStatus
    from orchestrator.remote.fleet.port import FleetPort

STOP_GRACE_S = 10.0
SETTLE_S = 2.0  # after the first failure: what fails everywhere is not stopped before every worker has said so
WATCH_S = 2.0
SILENT_S = 600.0  # a worker that does not answer for so long is lost
PROBLEM_S = 60.0  # with a silent worker and a problem that the API shows: it may pass
NOTICE = "tpujob/notice"  # the watchdog publishes it when its VM is about to be preempted
NOTICE_LOOKS, NOTICE_LOOK_S = 20, 0.75  # a lost write of it is repeated after ten seconds
REPORTED_BEFORE_S = (7200.0, 1800.0)  # the end is reported so long before
INDEX_INSIDE = "name an index in its network in `env:` (PIP_INDEX_URL, which uv gets, too)"
LAST_MINUTE_S = 60.0  # kept free before the deadline, to stop the job and to collect


@dataclass(frozen=True, slots=True)
class End:
    """When the job is stopped (unix seconds, the ledger's clock), and by which limit."""

    at: float
    why: str = "limits.max_duration"
    movable: bool = True  # by `tpujob extend`
    spare_s: float = 0.0  # of it, for a job that keeps the limit by itself


def end_of(lease: Lease, began: float, max_duration_s: float) -> End:
    """Return the end of a job that began at `began`: early enough to collect before the deadline of the lease."""
    own_end = began + max_duration_s
    spare_s = min(LAST_MINUTE_S, (min(lease.deadline, own_end) - began) / 10)
    if lease.deadline >= own_end or lease.budget_usd is None:
        return End(min(lease.deadline, own_end) - spare_s)
    return End(lease.deadline - spare_s, "limits.max_cost")


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run has cost: `spent_usd` by attempts before, and its slice from `since` on (unix seconds)."""

    since: float
    spent_usd: float = 0.0

    def at(self, now: float, lease: Lease) -> float | None:
        """Return the dollars so far; None without a known price."""
        price = lease.usd_per_hour
        return None if price is None else self.spent_usd + price * max(now - self.since, 0.0) / 3600


class PeriodicTask(Protocol):
    """Work that is done in small steps while a job runs."""

    async def tick(self, silent_s: float = 0.0) -> None:
        """Do the next step, if it is due. `silent_s`: for so long a worker has not answered; 0 if all do."""


async def monitor(
    lease: Lease,
    fleet: FleetPort,
    phase: str,
    end: End,
    run: str,
    tasks: Sequence[PeriodicTask] = (),
    *,
    bill: Bill,
    attempt: str | None = None,
    began: float | None = None,
    stall_s: float | None = None,
    patience_s: float | None = None,
) -> None:
    """Return when the phase has succeeded on every worker. The end of a log stream ends nothing. `run`: its id.

    `attempt`: look whether it was canceled, for a slice whose claim does not end with it. `began`: when the phase began, None
    for now. `patience_s`: a worker that does not answer for so long is lost; None: for SILENT_S.

    Raises PayloadFailed when it failed on one worker (the others are stopped), DeadlineExceeded at its end, SliceLost or
    Vanished for what is not the job's own failure: no output for `stall_s`, a worker or the slice that is gone.
    """
    looked_at = printed_at = await Now()
    printed = -1
    problem_since: float | None = None
    silence = Silence()
    began = looked_at if began is None else began
    last_s = end.at - looked_at  # no report of the two hours that a short job never had
    reported_s: float | None = None  # the extension that the last report of the job's clock had
    ended: set[int] = set()  # the workers whose end is reported
    while True:
        status = await WaitForWorkers(fleet, WATCH_S)
        current = await check_lease(lease)
        if attempt is not None:
            await check_attempt(attempt)
        await _report_ends(status, phase, ended)
        extended_s = current.deadline - lease.deadline
        if status.failed:
            try:  # first of all: of a preempted slice every second counts
                await classify_failure(lease, status)
            except errors.SliceLost as lost:
                if lost.still_there and not status.all_exited:
                    await stop(fleet, lease)
                raise
            raise await _failed(lease, fleet, await _settled(fleet, status), phase, run, ended)
        if status.all_succeeded:
            return
        now = await Now()
        for text in silence.news(status.workers, now):
            await Report(lease.channel, text)
        if extended_s != reported_s:
            reported_s, left_s = extended_s, end.at - end.spare_s + extended_s - now
            clock = JobClock(run, lease.cloud, phase, now - began, left_s, bill.at(now, lease), lease.usd_per_hour)
            await Report(phase, f"at most {format_duration(left_s)} left", passing=True, about=clock)
        if status.log_bytes != printed:
            printed, printed_at = status.log_bytes, now
        elif stall_s is not None and now - printed_at > stall_s:
            await stop(fleet, lease)
            raise errors.SliceLost(
                f"the job printed nothing for {format_duration(stall_s)} and was stopped",
                reason="hung",
                still_there=True,
            )
        left_s = end.at + extended_s - now
        if any(left_s <= mark_s < last_s for mark_s in REPORTED_BEFORE_S):
            moves = f"; `tpujob extend {lease.handle} --by 2h` moves the end" if end.movable else ""
            text = f"{format_duration(left_s)} until {end.why}{moves}"
            await Report("limit", text)
        last_s = left_s
        if now >= end.at + extended_s:
            await stop(fleet, lease)
            raise errors.DeadlineExceeded(f"the job reached {end.why} and was stopped", hint=f"raise {end.why}")
        silent_s = status.silent_s(now)
        for task in tasks:
            await task.tick(silent_s)
        if now - looked_at >= (LOOK_S if silent_s == 0 else WATCH_S):
            looked_at = now
            _, problem = await check_slice(lease)
            problem_since = None if problem is None or silent_s == 0 else problem_since or now
            if problem_since is not None and problem is not None and now - problem_since > PROBLEM_S:
                raise errors.SliceLost(
                    f"{lease.name.node} is {problem.text}, and a worker is silent", reason=problem.reason
                )
        if silent_s > (SILENT_S if patience_s is None else patience_s):
            raise errors.SliceLost(
                f"a worker of {lease.name.node} does not answer since {silent_s:.0f} s, though the API lists it",
                reason="unreachable",
            )


async def report_workers(fleet: FleetPort, run: RunRecord) -> None:
    """Report how many workers the run has now, before they print anything."""
    count = len(fleet.workers)
    await Report("workers", f"{count} of {run.id}", passing=True, about=SliceWorkers(count, run.directory))


async def _report_ends(status: FleetStatus, phase: str, reported: set[int]) -> None:
    """Report each worker on which the phase has ended, once; the one that the error will name as the first comes first."""
    for worker in status.ends:
        if worker.index not in reported:
            reported.add(worker.index)
            end = WorkerEnd(worker.index, worker.rc, worker.stopped)
            await Report(phase, f"worker{worker.index} ended with {worker.rc}", passing=True, about=end)


async def _settled(fleet: FleetPort, status: FleetStatus) -> FleetStatus:
    """Return the status once the phase has ended on every worker, or SETTLE_S later."""
    give_up_at = await Now() + SETTLE_S
    while not status.ended and (left_s := give_up_at - await Now()) > 0:
        status = await WaitForWorkers(fleet, left_s)
    return status


async def _failed(
    lease: Lease, fleet: FleetPort, status: FleetStatus, phase: str, run: str, reported: set[int]
) -> errors.TpujobError:
    """Stop what is left of a phase that failed; return its error, with the ends of all workers that are known."""
    if not status.all_exited:
        await _report_ends(status, phase, reported)
        left = [worker.index for worker in status.workers if not worker.final]
        await Report("stop", f"stopping what is left of the job on {worker_names(left) or 'its workers'}", passing=True)
        await stop(fleet, lease)
        status = await WaitForWorkers(fleet, 0.0)
    await _report_ends(status, phase, reported)
    return _failure(lease, status, phase, run)


async def stop(fleet: FleetPort, lease: Lease) -> None:
    """Stop the phase on every worker. A worker that cannot be reached is reported, not raised: the cause is elsewhere."""
    try:
        await StopPhase(fleet, STOP_GRACE_S)
    except errors.RemoteError as error:
        await Report("warning", f"the job may still be running on {lease.name.node}: {error.message}")


async def classify_failure(lease: Lease, status: FleetStatus) -> None:
    """Raise SliceLost if the slice made the phase fail: a preemption notice ends a job before its slice goes.

    The watchdog stops the job before it publishes the notice: after a stop that was not asked for here, wait for it.
    """
    lost = status.first_failure[1] is None
    if not (lost or lease.spot or status.any_stopped):
        return
    looks = NOTICE_LOOKS if lease.spot and status.any_stopped else 1
    try:
        for look in range(looks):
            if look:
                await Sleep(NOTICE_LOOK_S)
            if lease.spot and await _is_noticed(lease):
                raise errors.Preempted(f"{lease.name.node} is being preempted: its VM got the notice", still_there=True)
            _, problem = await check_slice(lease)
    except errors.SliceLost:
        raise
    except errors.CloudError as error:
        if lost and isinstance(error, errors.Vanished):
            raise
        return  # without an answer the job failed
    if problem is not None and lost:
        raise errors.SliceLost(f"{lease.name.node} is {problem.text}, and the job on it is gone", reason=problem.reason)


async def _is_noticed(lease: Lease) -> bool:
    try:
        return any(NOTICE in attributes for attributes in await GetGuestAttributes(lease.name))
    except errors.CloudError:
        return False  # what became of the slice is asked next


def _failure(lease: Lease, status: FleetStatus, phase: str, run: str) -> errors.TpujobError:
    if not status.unreachable:
        return pod_ends.verdict(lease, status, run) or _payload_failed(status, phase, run)
    (worker, rc), servers = status.first_failure, ", ".join(status.unreachable)
    text = f"the setup failed on worker{worker} with code {rc}: the worker does not reach {servers}"
    return errors.NoRouteOut(text, hint=_route_out(lease))


def _route_out(lease: Lease) -> str:
    """Return what gives the workers a route to a package index."""
    if lease.route.via is Via.EXTERNAL:
        return "does the network of the slice forbid connections to the Internet? Or does the index not answer now?"
    region = lease.name.zone.rpartition("-")[0]
    nat = access_commands.route_out(lease.name.project, access_commands.NETWORK, region)
    return f"the slice has no external address: Cloud NAT gives it a route out ({nat}), or {INDEX_INSIDE}"


def _payload_failed(status: FleetStatus, phase: str, run: str) -> errors.PayloadFailed:
    worker, rc = status.first_failure
    ends = tuple(WorkerEnd(each.index, each.rc, each.stopped) for each in status.workers if each.final)
    failed = sum(each.failed for each in ends)
    what = "the setup" if phase == "setup" else "the job"
    hint = f"`tpujob logs {run} --worker {worker}` prints what worker{worker} wrote"
    if status.disk_full:
        hint = f"the disk of worker{worker} is full; {hint}"
    if rc is None:
        return errors.PayloadFailed(
            f"{what} on worker{worker} was lost: its supervisor is gone", hint=hint, workers=ends
        )
    if failed > 1:
        message = f"{what} failed on {failed} workers, first on worker{worker} with code {rc}"
        return errors.PayloadFailed(message, rc=rc, hint=hint, workers=ends)
    return errors.PayloadFailed(f"{what} failed on worker{worker} with code {rc}", rc=rc, hint=hint, workers=ends)
