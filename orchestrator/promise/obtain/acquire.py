"""Acquire a lease: record the intent, create the slice, look at it until it is READY.

The name is chosen and durable before the create leaves, so that no lost reply, crash or late effect can create an unknown
slice. Nothing is cleaned up here: errors are raised, and the caller releases the lease.
"""

from dataclasses import dataclass, replace

from orchestrator import errors
from orchestrator.promise.effects import retry
from orchestrator.promise.effects.base import Lock, Now, ReadLease, Record, Report, Sleep, StartGuardian
from orchestrator.promise.effects.cloud import Create, Get, GetOperation, GrantLogin, ListSlices
from orchestrator.promise.lease import changes, claim_labels
from orchestrator.promise.lease.absence import is_ours
from orchestrator.promise.lease.access import KEY_OUTLIVES_S
from orchestrator.promise.lease.cloud_api import Capabilities, SliceRequest, SliceState
from orchestrator.promise.lease.lease import Lease, LeaseState
from orchestrator.promise.obtain.startup_script import SCRIPT_KEY, with_claim
from orchestrator.promise.release import try_record
from orchestrator.promise.renewal import shorten_claim
from orchestrator.promise.server_time import clock_skew, record_server_time
from orchestrator.text.units import format_duration, format_usd_per_hour

PATIENCE_S = 60.0  # for a cloud that does not reply, before the step fails


async def acquire(lease: Lease, request: SliceRequest, capabilities: Capabilities) -> Lease:
    """Return the lease in state READY. Raises the CloudError that prevented it; the lease is then INTENT or CREATING."""
    begun = await create_slice(lease, request, capabilities)
    waits_until = begun.ready_by or await Now()
    return await wait_until_ready(begun, capabilities, give_up_at=waits_until + capabilities.timings.provision_s)


async def create_slice(lease: Lease, request: SliceRequest, capabilities: Capabilities) -> Lease:
    """Create the slice; return the lease once the create is accepted. `wait_until_ready` or `check_ready` follow it."""
    await Lock(lease.id)
    question = retry.Timed(ListSlices(lease.name.project, lease.name.zone))
    asked_at, listing = await retry.until(await Now() + PATIENCE_S, question)
    await record_server_time(listing, asked_at=asked_at)
    skew_s = await clock_skew(listing, asked_at=asked_at, warn=True)
    if request.queue is not None:  # the wait counts from now: the call above may have taken time
        # The lease's time starts with its capacity, at the latest when its request expires. The event Ready corrects it.
        life_s, ready_by = lease.deadline - lease.created_at, await Now() + request.queue.valid_for_s
        lease = replace(lease, ready_by=ready_by, deadline=ready_by + life_s)
    await Record(changes.Intent(lease))
    guardian = "guardian watching" if await StartGuardian() else "no guardian (TPUJOB_GUARDIAN=off)"
    await Report("lease", f"{lease.name.node} · {guardian}")
    if lease.route.os_login:
        lease = await _grant_login(lease, skew_s)
    now = await Now()
    # The create call carries the first claim: a slice never exists without one.
    labels = {**request.labels, **claim_labels.labels(lease, now, capabilities.timings, skew_s=skew_s)}
    metadata = dict(request.metadata)
    if SCRIPT_KEY in metadata:  # the watchdog starts with the same claim, until it can read the labels
        metadata[SCRIPT_KEY] = with_claim(metadata[SCRIPT_KEY], labels, lease.route.user)
    await _create(lease, replace(request, labels=labels, metadata=metadata), give_up_at=now + PATIENCE_S)
    return await ReadLease(lease.id)


async def _grant_login(lease: Lease, skew_s: float) -> Lease:
    """Import the key before the create: a VM that looks for keys before this one is there may remember its absence."""
    grant = GrantLogin(lease, lease.deadline + skew_s + KEY_OUTLIVES_S)
    give_up_at = await Now() + PATIENCE_S
    unanswered = False
    for pause_s in retry.pauses(first_s=0.5):
        now_it_is = await ReadLease(lease.id)
        if now_it_is.state is not LeaseState.INTENT:  # this process was stopped, and nothing would remove the key
            raise changes.NotAllowed(now_it_is, changes.LoginGranted(lease.id, await Now(), lease.route.user))
        try:
            user = await grant
            break
        except errors.CloudUnavailable as error:  # from here on an import may be under way, whatever the next answer is
            unanswered, wait_s = True, min(error.retry_after_s or pause_s, 60.0)
            if await Now() + wait_s > give_up_at:
                raise
            await Sleep(wait_s)
        except errors.UnexpectedReply:
            raise  # its effect is unknown
        except errors.CloudError as error:
            if not unanswered:
                await try_record(changes.LoginRefused(lease.id, await Now(), error.message))
            raise
    await Record(changes.LoginGranted(lease.id, await Now(), user))
    return await ReadLease(lease.id)


async def _create(lease: Lease, request: SliceRequest, *, give_up_at: float) -> None:
    for pause_s in retry.pauses(first_s=0.5):
        at = await Now()
        await Record(changes.CreateSent(lease.id, at))
        try:
            operation = await Create(request, at)
        except errors.NotSent:  # so it has no effect, and the next one has its own time
            if await Now() > give_up_at:
                raise
        except errors.CloudUnavailable as error:
            # It may have taken effect. The name is the idempotency key: the same create again gets ALREADY_EXISTS.
            wait_s = error.retry_after_s or pause_s
            if await Now() + wait_s > give_up_at:
                raise
            await Report("create", f"{error.message}; trying again", passing=True)
            await Sleep(wait_s)
        except errors.UnexpectedReply:
            raise  # its effect is unknown
        except errors.CloudError as error:
            await Record(changes.CreateRefused(lease.id, await Now(), error.message))
            if not isinstance(error, errors.AlreadyExists):
                raise
            await _adopt(lease)
            return
        else:
            await Record(changes.Created(lease.id, await Now(), operation.name))
            return


async def _adopt(lease: Lease) -> None:
    view = await retry.until(await Now() + PATIENCE_S, Get(lease.name))
    if view is not None and not is_ours(view, lease):
        why = f"a slice named {lease.name.node} exists that tpujob did not create; it is neither used nor deleted"
        raise errors.UnexpectedReply(why, details=dict(view.labels))


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
            raise errors.CloudUnavailable(f"{lease.name.node} was still {check.state} after {now - begun:.0f} s")
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
        raise errors.Vanished(f"{lease.name.node} was released meanwhile: {lease.reason}")
    await _check_operation(lease, operation or lease.operation)
    try:
        view = await Get(lease.name)
    except errors.CloudUnavailable:
        view = None
    if view is None:
        return ReadyCheck("requested")
    if view.state is SliceState.READY:
        try:
            await Record(changes.Ready(lease.id, await Now()))
        except changes.NotAllowed as error:  # while the API was asked
            raise errors.Vanished(f"{lease.name.node} was released meanwhile") from error
        return ReadyCheck(view.native_state, await ReadLease(lease.id), lease)
    if view.state is SliceState.TOMBSTONE:
        # It may have ended since the look above: a create that failed says why.
        await _check_operation(lease, operation or lease.operation)
        raise view.error or errors.Preempted(
            f"{lease.name.node} was taken away before it was ready ({view.native_state})"
        )
    if view.state is SliceState.QUEUED:
        if lease.ready_by is not None and await Now() >= lease.ready_by:
            raise errors.CapacityError(f"{lease.name.node} got no capacity in time: it is still {view.native_state}")
        price = format_usd_per_hour(lease.usd_per_hour)
        return ReadyCheck(f"{view.native_state} (nothing is billed until there is capacity, then {price})")
    return ReadyCheck(view.native_state)


async def shorten_labels(check: ReadyCheck, capabilities: Capabilities) -> None:
    """Write the earlier deadline of a slice that waited for less time than it might have; failing that, warn."""
    before, ready = check.before, check.ready
    if before is not None and ready is not None and ready.deadline < before.deadline:
        try:
            await shorten_claim(before, ready, capabilities)
        except errors.CloudError as error:
            await Report("warning", f"{ready.name.node} ends in time, but its labels say later: {error.message}")


async def _check_operation(lease: Lease, name: str | None) -> None:
    """Raise the operation's error once it has one. No reply, or an unknown operation, proves nothing."""
    if name is None:
        return
    try:
        operation = await GetOperation(name)
    except errors.CloudUnavailable:
        return
    if operation is None or not operation.done or operation.error is None:
        return
    alone = lease.sends == 1 and name == lease.operation and not lease.name.queued  # a failed request still exists
    if not lease.settled and alone:
        await Record(changes.Settled(lease.id, await Now()))
    raise operation.error
