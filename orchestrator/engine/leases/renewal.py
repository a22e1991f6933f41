"""Saying to everybody who could delete a slice until when it is claimed: through its labels, in time, and never twice at once.

Whoever moves a claim (`keep`, `extend`, `hand_over`) writes the label first and the ledger second: killed in between, the
slice is deleted too early by its local owner, never forgotten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from orchestrator.core.lease import absence, claim_labels, watchdog_report
from orchestrator.core.lease.lease import Detached, Extended, Held, Lease, LeaseState, Mode, NotAllowed, apply
from orchestrator.core.lease.slices import Capabilities, Listing, SliceState, SliceView
from orchestrator.core.text import names
from orchestrator.core.text.durations import format_duration
from orchestrator.engine.effects.base import (
    IsTimeCertain,
    Lock,
    Now,
    Program,
    ReadLease,
    Record,
    Report,
    SetServerTime,
    Sleep,
    Unlock,
)
from orchestrator.engine.effects.cloud import Get, GetGuestAttributes, ListSlices, SetLabels
from orchestrator.engine.runtime.retry import Timed, pauses
from orchestrator.errors import CloudError, CloudUnavailable, Vanished, WatchdogNotArmed, WrongState

T = TypeVar("T")

PATIENCE_S = 60.0  # for a cloud that does not answer, or that is busy with another change of the slice
SKEW_WORTH_S = 5.0
SKEW_TOLD_S = 60.0
ASLEEP_S = 300.0  # between two looks of a program that looks every few seconds


async def move(lease: Lease, event: Held | Detached | Callable[[Lease], Extended], capabilities: Capabilities) -> Lease:
    """The claim after `event`, in the labels and then in the ledger. Raises Vanished when it was given up meanwhile.

    An event that depends on where the claim ends now is made when nobody else can move it any more.
    """
    return await _alone(lease, lambda: _move(lease, event, capabilities))


async def shorten(before: Lease, shorter: Lease, capabilities: Capabilities) -> None:
    """The ledger has an earlier deadline already; now the labels get it, too, and claim nothing for a waiting that is over."""
    await _alone(shorter, lambda: _write(before, shorter, capabilities, anew=True))


async def _move(
    lease: Lease, event: Held | Detached | Callable[[Lease], Extended], capabilities: Capabilities
) -> Lease:
    if not await IsTimeCertain():
        raise CloudUnavailable("this machine was restarted, and the cloud does not say how long it was off")
    before = await ReadLease(lease.id)
    made = event if isinstance(event, Held | Detached) else event(before)
    await _write(before, apply(before, made), capabilities)
    await Record(made)
    return await ReadLease(lease.id)


async def _alone(lease: Lease, work: Callable[[], Program[T]]) -> T:
    """One process moves a claim at a time: of two that read, change and write the labels, one would be lost."""
    lock, give_up_at = f"claim {lease.id}", await Now() + PATIENCE_S
    for pause_s in pauses(first_s=0.2, longest_s=2.0):
        if await Lock(lock):
            break
        if await Now() + pause_s > give_up_at:
            raise CloudUnavailable(f"another tpujob command is changing the claim on {lease.name.node}")
        await Sleep(pause_s)
    try:
        result = await work()
    except NotAllowed as error:
        await Unlock(lock)
        raise Vanished(f"{lease.name.node} was given up meanwhile") from error
    except Exception:  # not `finally`: a killed process runs no line more, and the kernel drops its lock
        await Unlock(lock)
        raise
    await Unlock(lock)
    return result


async def clock_skew(listing: Listing[SliceView], *, asked_at: float, said: bool = False) -> float:
    """How far the cloud's clock is ahead of this machine's. With `said`, a person hears of a clock that is wrong.

    The listing was made at some time between `asked_at` and now: of what that allows, the least is believed, so that a
    slow answer, or a lid that was closed meanwhile, is not taken for a wrong clock.
    """
    if listing.server_now is None:
        return 0.0
    least_s, most_s = listing.server_now - await Now(), listing.server_now - asked_at
    if least_s <= SKEW_WORTH_S and most_s >= -SKEW_WORTH_S:
        return 0.0  # a Date has whole seconds, and the answer took its time
    skew_s = least_s if least_s > 0 else most_s
    if said and abs(skew_s) > SKEW_TOLD_S:
        how = "behind" if skew_s > 0 else "ahead of"
        await Report(
            "warning", f"the times that tpujob shows are {format_duration(abs(skew_s))} {how} the cloud's clock"
        )
    return skew_s


async def ask_time(lease: Lease) -> None:
    """After a restart of this machine the cloud has to say how much time has passed. No answer: then none has, for now."""
    if not await IsTimeCertain():
        await Report("clock", "asking the cloud how long this machine was off", passing=True)
        with contextlib.suppress(CloudError):
            asked_at, listing = await Timed(ListSlices(lease.name.project, lease.name.zone))
            await hear_time(listing, asked_at=asked_at)


async def hear_time(listing: Listing[SliceView], *, asked_at: float) -> None:
    if listing.server_now is not None:
        await SetServerTime(listing.server_now, asked_at)


async def _write(before: Lease, wanted: Lease, capabilities: Capabilities, *, anew: bool = False) -> None:
    """The labels of `wanted` in place of those of `before`, until they are seen: an accepted update may fail yet."""
    give_up_at = await Now() + PATIENCE_S
    said: dict[str, str] = {}
    for pause_s in pauses(first_s=0.2, longest_s=5.0):
        failure: CloudError = CloudUnavailable(f"the labels of {wanted.name.node} do not take on the new claim")
        try:
            found, skew_s = await _listed(wanted)
            # Decided once: after a lost reply the deadline may have moved already, and must not move again.
            said = said or await _said(before, wanted, found, skew_s, capabilities, anew=anew)
            if not _shows(found, said):
                await SetLabels(wanted.name, {**found.labels, **said})
                found, _ = await _listed(wanted)
            if _shows(found, said):
                return
        except (CloudUnavailable, WrongState) as error:  # WrongState: another change of this slice is under way
            failure = error
        wait_s = (failure.retry_after_s if isinstance(failure, CloudUnavailable) else None) or pause_s
        if await Now() + wait_s > give_up_at:
            raise failure
        await Sleep(wait_s)


async def _listed(lease: Lease) -> tuple[SliceView, float]:
    """The slice as a list shows it, and how far the clock of whoever made the list is ahead of ours."""
    name = lease.name
    asked_at, listing = await Timed(ListSlices(name.project, name.zone))
    found = next((row for row in listing.rows if absence.is_ours(row, lease)), None)
    skew_s = await clock_skew(listing, asked_at=asked_at)
    if found is None and not listing.complete:
        found = await Get(name)  # the list cannot speak for its zone; what time it is, it said all the same
    if found is None or not absence.is_ours(found, lease):
        raise Vanished(f"{name.node} does not exist (any more)")
    if found.state is SliceState.TOMBSTONE:
        raise Vanished(f"{name.node} was taken away ({found.native_state}): nothing of it can be claimed")
    return found, skew_s


async def _said(
    before: Lease, wanted: Lease, found: SliceView, skew_s: float, capabilities: Capabilities, *, anew: bool = False
) -> dict[str, str]:
    deadline = claim_labels.read_deadline(found.labels)
    if deadline is not None:
        deadline += wanted.deadline - before.deadline
    said = claim_labels.labels(wanted, await Now(), capabilities.timings, skew_s=skew_s, deadline=deadline)
    claimed = claim_labels.read_claimed_until(found.labels)
    if anew:
        claimed = min(claimed, claim_labels.claimed_until_once_ready(wanted, capabilities.timings) + skew_s)
    if wanted.mode is Mode.RUN and claimed > claim_labels.read_claimed_until(said):
        said[names.CLAIMED_UNTIL] = str(int(claimed))  # what was claimed already stays claimed
    return said


def _shows(view: SliceView, said: Mapping[str, str]) -> bool:
    return said.items() <= view.labels.items()


class LeaseRenewal:
    """What an attached program does for its claim while it works: call `turn` between steps, as often as you like."""

    def __init__(self, lease: Lease, workers: int, capabilities: Capabilities, now: float) -> None:
        self._lease, self._workers, self._can = lease, workers, capabilities
        # An attached run was claimed in its create call and never since; what else claims a slice reaches to its end.
        sent_at = lease.sent_at or lease.created_at
        own = lease.mode is Mode.RUN
        self._claimed_until = (
            claim_labels.first_claimed_until(lease, sent_at, capabilities.timings) if own else lease.ends_at
        )
        if own and lease.ready_by is not None:  # `shorten` took its waiting off that
            self._claimed_until = min(self._claimed_until, claim_labels.claimed_until_once_ready(lease, capabilities.timings))
        self._not_before = self._looked_at = now
        self._armed_by = now + capabilities.timings.boot_s
        self._armed = False

    async def tick(self, silent_s: float = 0.0) -> None:
        now = await Now()
        if now - self._looked_at > ASLEEP_S:
            await Report(
                "warning", f"this machine was asleep, or tpujob stopped, for {(now - self._looked_at) / 60:.0f} min"
            )
        self._looked_at = now
        if now >= self._not_before:
            await self._renew(now)
            await self._check_watchdogs(now)

    async def _renew(self, now: float) -> None:
        timings = self._can.timings
        if self._claimed_until - now > timings.label_ttl_s - timings.renew_s:
            return
        try:
            lease = await ReadLease(self._lease.id)
            ahead = claim_labels.claimed_until(lease, now, timings)
            if lease.state is not LeaseState.READY or ahead <= self._claimed_until:
                return  # somebody said `down`, which the program will see; or the deadline is all there is left
            await _alone(lease, lambda: self._renew_labels(lease))
            self._claimed_until = ahead
        except CloudError:
            self._not_before = now + min(30.0, timings.grace_s / 3)  # there is time: the label still holds

    async def _renew_labels(self, lease: Lease) -> None:
        found, skew_s = await _listed(lease)
        said = await _said(lease, lease, found, skew_s, self._can)
        await SetLabels(lease.name, {**found.labels, **said})  # one may get lost: there is time for another

    async def _check_watchdogs(self, now: float) -> None:
        if self._armed:
            return
        timings = self._can.timings
        try:
            missing = watchdog_report.problem(
                watchdog_report.read_watchdogs(await GetGuestAttributes(self._lease.name), self._workers)
            )
        except CloudError as error:
            missing = error.message
        self._not_before = max(self._not_before, now + timings.heartbeat_s / 4)
        if missing is None:
            self._armed = True
            await Report("switch", "armed on every worker: the slice deletes itself when nobody claims it any more")
        elif now > self._armed_by:
            self._armed = True  # said once
            text = f"not armed ({missing}): if this machine dies, only `tpujob gc` from another one ends this slice"
            await Report("warning", text)


async def wait_for_watchdogs(lease: Lease, workers: int, capabilities: Capabilities) -> None:
    """Until every worker's switch runs and reaches the API, and one of them proved for all that they may delete the slice.

    Raises NotArmed when they do not in time.
    """
    give_up_at = min((lease.ready_at or await Now()) + capabilities.timings.boot_s, lease.deadline)
    await Report("switch", "waiting until the switch on every worker is armed", passing=True)
    while True:
        try:
            missing = watchdog_report.problem(
                watchdog_report.read_watchdogs(await GetGuestAttributes(lease.name), workers)
            )
        except CloudUnavailable as error:
            missing = error.message
        if missing is None:
            await Report("switch", "armed on every worker: the slice deletes itself when its claim ends")
            return
        if await Now() > give_up_at:
            raise WatchdogNotArmed(
                f"the slice could not be trusted to delete itself: {missing}",
                hint="a detached run needs that; run it attached, or see docs/guarantee.md for what the VM needs",
            )
        await Sleep(watchdog_report.min_read_interval_s(capabilities.timings.heartbeat_s))


async def hand_over(lease: Lease, capabilities: Capabilities) -> Lease:
    """Pass the claim to the job on the VM: when this returns, the switch there knows, and this process may leave."""
    return await _alone(lease, lambda: _hand_over(lease, capabilities))


async def _hand_over(lease: Lease, capabilities: Capabilities) -> Lease:
    before = await ReadLease(lease.id)
    wanted = apply(before, Detached(lease.id, await Now()))
    await _write(before, wanted, capabilities)
    await Report("detach", "waiting until the switch knows that the job has the claim", passing=True)
    give_up_at = min(await Now() + max(3 * capabilities.timings.poll_s, PATIENCE_S), wanted.deadline)
    while True:
        try:
            first = watchdog_report.read_watchdogs(await GetGuestAttributes(lease.name), 1)[0]
        except CloudUnavailable:
            first = None
        if first is not None and first.mode == str(wanted.mode):
            await Record(Detached(lease.id, await Now()))
            return await ReadLease(lease.id)
        if await Now() > give_up_at:
            raise WatchdogNotArmed(
                f"the switch on {lease.name.node} did not take the claim over", hint="the run was given up"
            )
        await Sleep(watchdog_report.min_read_interval_s(capabilities.timings.heartbeat_s))
