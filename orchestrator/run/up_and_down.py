"""Held slices, which outlive the command that created them: `up`, `stop`, `start`, `down`."""

import contextlib
from dataclasses import dataclass

from orchestrator import errors
from orchestrator.promise.effects import retry
from orchestrator.promise.effects.base import (
    Lock,
    Now,
    OpenAttempts,
    ReadLease,
    Record,
    Report,
    Sleep,
    Unlock,
    UnmaskSignals,
)
from orchestrator.promise.effects.cloud import Get, StartSlice, StopSlice
from orchestrator.promise.lease.absence import Released
from orchestrator.promise.lease.changes import AttemptEnded, Extended, HeldUntil, NotAllowed, ReleaseBegan
from orchestrator.promise.lease.claim_labels import LONGEST_S
from orchestrator.promise.lease.cloud_api import Capabilities, SliceState, SliceView
from orchestrator.promise.lease.lease import CANCEL, DOWN, HeldFor, Lease, LeaseState
from orchestrator.promise.lease.periods import Timings
from orchestrator.promise.lease.run_and_attempt import AttemptState
from orchestrator.promise.obligations import RELEASE_S, SliceOutcome, keep_slice, release_owed
from orchestrator.promise.obtain.acquire import PATIENCE_S, wait_until_ready
from orchestrator.promise.obtain.candidate_search import Search, find
from orchestrator.promise.obtain.drafts import Draft, Drafter
from orchestrator.promise.release import release, release_all, try_start_guardian
from orchestrator.promise.renewal import move_claim
from orchestrator.text.units import format_duration, format_usd

STOP_S = 15 * 60.0
LEAST_LEFT_S = 60.0  # with less than this left, a hold or a deadline counts as over


@dataclass(frozen=True, slots=True)
class UpRequest:
    """The parameters of `up`."""

    handle: str
    drafts: tuple[Draft, ...]
    existing: Lease | None
    hold_s: float
    recreate: bool = False  # allow to delete a preempted or failed slice and to create another one
    wait_s: float = 0.0  # for capacity, altogether; 0: every draft is tried once
    drafter: Drafter | None = None  # makes the same drafts again, under new names


@dataclass(slots=True)
class UpOutcome(SliceOutcome):
    """How `up` ended. `lease`: that of the held slice."""

    action: str = ""  # "created", "already ready", "waited", "started", "recreated"


async def up(request: UpRequest, capabilities: Capabilities) -> UpOutcome:
    """Make the slice READY, whatever its state, and hold it. On an error, release what this call created. Never raises."""
    outcome = UpOutcome()
    try:
        await _obtain(request, capabilities, outcome)
    except errors.TpujobError as error:
        outcome.error = error
        await release_owed(outcome.owed, capabilities, error.message)
    except Exception as error:
        outcome.error = errors.TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint="please report it")
        await release_owed(outcome.owed, capabilities, "a bug in tpujob")
    return outcome


async def _obtain(request: UpRequest, capabilities: Capabilities, outcome: UpOutcome) -> None:
    if request.existing is not None:
        outcome.action = await _restore_or_release(request.existing, request, capabilities, outcome)
    if outcome.lease is None:
        await find(Search(request.drafts, wait_s=request.wait_s, drafter=request.drafter), capabilities, outcome.owed)
        outcome.action = outcome.action or "created"
        outcome.lease = await keep_slice(outcome.owed, await Now() + request.hold_s, capabilities)
    outcome.owed.lease = None  # from here on this command no longer has to release it


async def _restore_or_release(lease: Lease, request: UpRequest, capabilities: Capabilities, outcome: UpOutcome) -> str:
    """Make an existing slice READY, or release what is left of it, so that a new one can be created."""
    view = await retry.until(await Now() + PATIENCE_S, Get(lease.name))
    expired = lease.hold_until is not None and await _renew_hold(lease, request.hold_s, capabilities) is None
    if view is not None and not expired:
        if view.state is SliceState.READY and lease.hold_until is not None:
            outcome.lease = await ReadLease(lease.id)
            return "already ready"
        if view.state in (SliceState.QUEUED, SliceState.CREATING, SliceState.READY):
            return await _wait_for(lease, view, outcome, capabilities)
        if view.state in (SliceState.STOPPED, SliceState.STOPPING):
            await start(lease, capabilities)
            outcome.lease = await ReadLease(lease.id)
            return "started"
    if view is not None and not request.recreate and not expired:
        why = f"{lease.handle} is {view.native_state}: it can only be deleted and created again"
        raise errors.NeedsConsent(why, hint=f"`tpujob up {lease.handle} --yes` does that")
    state = view.native_state if view else "gone"
    await Report("release", f"{lease.name.node} is {state}: deleting what is left of it")
    released = await release(lease, capabilities, reason=f"it was {state}", budget_s=RELEASE_S)
    outcome.owed.released = released
    if not released.gone:
        raise errors.TeardownUnproven(f"{lease.name.node} is not proven gone, so no other slice is created")
    await UnmaskSignals()
    return "recreated"


async def _renew_hold(lease: Lease, hold_s: float, capabilities: Capabilities) -> Lease | None:
    """Renew a hold that is over, or nearly, as far as the deadline allows; None if that is over too.

    A slice that was held because its job failed is the user's from now on.
    """
    now = await Now()
    assert lease.hold_until is not None
    if lease.hold_until - now >= LEAST_LEFT_S and lease.held_for is not HeldFor.FAILURE:
        return lease
    if lease.deadline - now < LEAST_LEFT_S:
        return None
    return await move_claim(lease, HeldUntil(lease.id, now, now + hold_s), capabilities)


async def _wait_for(lease: Lease, view: SliceView, outcome: UpOutcome, capabilities: Capabilities) -> str:
    """Wait for a slice that another `up` creates; if that process died before the slice was held, take over its obligation."""
    if lease.hold_until is None and await Lock(lease.id):
        outcome.owed.lease = lease
    await Report("create", f"{lease.name.node} is there already, {view.native_state}; waiting for it")
    waits_until = max(lease.ready_by or 0.0, await Now())
    ready = await wait_until_ready(lease, capabilities, give_up_at=waits_until + capabilities.timings.provision_s)
    outcome.lease = ready
    if outcome.owed.lease is not None:
        outcome.lease = await keep_slice(outcome.owed, ready.hold_until or ready.deadline, capabilities)
    return "waited"


async def start(lease: Lease, capabilities: Capabilities) -> Lease:
    """Start a stopped slice; return its lease once it is READY.

    Raises WrongState in any other state but READY, CloudError if it fails; the slice then stays as it is.
    """
    view = await _existing(lease)
    give_up_at = await Now() + capabilities.timings.provision_s
    if view.state is SliceState.STOPPING:
        view = await _wait_until_stopped(lease, give_up_at)
    if view.state is SliceState.READY:
        return lease
    if view.state is not SliceState.STOPPED:
        raise errors.WrongState(f"{lease.handle} is {view.native_state}: only a stopped slice can be started")
    operation = await retry.until(await Now() + PATIENCE_S, StartSlice(lease.name))
    return await wait_until_ready(lease, capabilities, give_up_at=give_up_at, operation=operation.name)


async def stop(lease: Lease) -> SliceView:
    """Stop a READY slice; return it once it is STOPPED. Raises WrongState. It keeps its disk, its name and its lease."""
    view = await _existing(lease)
    if view.state is SliceState.STOPPED:
        return view
    if view.state is not SliceState.STOPPING:
        if view.state is not SliceState.READY:
            raise errors.WrongState(f"{lease.handle} is {view.native_state}: only a READY slice can be stopped")
        await retry.until(await Now() + PATIENCE_S, StopSlice(lease.name))
    return await _wait_until_stopped(lease, await Now() + STOP_S)


async def down(leases: tuple[Lease, ...], capabilities: Capabilities, *, reason: str) -> list[Released]:
    """Release each lease, even if another process uses it. For the reasons CANCEL and DOWN, end the run on it as canceled."""
    await try_start_guardian()  # before the claims end
    await _record_canceled(leases, reason)
    for lease in leases:
        await Lock(lease.id)  # if no process holds it, so that no other command starts the same release
    results = await release_all([(lease, reason) for lease in leases], capabilities, budget_s=RELEASE_S)
    for lease in leases:
        await Unlock(lease.id)
    return results


async def _record_canceled(leases: tuple[Lease, ...], reason: str) -> None:
    """Record the end of the runs on the slices, each in one transaction with the end of the claim.

    The process of a run may hang or be dead; if it lives, it reads this in the ledger and ends. A run whose slice is being
    released has its result: its process records that.
    """
    if reason not in (CANCEL, DOWN):
        return
    try:
        attempts = await OpenAttempts()
        for lease in leases:
            now = await Now()
            ended = [each.id for each in attempts if each.lease_id == lease.id]
            ends = [AttemptEnded.by(each, now, AttemptState.CANCELED, errors.Canceled(reason)) for each in ended]
            if (await ReadLease(lease.id)).down_at is None:
                with contextlib.suppress(NotAllowed):  # released a moment ago
                    await Record(ReleaseBegan(lease.id, now, reason), *ends)
    except errors.TpujobError as error:
        await Report("warning", f"{error.message}; the teardown goes on without it")


async def _existing(lease: Lease) -> SliceView:
    view = await retry.until(await Now() + PATIENCE_S, Get(lease.name))
    if view is None:
        gone = f"{lease.handle} ({lease.name.node}) does not exist any more"
        raise errors.WrongState(gone, hint="`tpujob up` creates a new one")
    return view


async def _wait_until_stopped(lease: Lease, give_up_at: float) -> SliceView:
    for pause_s in retry.pauses(longest_s=10.0):
        view = await _existing(lease)
        if view.state is SliceState.STOPPED:
            return view
        if await Now() >= give_up_at:
            raise errors.CloudUnavailable(f"{lease.handle} is still {view.native_state}")
        await Report("state", f"{lease.name.node} is {view.native_state}", passing=True)
        await Sleep(pause_s)
    raise AssertionError("pauses() never ends")


# Extend a claim: the user moves the end of a slice, within its budget and at most 7 days from its creation.


async def extend(lease: Lease, by_s: float, capabilities: Capabilities) -> Lease:
    """Move the end of the claim by `by_s` seconds, in labels and ledger. Return the lease.

    Raises UserError if the slice cannot be extended that far, Vanished if it was released meanwhile.
    """
    now, timings = await Now(), capabilities.timings
    return await move_claim(lease, lambda latest: Extended(lease.id, now, new_end(latest, by_s, timings)), capabilities)


def new_end(lease: Lease, by_s: float, timings: Timings) -> float:
    """Return the end that `extend` sets, in ledger time. Raises UserError with the reason if it is not allowed. Pure."""
    if lease.state is not LeaseState.READY:
        raise errors.UserError(f"{lease.handle} is {lease.state}: only a slice that is READY can be extended")
    until = lease.ends_at + by_s
    if until - lease.created_at > LONGEST_S:
        left = format_duration(max(lease.created_at + LONGEST_S - lease.ends_at, 0.0))
        raise errors.UserError(
            f"{lease.handle} would exist longer than 7 days", hint=f"it can be extended by {left} at most"
        )
    if lease.budget_usd is not None and lease.usd_per_hour is not None:
        spent_then = lease.usd_per_hour * (until + timings.absent_s - lease.created_at) / 3600
        if spent_then > lease.budget_usd:
            cost = f"{format_usd(spent_then)} of {format_usd(lease.budget_usd)}"
            hint = "the budget of a run is final: run the job again with a larger limits.max_cost"
            raise errors.UserError(f"by then {lease.handle} would have cost {cost}", hint=hint)
    return until
