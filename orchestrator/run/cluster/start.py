"""Wait until the pods of a JobSet have started, and connect to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator import errors
from orchestrator.core.lease.cloud_api import Capabilities, SliceState
from orchestrator.core.lease.lease import Lease, LeaseState, NotAllowed, Ready
from orchestrator.core.lease.run_and_attempt import AT_LIMIT, Leased
from orchestrator.core.text.durations import format_duration
from orchestrator.engine.effects.base import Now, ReadLease, Record, Report, Sleep
from orchestrator.engine.effects.cloud import Get, Workers
from orchestrator.engine.effects.workers import Connect
from orchestrator.engine.leases.recover import ready_at
from orchestrator.engine.leases.standing import check_lease, check_slice
from orchestrator.engine.runtime import retry
from orchestrator.run.progress import JobProgress

if TYPE_CHECKING:
    from orchestrator.remote.fleet.port import FleetPort

CONNECT_S = 60.0
RECENT_S = 60.0  # between two looks, unless this machine slept: no job starts and reaches its limit meanwhile
UNKNOWN = "unknown"
OUTAGE_S = 600.0  # an API server that is upgraded is away for minutes, and the pods run on


async def started(lease: Lease, capabilities: Capabilities, progress: JobProgress) -> tuple[Lease, float]:
    """Return the lease once all pods have started, and since when they run.

    Raises CapacityError for a JobSet that is not admitted in time, and what the cluster says of one that cannot start.
    """
    await progress.enter("wait")
    if lease.state is LeaseState.READY:
        lease, _ = await check_slice(lease)
        return lease, await _running_since(lease)
    began = await Now()
    give_up_at = min((lease.ready_by or began) + capabilities.timings.provision_s, lease.deadline)
    before, looked_at = "", began
    for pause_s in retry.pauses(first_s=0.05, longest_s=10.0):
        is_recent = await Now() - looked_at < RECENT_S
        state = await _look(lease, progress, before if is_recent else "")
        if state is None:
            break
        now = looked_at = await Now()
        before = "" if state.startswith(UNKNOWN) else state
        if now >= give_up_at:
            raise errors.CloudUnavailable(f"{lease.name.node} was still {state} after {format_duration(now - began)}")
        await Report("wait", f"{lease.name.node}: {state}, {format_duration(now - began)}", passing=True)
        await Sleep(pause_s, lease_id=lease.id)
    await Report("ready", f"{lease.name.node}: every pod runs, after {format_duration(await Now() - began)}")
    lease = await ReadLease(lease.id)
    progress.lease = lease
    if progress.owed.lease is not None:
        progress.owed.lease = lease
    return lease, lease.ready_at or await Now()


async def _running_since(lease: Lease) -> float:
    """Return since when the pods run; later than READY if Kueue has sent them back and admitted them again, unseen."""
    try:
        view = await Get(lease.name)
    except errors.CloudUnavailable:
        view = None
    now = await Now()
    if view is None or view.running_s is None:
        return lease.ready_at or now
    return ready_at(lease, view, now)


async def _look(lease: Lease, progress: JobProgress, before: str) -> str | None:
    """Return what the JobSet waits for; None once all its pods have started, which is then recorded.

    `before`: what it waited for a moment ago; empty if that is not known, so that it may have run since.
    """
    await check_lease(lease)
    asked_at = await Now()  # a slow answer tells of the time before it
    try:
        view = await Get(lease.name)
    except errors.CloudUnavailable as error:
        return f"{UNKNOWN} ({error.message})"
    if view is None or view.state is SliceState.DELETING:
        # What the cluster has accepted is visible at once: it was there.
        raise errors.Vanished(f"{lease.name.node} was deleted before its pods ran, or before they were followed")
    progress.nodes = tuple(dict.fromkeys((*progress.nodes, *view.nodes)))
    if view.state is SliceState.TOMBSTONE:
        progress.detached = False
        if before and isinstance(view.error, errors.SliceLost) and view.error.reason == AT_LIMIT:
            raise errors.CapacityError(
                f"{lease.name.node} did not start in time, and the cluster ended it: it was {before}"
            )
        raise view.error or errors.Preempted(f"{lease.name.node} was taken away ({view.native_state})")
    now = await Now()
    if view.state is SliceState.READY:
        try:
            await Record(Ready(lease.id, ready_at(lease, view, now)), Leased(progress.attempt.id, now, lease.id))
        except NotAllowed as error:  # while the API was asked
            raise errors.Vanished(f"{lease.name.node} was released meanwhile") from error
        return None
    if view.state is SliceState.QUEUED and lease.ready_by is not None and asked_at >= lease.ready_by:
        raise errors.CapacityError(
            f"{lease.name.node} was not admitted, or got no nodes, in time: it is still {view.native_state}"
        )
    return view.native_state


async def connected(lease: Lease) -> FleetPort:
    """Connect to the pods, all of which have started. Raises ArtifactError if the job has ended and they are gone."""
    began = await Now()
    for pause_s in retry.pauses(first_s=0.5, longest_s=10.0):
        try:
            workers = await retry.until(await Now() + OUTAGE_S, Workers(lease.name))
            return await Connect(lease, workers, CONNECT_S)
        except (errors.WrongState, errors.RemoteError) as error:  # not all are there, or the API server is away
            await check_slice(lease)
            view = await retry.until(await Now() + OUTAGE_S, Get(lease.name))
            if view is not None and view.state is SliceState.READY and isinstance(error, errors.WrongState):
                gone = f"the job has ended ({view.native_state}), and what its pods wrote is gone with them: {error.message}"
                raise errors.ArtifactError(
                    gone, hint="a cluster deletes ended pods with their nodes: attach earlier"
                ) from error
            patience_s = OUTAGE_S if isinstance(error, errors.Unreachable) else CONNECT_S
            if await Now() >= began + patience_s:
                raise errors.SliceLost(f"{lease.name.node}: {error.message}") from error
            await Sleep(pause_s, lease_id=lease.id)
    raise AssertionError("pauses() never ends")
