"""Results: brought home for as long as they come, and kept on their slice for a while where they do not.

A slice goes when nobody wants anything of it any more. Results that could not be brought home are wanted, so it is held for
`limits.linger` after the run, never past its deadline: a claim like that of `tpujob up`, in its labels and in the ledger, so
it outlives this process and ends without it. `collect_again` is what `tpujob collect` does with the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.core.lease.attempt import Attempt, AttemptState, ResultsCollected, RunRecord
from orchestrator.core.lease.lease import Down, Held, Lease, NotAllowed
from orchestrator.core.lease.slices import Capabilities
from orchestrator.core.text.sizes import format_size
from orchestrator.engine.effects.base import Lock, Now, Record, Report, Shield, StartGuardian, Unlock
from orchestrator.engine.effects.cloud import Workers
from orchestrator.engine.effects.workers import Connect, Disconnect, StartCollection, StopCollection, WaitForCollection
from orchestrator.engine.jobs.job_run import Outcome
from orchestrator.engine.jobs.monitor import LOOK_S, PeriodicTask, check_slice
from orchestrator.engine.leases.obligations import keep, release_owed
from orchestrator.engine.leases.release import as_written, note
from orchestrator.engine.leases.renewal import move
from orchestrator.engine.runtime import retry
from orchestrator.errors import (
    ArtifactError,
    CloudError,
    DeadlineExceeded,
    Interrupted,
    Preempted,
    TpujobError,
    Vanished,
    WrongState,
)

if TYPE_CHECKING:
    from orchestrator.remote.fleet.fleet import Fleet
    from orchestrator.remote.transfer.collect import CollectRequest, CollectResult, Progress

WATCH_S = 1.0
SILENT_S = 10.0  # after which a hold is not made longer for what comes no more
WORTH_S = 10.0  # of time that is left, to hold a slice for
LAST_COLLECT_S = 5.0  # what is left for collecting in any case
CONNECT_S = 120.0
RELEASED = "its results are at home"


async def bring_home(
    lease: Lease, fleet: Fleet, order: CollectRequest, tasks: Sequence[PeriodicTask] = ()
) -> CollectResult:
    """All that comes before the end of the slice's claim. Raises Vanished or Preempted when it went meanwhile.

    A worker of which nothing comes any more is given up by `remote.transfer.collect`; nothing that goes on is cut short.
    """
    began = looked_at = moved_at = await Now()
    ends_at = (await as_written(lease)).ends_at
    collection, signs = await StartCollection(fleet, order), 0
    while True:
        now = await Now()
        end_at = max(ends_at, began + LAST_COLLECT_S)
        if now >= end_at and (ends_at := (await as_written(lease)).ends_at) <= now:  # perhaps it was extended
            return await StopCollection(collection, "the end of the slice's time came first")
        seen = await WaitForCollection(collection, max(min(WATCH_S, end_at - now), 0.0))
        if seen.result is not None:
            return seen.result
        now = await Now()
        await Report("collect", progress_words(seen, now - began), passing=True)
        if seen.signs != signs:
            signs, moved_at = seen.signs, now
        for chore in tasks:
            await chore.tick(now - moved_at)
        if now - looked_at >= LOOK_S:
            looked_at = now
            current, _ = await check_slice(lease)
            ends_at = current.ends_at


def progress_words(seen: Progress, took_s: float) -> str:
    """`1,203 of 12,000 files, 3.2 GB of 41.0 GB, 86.1 MB/s`."""
    if not seen.of_files:
        return f"looking at the results: {format_size(seen.looked_at_bytes)} so far"
    rate = f", {format_size(seen.size_bytes / took_s)}/s" if took_s >= 1 else ""
    size = f"{format_size(seen.size_bytes)} of {format_size(seen.of_bytes)}"
    return f"{seen.files:,} of {seen.of_files:,} files, {size}{rate}"


def check_collected(collected: CollectResult | None) -> None:
    """Raises ArtifactError for what was refused or damaged, or is still on the slice."""
    if collected is None or not collected.problems:
        return
    if collected.waiting:
        raise ArtifactError(f"not all results are at home: {collected.waiting[0]}")
    raise ArtifactError(
        f"{len(collected.problems)} artifacts were refused or damaged: {collected.problems[0]}",
        hint="the others are in the run's directory",
    )


async def keep_what_waits(outcome: Outcome, linger_s: float | None, capabilities: Capabilities) -> None:
    """Hold the slice of a run that has ended, if results are still on it. Where that cannot be, it is said, and it goes."""
    lease = outcome.owed.lease
    if lease is None or outcome.collected is None or not outcome.collected.waiting:
        return
    try:
        current, _ = await check_slice(lease)
        now = await Now()
        if current.deadline - now < WORTH_S:
            raise DeadlineExceeded("its time is over")
        outcome.lease = await keep(
            outcome.owed, now + (capabilities.timings.linger_s if linger_s is None else linger_s), capabilities
        )
    except TpujobError as error:
        text = f"{lease.name.node} cannot be kept, and what is not at home is lost with it: {error.message}"
        await Report("warning", text)


@dataclass(slots=True)
class HoldOn:
    """A chore: while results come, the hold lasts for another time to live; never past the deadline."""

    lease: Lease
    capabilities: Capabilities
    _not_before: float = 0.0

    async def tick(self, silent_s: float = 0.0) -> None:
        now, ahead_s = await Now(), self.capabilities.timings.ttl_s
        long_enough = self.lease.ends_at - now > ahead_s / 2 or self.lease.ends_at >= self.lease.deadline
        if long_enough or silent_s > SILENT_S or now < self._not_before:
            return
        self._not_before = now + ahead_s / 10
        try:
            self.lease = await move(self.lease, Held(self.lease.id, now, now + ahead_s), self.capabilities)
        except Vanished:
            raise
        except CloudError:
            pass  # there is time for another try


@dataclass(frozen=True, slots=True)
class Left:
    """A run that has ended, and whose results are on a slice that is held. `borrowed`: `tpujob up` brought it, and it stays."""

    run: RunRecord
    attempt: Attempt
    lease: Lease
    order: CollectRequest
    borrowed: bool = False

    @property
    def own_error(self) -> TpujobError | None:
        """How the run ended, its results aside."""
        code, missing = self.attempt.exit_code, ArtifactError.exit_code
        if self.attempt.state is AttemptState.SUCCEEDED or code == missing:
            return None
        detail = self.attempt.detail or "nobody wrote down how it ended"
        return TpujobError(detail, exit_code=Vanished.exit_code if code is None else code)


async def collect_again(to: Left, capabilities: Capabilities) -> Outcome:
    """Never raises a TpujobError. Once the results are at home the slice goes, proven; until then its hold stays as it is.

    Whoever calls holds the claim on the attempt, so that only one process collects.
    """
    outcome = Outcome(to.run, to.attempt, to.attempt.state, started_at=await Now(), lease=to.lease)
    gone = False
    try:
        collected = outcome.collected = await _collect(to, outcome, capabilities)
        outcome.error = None if collected.waiting else to.own_error
        if outcome.error is None:
            check_collected(collected)
    except Interrupted as error:
        outcome.error = error
    except (Vanished, Preempted) as error:
        gone = True
        outcome.error = ArtifactError(f"what was not at home is lost: {error.message}")
    except ArtifactError as error:
        outcome.error = error
    except TpujobError as error:
        outcome.error = ArtifactError(f"the results were not brought home: {error.message}", hint=error.hint)
    except Exception as error:
        outcome.error = TpujobError(f"a bug in tpujob: {type(error).__name__}: {error}", hint="please report it")
        outcome.error.__cause__ = error
    await Shield()
    await outcome.enter(None)
    if outcome.fleet is not None:
        await Disconnect(outcome.fleet)
    at_home = outcome.collected is not None and not outcome.collected.waiting
    if at_home:
        await _write_down(to, outcome)
    outcome.lease = await as_written(to.lease)
    over = gone or outcome.lease.ends_at <= await Now()
    if to.borrowed or not (at_home or over):
        outcome.owed.kept_until = outcome.lease.hold_until
    else:
        outcome.owed.lease = to.lease
        await release_owed(outcome.owed, capabilities, RELEASED if at_home else "the time for its results is over")
    await Unlock(to.lease.id)
    await Unlock(to.attempt.id)
    outcome.spans["release"] = outcome.owed.release_s
    outcome.ended_at = await Now()
    return outcome


async def _collect(to: Left, outcome: Outcome, capabilities: Capabilities) -> CollectResult:
    if not await Lock(to.lease.id) and not to.borrowed:
        raise WrongState(f"another tpujob command is at work on {to.lease.name.node}")
    try:
        await StartGuardian()
    except TpujobError as error:  # the claim is in the labels: no guardian is no reason not to collect
        await Report("warning", error.message)
    await outcome.enter("connect")
    await Report("collect", f"connecting to {to.lease.name.node}", passing=True)
    now = await Now()
    patience_s = min(CONNECT_S, max(to.lease.ends_at - now, LAST_COLLECT_S))  # nobody waits past the end of the hold
    try:
        workers = await retry.until(now + patience_s, Workers(to.lease.name))
        outcome.fleet = await Connect(to.lease, workers, patience_s)
    except TpujobError:
        await check_slice(to.lease)  # it may be gone, or going
        raise
    await outcome.enter("collect")
    tasks = [] if to.borrowed else [HoldOn(to.lease, capabilities)]
    return await bring_home(to.lease, outcome.fleet, to.order, tasks)


async def _write_down(to: Left, outcome: Outcome) -> None:
    """How the run ended now that its results are at home, in one with the end of the claim on its slice."""
    error, now = outcome.error, await Now()
    state = AttemptState.SUCCEEDED if error is None else to.attempt.state
    outcome.state = state
    brought = ResultsCollected(
        to.attempt.id, now, state, detail=error.message if error else "", exit_code=outcome.own_code
    )
    try:
        await Record(brought, *([] if to.borrowed else [Down(to.lease.id, now, RELEASED)]))
    except NotAllowed:  # somebody else has given it up
        await note(brought)
    except TpujobError as trouble:
        await Report("warning", trouble.message)
