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
from orchestrator.engine.jobs.monitor import LOOK_S, PeriodicTask, check_slice
from orchestrator.engine.jobs.progress import JobProgress, Outcome, exit_code_of
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
        if seen.activity != signs:
            signs, moved_at = seen.activity, now
        for chore in tasks:
            await chore.tick(now - moved_at)
        if now - looked_at >= LOOK_S:
            looked_at = now
            current, _ = await check_slice(lease)
            ends_at = current.ends_at


def progress_words(seen: Progress, took_s: float) -> str:
    """`1,203 of 12,000 files, 3.2 GB of 41.0 GB, 86.1 MB/s`."""
    if not seen.total_files:
        return f"looking at the results: {format_size(seen.hashed_bytes)} so far"
    rate = f", {format_size(seen.size_bytes / took_s)}/s" if took_s >= 1 else ""
    size = f"{format_size(seen.size_bytes)} of {format_size(seen.total_bytes)}"
    return f"{seen.files:,} of {seen.total_files:,} files, {size}{rate}"


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


async def keep_what_waits(progress: JobProgress, linger_s: float | None, capabilities: Capabilities) -> None:
    """Hold the slice of a run that has ended, if results are still on it. Where that cannot be, it is said, and it goes."""
    lease = progress.owed.lease
    if lease is None or progress.collected is None or not progress.collected.waiting:
        return
    try:
        current, _ = await check_slice(lease)
        now = await Now()
        if current.deadline - now < WORTH_S:
            raise DeadlineExceeded("its time is over")
        progress.lease = await keep(
            progress.owed, now + (capabilities.timings.linger_s if linger_s is None else linger_s), capabilities
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
    progress = JobProgress(to.run, to.attempt, await Now(), to.lease, to.attempt.state)
    gone = False
    try:
        collected = progress.collected = await _collect(to, progress, capabilities)
        progress.error = None if collected.waiting else to.own_error
        if progress.error is None:
            check_collected(collected)
    except Interrupted as error:
        progress.error = error
    except (Vanished, Preempted) as error:
        gone = True
        progress.error = ArtifactError(f"what was not at home is lost: {error.message}")
    except ArtifactError as error:
        progress.error = error
    except TpujobError as error:
        progress.error = ArtifactError(f"the results were not brought home: {error.message}", hint=error.hint)
    except Exception as error:
        progress.fail_with_bug(error)
    await Shield()
    await progress.enter(None)
    if progress.fleet is not None:
        await Disconnect(progress.fleet)
    at_home = progress.collected is not None and not progress.collected.waiting
    if at_home:
        await _write_down(to, progress)
    progress.lease = await as_written(to.lease)
    over = gone or progress.lease.ends_at <= await Now()
    if to.borrowed or not (at_home or over):
        progress.owed.kept_until = progress.lease.hold_until
    else:
        progress.owed.lease = to.lease
        await release_owed(progress.owed, capabilities, RELEASED if at_home else "the time for its results is over")
    await Unlock(to.lease.id)
    await Unlock(to.attempt.id)
    progress.spans["release"] = progress.owed.release_s
    return progress.outcome(await Now())


async def _collect(to: Left, progress: JobProgress, capabilities: Capabilities) -> CollectResult:
    if not await Lock(to.lease.id) and not to.borrowed:
        raise WrongState(f"another tpujob command is at work on {to.lease.name.node}")
    try:
        await StartGuardian()
    except TpujobError as error:  # the claim is in the labels: no guardian is no reason not to collect
        await Report("warning", error.message)
    await progress.enter("connect")
    await Report("collect", f"connecting to {to.lease.name.node}", passing=True)
    now = await Now()
    patience_s = min(CONNECT_S, max(to.lease.ends_at - now, LAST_COLLECT_S))  # nobody waits past the end of the hold
    try:
        workers = await retry.until(now + patience_s, Workers(to.lease.name))
        progress.fleet = await Connect(to.lease, workers, patience_s)
    except TpujobError:
        await check_slice(to.lease)  # it may be gone, or going
        raise
    await progress.enter("collect")
    tasks = [] if to.borrowed else [HoldOn(to.lease, capabilities)]
    return await bring_home(to.lease, progress.fleet, to.order, tasks)


async def _write_down(to: Left, progress: JobProgress) -> None:
    """How the run ended now that its results are at home, in one with the end of the claim on its slice."""
    error, now = progress.error, await Now()
    state = AttemptState.SUCCEEDED if error is None else to.attempt.state
    progress.state = state
    brought = ResultsCollected(
        to.attempt.id, now, state, detail=error.message if error else "", exit_code=exit_code_of(error)
    )
    try:
        await Record(brought, *([] if to.borrowed else [Down(to.lease.id, now, RELEASED)]))
    except NotAllowed:  # somebody else has given it up
        await note(brought)
    except TpujobError as trouble:
        await Report("warning", trouble.message)
