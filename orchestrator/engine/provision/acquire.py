"""Acquire a lease: write the intent down, create the slice, wait until it is READY.

The name is chosen and durable before the create leaves, so that a lost reply, a crash or a late landing can never make
a slice that we do not know. A failure here does not clean up: it raises, and whoever called releases the lease.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.core.lease import claim_labels
from orchestrator.core.lease.absence import is_ours
from orchestrator.core.lease.lease import (
    Created,
    CreateRefused,
    Intent,
    Lease,
    LeaseState,
    NotAllowed,
    Ready,
    Sent,
    Settled,
)
from orchestrator.core.lease.slices import Capabilities, SliceRequest, SliceState, SliceView
from orchestrator.core.text.durations import format_duration, format_usd_per_hour
from orchestrator.engine.effects.base import Lock, Now, ReadLease, Record, Report, Sleep, StartGuardian
from orchestrator.engine.effects.cloud import Create, Get, GetOperation, ListSlices
from orchestrator.engine.leases.renewal import clock_skew, hear_time, shorten
from orchestrator.engine.provision.startup_script import SCRIPT_KEY, restamped
from orchestrator.engine.runtime import retry
from orchestrator.errors import (
    AlreadyExists,
    CapacityError,
    CloudError,
    CloudUnavailable,
    Preempted,
    UnexpectedReply,
    Vanished,
)

PATIENCE_S = 60.0  # for a cloud that does not answer, before the next step is given up


async def acquire(lease: Lease, request: SliceRequest, capabilities: Capabilities) -> Lease:
    """The lease in state READY. Raises the CloudError that prevented it; then the lease is INTENT or CREATING."""
    begun = await begin(lease, request, capabilities)
    waits_until = begun.ready_by or await Now()
    return await wait_until_ready(begun, capabilities, give_up_at=waits_until + capabilities.timings.provision_s)


async def begin(lease: Lease, request: SliceRequest, capabilities: Capabilities) -> Lease:
    """The lease, its create call accepted: what becomes of it is for `wait_until_ready`, or for `look_in` now and then."""
    await Lock(lease.id)
    question = retry.Timed(ListSlices(lease.name.project, lease.name.zone))
    asked_at, listing = await retry.until(await Now() + PATIENCE_S, question)
    await hear_time(listing, asked_at=asked_at)
    skew_s = await clock_skew(listing, asked_at=asked_at, said=True)
    if request.queue is not None:  # from now on: the question about the time may have taken its own
        lease = _waiting(lease, request.queue.valid_for_s, await Now())
    await Record(Intent(lease))
    watch = "guardian watching" if await StartGuardian() else "no guardian (TPUJOB_GUARDIAN=off)"
    await Report("lease", f"{lease.name.node} · {watch}")
    now = await Now()
    # The first claim travels in the create call itself: there is no moment at which a slice exists without one.
    stamped = {**request.labels, **claim_labels.labels(lease, now, capabilities.timings, skew_s=skew_s)}
    metadata = dict(request.metadata)
    if SCRIPT_KEY in metadata:  # the switch in it is born with the same claim, for as long as it can read no labels
        metadata[SCRIPT_KEY] = restamped(metadata[SCRIPT_KEY], stamped)
    await _create(lease, replace(request, labels=stamped, metadata=metadata), give_up_at=now + PATIENCE_S)
    return await ReadLease(lease.id)


def _waiting(lease: Lease, valid_for_s: float, now: float) -> Lease:
    """Its life begins when it has its capacity, at the latest when the request for it ends. (`Ready` knows better.)"""
    life_s, ready_by = lease.deadline - lease.created_at, now + valid_for_s
    return replace(lease, ready_by=ready_by, deadline=ready_by + life_s)


async def _create(lease: Lease, request: SliceRequest, *, give_up_at: float) -> None:
    for pause_s in retry.pauses(first_s=0.5):
        await Record(Sent(lease.id, await Now()))
        try:
            operation = await Create(request)
        except CloudUnavailable as error:
            # It may have had its effect. The name is the idempotency key: the same create again answers ALREADY_EXISTS.
            wait_s = error.retry_after_s or pause_s
            if await Now() + wait_s > give_up_at:
                raise
            await Report("create", f"{error.message}; trying again", passing=True)
            await Sleep(wait_s)
        except UnexpectedReply:
            raise  # what it did is anybody's guess
        except CloudError as error:
            await Record(CreateRefused(lease.id, await Now(), error.message))
            if not isinstance(error, AlreadyExists):
                raise
            await _adopt(lease)
            return
        else:
            await Record(Created(lease.id, await Now(), operation.name))
            return


async def _adopt(lease: Lease) -> None:
    view = await retry.until(await Now() + PATIENCE_S, Get(lease.name))
    if view is not None and not is_ours(view, lease):
        raise UnexpectedReply(
            f"a slice named {lease.name.node} exists that tpujob did not make; it is neither used nor deleted",
            details=dict(view.labels),
        )


async def wait_until_ready(
    lease: Lease, capabilities: Capabilities, *, give_up_at: float, operation: str | None = None
) -> Lease:
    """Follow a slice that is coming to life: after a create (of this process or another one), or after a start."""
    begun = await Now()
    for pause_s in retry.pauses(longest_s=10.0):
        seen = await look_in(lease, operation=operation)
        if seen.ready is not None:
            await shorten_labels(seen, capabilities)
            return seen.ready
        now = await Now()
        if now >= min(give_up_at, lease.deadline):
            raise CloudUnavailable(f"{lease.name.node} was still {seen.words} after {now - begun:.0f} s")
        await Report("create", f"{lease.name.node} is {seen.words}, {format_duration(now - begun)}", passing=True)
        await Sleep(pause_s)
    raise AssertionError("pauses() never ends")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a slice that is coming to life is, in words; once it is READY, its lease, and what that was before."""

    words: str
    ready: Lease | None = None
    before: Lease | None = None


async def look_in(lease: Lease, *, operation: str | None = None) -> Seen:
    """Raises what will keep it from becoming READY."""
    lease = await ReadLease(lease.id)
    if lease.state in (LeaseState.DOWN, LeaseState.GONE):
        raise Vanished(f"{lease.name.node} was given up meanwhile: {lease.reason}")
    await _check_operation(lease, operation or lease.operation)
    view = await _look(lease)
    if view is None:
        return Seen("requested")
    if view.state is SliceState.READY:
        try:
            await Record(Ready(lease.id, await Now()))
        except NotAllowed as error:  # while the API was asked
            raise Vanished(f"{lease.name.node} was given up meanwhile") from error
        return Seen(view.native_state, await ReadLease(lease.id), lease)
    if view.state is SliceState.TOMBSTONE:
        raise view.error or Preempted(f"{lease.name.node} was taken away before it was ready ({view.native_state})")
    if view.state is SliceState.QUEUED:
        if lease.ready_by is not None and await Now() >= lease.ready_by:
            raise CapacityError(f"{lease.name.node} got no capacity in time: it is still {view.native_state}")
        price = format_usd_per_hour(lease.usd_per_hour)
        return Seen(f"{view.native_state} (nothing is billed until there is capacity, then {price})")
    return Seen(view.native_state)


async def shorten_labels(seen: Seen, capabilities: Capabilities) -> None:
    """What did not have to wait as long as it might have ends sooner, and its labels are to say so."""
    before, ready = seen.before, seen.ready
    if before is not None and ready is not None and ready.deadline < before.deadline:
        try:
            await shorten(before, ready, capabilities)
        except CloudError as error:
            await Report("warning", f"{ready.name.node} ends in time, but its labels say later: {error.message}")


async def _check_operation(lease: Lease, name: str | None) -> None:
    """Raise the operation's own error once it has one. No answer, or an unknown operation, says nothing."""
    if name is None:
        return
    try:
        operation = await GetOperation(name)
    except CloudUnavailable:
        return
    if operation is None or not operation.done:
        return
    if operation.error is not None:
        alone = lease.sends == 1 and name == lease.operation and not lease.name.queued  # a request stays when it failed
        if not lease.settled and alone:
            await Record(Settled(lease.id, await Now()))
        raise operation.error


async def _look(lease: Lease) -> SliceView | None:
    try:
        return await Get(lease.name)
    except CloudUnavailable:
        return None
