"""Acquire a lease: record the intent, create the slice, wait until it is READY.

The name is chosen and durable before the create leaves, so that no lost reply, crash or late effect can create an unknown
slice. Nothing is cleaned up here: errors are raised, and the caller releases the lease.
"""

from dataclasses import replace

from orchestrator.core.lease import claim_labels
from orchestrator.core.lease.absence import is_ours
from orchestrator.core.lease.access import KEY_OUTLIVES_S
from orchestrator.core.lease.cloud_api import Capabilities, SliceRequest
from orchestrator.core.lease.lease import (
    Created,
    CreateRefused,
    Intent,
    Lease,
    LeaseState,
    LoginGranted,
    LoginRefused,
    NotAllowed,
    Sent,
)
from orchestrator.engine.effects.base import Lock, Now, ReadLease, Record, Report, Sleep, StartGuardian
from orchestrator.engine.effects.cloud import Create, Get, GrantLogin, ListSlices
from orchestrator.engine.leases.release import try_record
from orchestrator.engine.leases.server_time import clock_skew, record_server_time
from orchestrator.engine.provision.readiness import wait_until_ready
from orchestrator.engine.provision.startup_script import SCRIPT_KEY, with_claim
from orchestrator.engine.runtime import retry
from orchestrator.errors import AlreadyExists, CloudError, CloudUnavailable, UnexpectedReply

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
        lease = _with_wait(lease, request.queue.valid_for_s, await Now())
    await Record(Intent(lease))
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
            raise NotAllowed(now_it_is, LoginGranted(lease.id, await Now(), lease.route.user))
        try:
            user = await grant
            break
        except CloudUnavailable as error:  # from here on an import may be under way, whatever the next answer is
            unanswered, wait_s = True, min(error.retry_after_s or pause_s, 60.0)
            if await Now() + wait_s > give_up_at:
                raise
            await Sleep(wait_s)
        except UnexpectedReply:
            raise  # its effect is unknown
        except CloudError as error:
            if not unanswered:
                await try_record(LoginRefused(lease.id, await Now(), error.message))
            raise
    await Record(LoginGranted(lease.id, await Now(), user))
    return await ReadLease(lease.id)


def _with_wait(lease: Lease, valid_for_s: float, now: float) -> Lease:
    """The lease's time starts with its capacity, at the latest when its request expires. The event Ready corrects it."""
    life_s, ready_by = lease.deadline - lease.created_at, now + valid_for_s
    return replace(lease, ready_by=ready_by, deadline=ready_by + life_s)


async def _create(lease: Lease, request: SliceRequest, *, give_up_at: float) -> None:
    for pause_s in retry.pauses(first_s=0.5):
        await Record(Sent(lease.id, await Now()))
        try:
            operation = await Create(request)
        except CloudUnavailable as error:
            # It may have taken effect. The name is the idempotency key: the same create again gets ALREADY_EXISTS.
            wait_s = error.retry_after_s or pause_s
            if await Now() + wait_s > give_up_at:
                raise
            await Report("create", f"{error.message}; trying again", passing=True)
            await Sleep(wait_s)
        except UnexpectedReply:
            raise  # its effect is unknown
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
        why = f"a slice named {lease.name.node} exists that tpujob did not create; it is neither used nor deleted"
        raise UnexpectedReply(why, details=dict(view.labels))
