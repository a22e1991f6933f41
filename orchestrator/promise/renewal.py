"""Lease renewal: keep the claim labels of a slice up to date, and move a claim, one process at a time.

A moved claim (`keep_slice`, `take_over`, `extend`, `hand_over`) is written to the labels first and to the ledger second: if the
process is killed in between, its own machine releases the slice too early, but never forgets it.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

from orchestrator.errors import CloudError, CloudUnavailable, Vanished, WatchdogNotArmed, WrongState
from orchestrator.promise.effects.base import (
    IsTimeCertain,
    Lock,
    Now,
    Program,
    ReadLease,
    Record,
    Report,
    Sleep,
    Unlock,
)
from orchestrator.promise.effects.cloud import ExtendLogin, Get, GetGuestAttributes, ListSlices, SetLabels
from orchestrator.promise.effects.retry import Timed, pauses, until
from orchestrator.promise.lease import absence, claim_labels, guest_reports
from orchestrator.promise.lease.access import KEY_OUTLIVES_S
from orchestrator.promise.lease.changes import Detached, Extended, HandedToNextRun, HeldUntil, NotAllowed, apply
from orchestrator.promise.lease.cloud_api import Capabilities, SliceState, SliceView
from orchestrator.promise.lease.lease import Lease, LeaseState, Mode
from orchestrator.promise.server_time import clock_skew
from orchestrator.text import names

T = TypeVar("T")

LEAST_MOVE_S = 30.0  # a smaller difference is one of clocks
PATIENCE_S = 60.0  # for a cloud that does not reply, or that is busy with another change of the slice
ARMED = "armed on every worker: the slice deletes itself when its claim is over"


Move = HeldUntil | HandedToNextRun | Callable[[Lease], Extended]


async def move_claim(lease: Lease, event: Move, capabilities: Capabilities) -> Lease:
    """Apply `event` to the claim, in the labels and then in the ledger; return the lease after it.

    A callable makes the event from the current lease once no other process can move its claim. Raises Vanished if the slice
    was released meanwhile, CloudUnavailable if the labels cannot be written in time.
    """
    return await _exclusively(lease, lambda: _move_claim(lease, event, capabilities))


async def shorten_claim(before: Lease, shorter: Lease, capabilities: Capabilities) -> None:
    """Write an earlier deadline, which the ledger has already, to the labels, without the claim for a wait that is over."""
    await _exclusively(shorter, lambda: _write(before, shorter, capabilities, anew=True))


async def catch_up(lease: Lease) -> Lease:
    """Return the lease with the end that its labels say, if that is later: another machine may have moved it."""
    found, skew_s = await _listed(lease)
    held = lease.hold_until is not None
    said = claim_labels.read_claimed_until(found.labels) if held else claim_labels.read_deadline(found.labels)
    until = min((said or 0.0) - skew_s, claim_labels.latest_end(lease))
    if until > lease.ends_at + LEAST_MOVE_S:
        await Record(Extended(lease.id, await Now(), until))
        if lease.route.os_login and until > lease.deadline:
            await _extend_login(await ReadLease(lease.id), skew_s)
    return await ReadLease(lease.id)


async def _move_claim(lease: Lease, event: Move, capabilities: Capabilities) -> Lease:
    if not await IsTimeCertain():
        raise CloudUnavailable("this machine was restarted, and the cloud did not reply how long it was off")
    before = await ReadLease(lease.id)
    made = event(before) if callable(event) else event
    skew_s = await _write(before, apply(before, made), capabilities)
    await Record(made)
    after = await ReadLease(lease.id)
    if after.route.os_login and after.deadline > before.deadline:
        await _extend_login(after, skew_s)
    return after


async def _extend_login(lease: Lease, skew_s: float) -> None:
    try:
        await until(await Now() + PATIENCE_S, ExtendLogin(lease, lease.deadline + skew_s + KEY_OUTLIVES_S))
    except CloudError as error:
        why = f"the SSH key in your OS Login profile still expires as before: {error.message}"
        await Report("warning", f"{lease.name.node}: {why}")


async def _exclusively(lease: Lease, work: Callable[[], Program[T]]) -> T:
    """Run `work` under the lock of the claim: of two processes that read and write the labels, one change would be lost."""
    lock, give_up_at = f"claim {lease.id}", await Now() + PATIENCE_S
    for pause_s in pauses(first_s=0.2, longest_s=2.0):
        if await Lock(lock):
            break
        if await Now() + pause_s > give_up_at:
            raise CloudUnavailable(f"another tpujob command is changing the claim on {lease.name.node}")
        await Sleep(pause_s)
    try:
        result = await work()
    except Exception as error:  # not `finally`: after a kill the kernel drops the lock, and no further line must run
        await Unlock(lock)
        if isinstance(error, NotAllowed):
            raise Vanished(f"{lease.name.node} was released meanwhile") from error
        raise
    await Unlock(lock)
    return result


async def _write(before: Lease, wanted: Lease, capabilities: Capabilities, *, anew: bool = False) -> float:
    """Write the labels of `wanted` in place of those of `before`, until they are seen: an accepted update may still fail.

    Return the seconds that the server's clock is ahead of ledger time.
    """
    give_up_at = await Now() + PATIENCE_S
    labels: dict[str, str] = {}
    for pause_s in pauses(first_s=0.2, longest_s=5.0):
        failure: CloudError = CloudUnavailable(f"the labels of {wanted.name.node} do not take on the new claim")
        try:
            found, skew_s = await _listed(wanted)
            # Computed once: after a lost reply the deadline may have moved already, and must not move again.
            labels = labels or await _claim_labels(before, wanted, found, skew_s, capabilities, anew=anew)
            if not _has(found, labels):
                await SetLabels(wanted.name, {**found.labels, **labels})
                found, skew_s = await _listed(wanted)
            if _has(found, labels):
                return skew_s
        except (CloudUnavailable, WrongState) as error:  # WrongState: another change of this slice is under way
            failure = error
        wait_s = (failure.retry_after_s if isinstance(failure, CloudUnavailable) else None) or pause_s
        if await Now() + wait_s > give_up_at:
            raise failure
        await Sleep(wait_s)
    raise AssertionError("pauses() never ends")


async def _listed(lease: Lease) -> tuple[SliceView, float]:
    """The slice as a list has it, and the seconds that the server's clock is ahead of ledger time."""
    name = lease.name
    asked_at, listing = await Timed(ListSlices(name.project, name.zone))
    found = next((row for row in listing.rows if absence.is_ours(row, lease)), None)
    skew_s = await clock_skew(listing, asked_at=asked_at)
    if found is None and not listing.complete:
        found = await Get(name)  # an incomplete list proves nothing; its time is valid all the same
    if found is None or not absence.is_ours(found, lease):
        raise Vanished(f"{name.node} does not exist (any more)")
    if found.state is SliceState.TOMBSTONE:
        raise Vanished(f"{name.node} was taken away ({found.native_state}): it cannot be claimed any more")
    return found, skew_s


async def _claim_labels(
    before: Lease, wanted: Lease, found: SliceView, skew_s: float, capabilities: Capabilities, *, anew: bool = False
) -> dict[str, str]:
    """The labels of `wanted`. A claim of a run never becomes shorter, except with `anew` for a wait that is over."""
    deadline = claim_labels.read_deadline(found.labels)
    if deadline is not None:
        deadline += wanted.deadline - before.deadline
    labels = claim_labels.labels(wanted, await Now(), capabilities.timings, skew_s=skew_s, deadline=deadline)
    claimed = claim_labels.read_claimed_until(found.labels)
    if anew:
        claimed = min(claimed, claim_labels.claimed_until_once_ready(wanted, capabilities.timings) + skew_s)
    if wanted.mode is Mode.RUN and claimed > claim_labels.read_claimed_until(labels):
        labels[names.CLAIMED_UNTIL] = str(int(claimed))
    return labels


def _has(view: SliceView, labels: Mapping[str, str]) -> bool:
    return labels.items() <= view.labels.items()


class LeaseRenewal:
    """Renews the claim of an attached program. Call `tick` between steps, as often as convenient.

    `taken_over`: a run before reported the watchdogs; only a problem of theirs is news.
    """

    def __init__(
        self, lease: Lease, workers: int, capabilities: Capabilities, now: float, *, taken_over: bool = False
    ) -> None:
        self._lease, self._workers, self._capabilities = lease, workers, capabilities
        timings = capabilities.timings
        self._claimed_until = lease.ends_at
        if lease.mode is Mode.RUN:  # an attached run has only the claim of its create call
            self._claimed_until = claim_labels.first_claimed_until(lease, lease.sent_at or lease.created_at, timings)
            if lease.ready_by is not None:  # `shorten_claim` removed its wait
                self._claimed_until = min(self._claimed_until, claim_labels.claimed_until_once_ready(lease, timings))
        self._not_before = now
        self._armed_by = now + timings.boot_s
        self._taken_over = taken_over
        self._armed = False

    async def tick(self, silent_s: float = 0.0) -> None:
        """Renew the label when it is due, and report once whether the watchdogs are armed."""
        now = await Now()
        if now >= self._not_before:
            await self._renew(now)
            await self._check_watchdogs(now)

    async def _renew(self, now: float) -> None:
        timings = self._capabilities.timings
        if self._claimed_until - now > timings.label_ttl_s - timings.renew_s:
            return
        try:
            lease = await ReadLease(self._lease.id)
            ahead = claim_labels.claimed_until(lease, now, timings)
            if lease.state is not LeaseState.READY or ahead <= self._claimed_until:
                return  # released by `down`, which the program will notice; or the claim reaches the deadline already
            await _exclusively(lease, lambda: self._renew_labels(lease))
            self._claimed_until = ahead
        except CloudError:
            self._not_before = now + min(30.0, timings.grace_s / 3)  # there is time: the label is still valid

    async def _renew_labels(self, lease: Lease) -> None:
        found, skew_s = await _listed(lease)
        labels = await _claim_labels(lease, lease, found, skew_s, self._capabilities)
        await SetLabels(lease.name, {**found.labels, **labels})  # not verified: there is time for another renewal

    async def _check_watchdogs(self, now: float) -> None:
        if self._armed:
            return
        timings = self._capabilities.timings
        try:
            missing = await _watchdog_problem(self._lease, self._workers)
        except CloudError as error:
            missing = error.message
        self._not_before = max(self._not_before, now + timings.heartbeat_s / 4)
        if missing is None:
            self._armed = True
            if not self._taken_over:
                await Report("watchdog", ARMED)
        elif now > self._armed_by:
            self._armed = True  # reported once
            text = f"not armed ({missing}): if this machine dies, only `tpujob gc` from another one ends this slice"
            await Report("warning", text)


async def _watchdog_problem(lease: Lease, workers: int) -> str | None:
    """Why the slice would not delete itself; None when every worker's watchdog is armed."""
    return guest_reports.problem(guest_reports.read_watchdogs(await GetGuestAttributes(lease.name), workers))


async def wait_for_watchdogs(lease: Lease, workers: int, capabilities: Capabilities) -> None:
    """Wait until every worker's watchdog runs and reaches the API, and one of them proved that they may delete the slice.

    Raises WatchdogNotArmed after `boot_s` from READY.
    """
    give_up_at = min((lease.ready_at or await Now()) + capabilities.timings.boot_s, lease.deadline)
    await Report("watchdog", "waiting until the watchdog on every worker is armed", passing=True)
    while True:
        try:
            missing = await _watchdog_problem(lease, workers)
        except CloudUnavailable as error:
            missing = error.message
        if missing is None:
            await Report("watchdog", ARMED)
            return
        if await Now() > give_up_at:
            hint = "a detached run needs that; run it attached, or see docs/permissions.md for what the VM needs"
            raise WatchdogNotArmed(f"the slice is not able to delete itself: {missing}", hint=hint)
        await Sleep(guest_reports.min_read_interval_s(capabilities.timings.heartbeat_s))


async def hand_over(lease: Lease, capabilities: Capabilities) -> Lease:
    """Pass the claim to the job on the VM; return the lease after it. The watchdog has confirmed, so this process may end.

    Raises WatchdogNotArmed if it did not confirm in time, Vanished if the slice was released meanwhile.
    """
    return await _exclusively(lease, lambda: _hand_over(lease, capabilities))


async def _hand_over(lease: Lease, capabilities: Capabilities) -> Lease:
    before = await ReadLease(lease.id)
    wanted = apply(before, Detached(lease.id, await Now()))
    await _write(before, wanted, capabilities)
    await Report("detach", "waiting until the watchdog confirms the claim of the job", passing=True)
    give_up_at = min(await Now() + max(3 * capabilities.timings.poll_s, PATIENCE_S), wanted.deadline)
    while True:
        try:
            first = guest_reports.read_watchdogs(await GetGuestAttributes(lease.name), 1)[0]
        except CloudUnavailable:
            first = None
        if first is not None and first.mode == wanted.mode:
            await Record(Detached(lease.id, await Now()))
            return await ReadLease(lease.id)
        if await Now() > give_up_at:
            unheard = f"the watchdog on {lease.name.node} did not confirm the claim of the job"
            raise WatchdogNotArmed(unheard, hint="the run was stopped; submit it again, or run it attached")
        await Sleep(guest_reports.min_read_interval_s(capabilities.timings.heartbeat_s))
