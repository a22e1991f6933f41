"""Slices that outlive a command: `up`, `stop`, `start`, `down`."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core.lease.lease import Held, Lease
from orchestrator.core.lease.slices import Capabilities, SliceState, SliceView
from orchestrator.engine.effects.base import Lock, Now, ReadLease, Report, Shield, Sleep, StartGuardian, Unlock
from orchestrator.engine.effects.cloud import Get, StartSlice, StopSlice
from orchestrator.engine.leases.obligations import RELEASE_S, Obligations, keep_slice, release_owed
from orchestrator.engine.leases.release import Released, release, release_all
from orchestrator.engine.leases.renewal import move_claim
from orchestrator.engine.provision.acquire import PATIENCE_S, wait_until_ready
from orchestrator.engine.provision.drafts import Draft, Drafter
from orchestrator.engine.provision.search import Search, find
from orchestrator.engine.runtime import retry
from orchestrator.errors import CloudUnavailable, NeedsConsent, TeardownUnproven, TpujobError, WrongState

STOP_S = 15 * 60.0
NEARLY_S = 60.0


@dataclass(frozen=True, slots=True)
class UpRequest:
    """What `up` was asked for."""

    handle: str
    drafts: tuple[Draft, ...]
    existing: Lease | None
    hold_s: float
    recreate: bool = False  # may a slice that was taken away be deleted and made again?
    wait_s: float = 0.0  # for capacity, altogether; 0: every draft is asked once
    drafter: Drafter | None = None  # makes the same drafts again, under new names


@dataclass(slots=True)
class UpOutcome:
    lease: Lease | None = None
    action: str = ""  # "created", "already ready", "waited", "started", "recreated"
    error: TpujobError | None = None
    owed: Obligations = field(default_factory=Obligations)

    @property
    def exit_code(self) -> int:
        if self.owed.unproven:
            return TeardownUnproven.exit_code
        if isinstance(self.error, TeardownUnproven):
            return CloudUnavailable.exit_code  # it took long, but it is proven now
        return self.error.exit_code if self.error else 0


async def up(wanted: UpRequest, capabilities: Capabilities) -> UpOutcome:
    """Bring the slice to READY, whatever state it is in, and hold it. What this call created in vain is released."""
    brought = UpOutcome()
    try:
        await _bring(wanted, capabilities, brought)
    except TpujobError as error:
        brought.error = error
        await release_owed(brought.owed, capabilities, error.message)
    except Exception as error:
        brought.error = TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint="please report it")
        await release_owed(brought.owed, capabilities, "a bug in tpujob")
    return brought


async def _bring(wanted: UpRequest, capabilities: Capabilities, brought: UpOutcome) -> None:
    if wanted.existing is not None:
        brought.action = await _revive(wanted.existing, wanted, capabilities, brought)
    if brought.lease is None:
        await find(Search(wanted.drafts, wait_s=wanted.wait_s, drafter=wanted.drafter), capabilities, brought.owed)
        brought.action = brought.action or "created"
        brought.lease = await keep_slice(brought.owed, await Now() + wanted.hold_s, capabilities)
    brought.owed.lease = None  # from here on it is no longer this command's to end


async def _revive(lease: Lease, wanted: UpRequest, capabilities: Capabilities, brought: UpOutcome) -> str:
    """Bring an existing lease to READY; or release what is left of it, so that a new one can be made."""
    view = await retry.until(await Now() + PATIENCE_S, Get(lease.name))
    expired = lease.hold_until is not None and await _hold_anew(lease, wanted.hold_s, capabilities) is None
    if view is not None and not expired:
        if view.state is SliceState.READY and lease.hold_until is not None:
            brought.lease = await ReadLease(lease.id)
            return "already ready"
        if view.state in (SliceState.QUEUED, SliceState.CREATING, SliceState.READY):
            return await _wait_for(lease, brought, capabilities)
        if view.state in (SliceState.STOPPED, SliceState.STOPPING):
            await start(lease, capabilities)
            brought.lease = await ReadLease(lease.id)
            return "started"
    if view is not None and not wanted.recreate and not expired:
        raise NeedsConsent(
            f"{lease.handle} is {view.native_state}: it can only be deleted and made again",
            hint=f"`tpujob up {lease.handle} --yes` does that",
        )
    state = view.native_state if view else "gone"
    await Report("release", f"{lease.name.node} is {state}: deleting what is left of it")
    released = await release(lease, capabilities, reason=f"it was {state}", budget_s=RELEASE_S)
    brought.owed.released = released
    if not released.gone:
        raise TeardownUnproven(f"{lease.name.node} is not proven gone, so no other one is made")
    await Shield(raised=False)
    return "recreated"


async def _hold_anew(lease: Lease, hold_s: float, capabilities: Capabilities) -> Lease | None:
    """A hold that is over, or nearly, begins again, as far as the deadline allows; None when that is over too."""
    now = await Now()
    assert lease.hold_until is not None
    if lease.hold_until - now >= NEARLY_S:
        return lease
    if lease.deadline - now < NEARLY_S:
        return None
    return await move_claim(lease, Held(lease.id, now, now + hold_s), capabilities)


async def _wait_for(lease: Lease, brought: UpOutcome, capabilities: Capabilities) -> str:
    """Another `up` began it. If that one still lives, wait beside it; if it died, take its place."""
    if await Lock(lease.id):
        brought.owed.lease = lease
    await Report("create", f"{lease.name.node} is being created already; waiting for it")
    waits_until = max(lease.ready_by or 0.0, await Now())
    ready = await wait_until_ready(lease, capabilities, give_up_at=waits_until + capabilities.timings.provision_s)
    if brought.owed.lease is not None:
        brought.lease = await keep_slice(brought.owed, ready.hold_until or ready.deadline, capabilities)
    else:
        brought.lease = ready
    return "waited"


async def start(lease: Lease, capabilities: Capabilities) -> Lease:
    """STOPPED → READY. The slice stays what it is when that fails; raises the error."""
    view = await _existing(lease)
    give_up_at = await Now() + capabilities.timings.provision_s
    if view.state is SliceState.STOPPING:
        view = await _await_state(lease, SliceState.STOPPED, give_up_at)
    if view.state is SliceState.READY:
        return lease
    if view.state is not SliceState.STOPPED:
        raise WrongState(f"{lease.handle} is {view.native_state}: only a stopped slice can be started")
    operation = await retry.until(await Now() + PATIENCE_S, StartSlice(lease.name))
    return await wait_until_ready(lease, capabilities, give_up_at=give_up_at, operation=operation.name)


async def stop(lease: Lease) -> SliceView:
    """READY → STOPPED. A stopped slice keeps its disk and its name; it is not a teardown."""
    view = await _existing(lease)
    if view.state is SliceState.STOPPED:
        return view
    if view.state is not SliceState.STOPPING:
        if view.state is not SliceState.READY:
            raise WrongState(f"{lease.handle} is {view.native_state}: only a READY slice can be stopped")
        await retry.until(await Now() + PATIENCE_S, StopSlice(lease.name))
    return await _await_state(lease, SliceState.STOPPED, await Now() + STOP_S)


async def down(leases: tuple[Lease, ...], capabilities: Capabilities, *, reason: str) -> list[Released]:
    """Release each of them, whoever lives for it: a run in another terminal sees its lease DOWN and ends itself."""
    await _arm_if_possible()
    for lease in leases:
        await Lock(lease.id)  # where nobody else lives for it, so that no other command begins the same
    results = await release_all([(lease, reason) for lease in leases], capabilities, budget_s=RELEASE_S)
    for lease in leases:
        await Unlock(lease.id)
    return results


async def _arm_if_possible() -> None:
    """Somebody should go on when this process is killed halfway; but no guardian is no reason not to delete."""
    try:
        await StartGuardian()
    except TpujobError as error:
        await Report("warning", error.message)


async def _existing(lease: Lease) -> SliceView:
    view = await retry.until(await Now() + PATIENCE_S, Get(lease.name))
    if view is None:
        raise WrongState(
            f"{lease.handle} ({lease.name.node}) does not exist any more", hint="`tpujob up` makes a new one"
        )
    return view


async def _await_state(lease: Lease, wanted: SliceState, give_up_at: float) -> SliceView:
    for pause_s in retry.pauses(longest_s=10.0):
        view = await _existing(lease)
        if view.state is wanted:
            return view
        if await Now() >= give_up_at:
            raise CloudUnavailable(f"{lease.handle} is still {view.native_state}")
        await Report("state", f"{lease.name.node} is {view.native_state}", passing=True)
        await Sleep(pause_s)
    raise AssertionError("pauses() never ends")
