"""From an accepted create, or a start, to READY: one look at the slice, or looks until it is READY.

Nothing is cleaned up here: errors are raised, and the caller releases the lease.
"""

from dataclasses import dataclass

from orchestrator.core.lease.cloud_api import Capabilities, SliceState
from orchestrator.core.lease.lease import Lease, LeaseState, NotAllowed, Ready, Settled
from orchestrator.core.text.durations import format_duration, format_usd_per_hour
from orchestrator.engine.effects.base import Now, ReadLease, Record, Report, Sleep
from orchestrator.engine.effects.cloud import Get, GetOperation
from orchestrator.engine.leases.renewal import shorten_claim
from orchestrator.engine.runtime import retry
from orchestrator.errors import CapacityError, CloudError, CloudUnavailable, Preempted, Vanished


async def wait_until_ready(
    lease: Lease, capabilities: Capabilities, *, give_up_at: float, operation: str | None = None
) -> Lease:
    """Return the lease once its slice is READY, after a create or a start. `operation`: that of the start.

    Raises the CloudError that prevents it, CloudUnavailable at `give_up_at` (ledger time).
    """
    begun = await Now()
    for pause_s in retry.pauses(first_s=0.05, longest_s=10.0):
        check = await check_ready(lease, operation=operation)
        if check.ready is not None:
            await shorten_labels(check, capabilities)
            return check.ready
        now = await Now()
        if now >= min(give_up_at, lease.deadline):
            raise CloudUnavailable(f"{lease.name.node} was still {check.state} after {now - begun:.0f} s")
        await Report("create", f"{lease.name.node} is {check.state}, {format_duration(now - begun)}", passing=True)
        await Sleep(pause_s, lease_id=lease.id)
    raise AssertionError("pauses() never ends")


@dataclass(frozen=True, slots=True)
class ReadyCheck:
    """One look at a slice that is not READY yet."""

    state: str  # for display
    ready: Lease | None = None  # the lease once the slice is READY
    before: Lease | None = None  # the same lease before that


async def check_ready(lease: Lease, *, operation: str | None = None) -> ReadyCheck:
    """Return the slice's state now, and record READY. Raises the CloudError that prevents it from becoming READY."""
    lease = await ReadLease(lease.id)
    if lease.state in (LeaseState.DOWN, LeaseState.GONE):
        raise Vanished(f"{lease.name.node} was released meanwhile: {lease.reason}")
    await _check_operation(lease, operation or lease.operation)
    try:
        view = await Get(lease.name)
    except CloudUnavailable:
        view = None
    if view is None:
        return ReadyCheck("requested")
    if view.state is SliceState.READY:
        try:
            await Record(Ready(lease.id, await Now()))
        except NotAllowed as error:  # while the API was asked
            raise Vanished(f"{lease.name.node} was released meanwhile") from error
        return ReadyCheck(view.native_state, await ReadLease(lease.id), lease)
    if view.state is SliceState.TOMBSTONE:
        # It may have ended since the look above: a create that failed says why.
        await _check_operation(lease, operation or lease.operation)
        raise view.error or Preempted(f"{lease.name.node} was taken away before it was ready ({view.native_state})")
    if view.state is SliceState.QUEUED:
        if lease.ready_by is not None and await Now() >= lease.ready_by:
            raise CapacityError(f"{lease.name.node} got no capacity in time: it is still {view.native_state}")
        price = format_usd_per_hour(lease.usd_per_hour)
        return ReadyCheck(f"{view.native_state} (nothing is billed until there is capacity, then {price})")
    return ReadyCheck(view.native_state)


async def shorten_labels(check: ReadyCheck, capabilities: Capabilities) -> None:
    """Write the earlier deadline of a slice that waited for less time than it might have; failing that, warn."""
    before, ready = check.before, check.ready
    if before is not None and ready is not None and ready.deadline < before.deadline:
        try:
            await shorten_claim(before, ready, capabilities)
        except CloudError as error:
            await Report("warning", f"{ready.name.node} ends in time, but its labels say later: {error.message}")


async def _check_operation(lease: Lease, name: str | None) -> None:
    """Raise the operation's error once it has one. No reply, or an unknown operation, proves nothing."""
    if name is None:
        return
    try:
        operation = await GetOperation(name)
    except CloudUnavailable:
        return
    if operation is None or not operation.done or operation.error is None:
        return
    alone = lease.sends == 1 and name == lease.operation and not lease.name.queued  # a failed request still exists
    if not lease.settled and alone:
        await Record(Settled(lease.id, await Now()))
    raise operation.error
