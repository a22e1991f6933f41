"""Collect the results of a run, save its work meanwhile, and hold its slice for what remains there, or since its job failed.

Results that could not be collected are a reason to hold the slice, for `limits.linger` after the run and never past its
deadline: a claim like that of `tpujob up`, in the labels and in the ledger, so it outlives this process and ends without it.
`tpujob collect` uses that time for another try (`collect_again`). `keep_on_failure` holds the slice of a failed job in the
same way; the next run of the job takes it over.

A copy of the work is made in the background, so that a large one delays neither the limits of the job nor the notice of a
preemption. `run.program` decides whether another attempt follows, and counts the time and money of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, cast

from orchestrator import errors
from orchestrator.hosts.fleet.effects import (
    Connect,
    Disconnect,
    KeepSave,
    StartCollection,
    StartSave,
    StopCollection,
    WaitForCollection,
)
from orchestrator.places.leased import LeasedStay
from orchestrator.places.place import Ground, PeriodicTask
from orchestrator.promise.effects import retry
from orchestrator.promise.effects.base import Lock, MaskSignals, Now, Record, Report, Unlock
from orchestrator.promise.effects.cloud import Workers
from orchestrator.promise.lease.changes import HeldUntil, NotAllowed, ReleaseBegan, ResultsCollected
from orchestrator.promise.lease.cloud_api import Capabilities
from orchestrator.promise.lease.lease import HeldFor, Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, recorded_error
from orchestrator.promise.obligations import keep_slice, release_owed
from orchestrator.promise.release import latest_lease, try_record, try_start_guardian
from orchestrator.promise.renewal import move_claim
from orchestrator.promise.standing import LOOK_S, check_slice
from orchestrator.run.following import hold_attempt
from orchestrator.run.progress import JobProgress, Outcome
from orchestrator.text.units import format_size

if TYPE_CHECKING:
    from orchestrator.hosts.fleet.crew import Crew, FleetPort
    from orchestrator.hosts.fleet.saved_work import SavedWork
    from orchestrator.hosts.transfer.collect import CollectionProgress, CollectRequest, CollectResult
    from orchestrator.hosts.transfer.collection import Collection

WAIT_S = 1.0
SILENT_S = 10.0  # without a byte of the results: then the hold is not extended
LEAST_HOLD_S = 10.0  # with less time left a slice is not held
LAST_COLLECT_S = 5.0  # the least time for a collection
CONNECT_S = 120.0
RELEASED = "its results are collected"


async def collect_results(
    ground: Ground, lease: Lease | None, crew: Crew, request: CollectRequest, tasks: Sequence[PeriodicTask] = ()
) -> CollectResult:
    """Return what was collected before the end of the slice's claim. Raises Vanished or Preempted if the slice goes meanwhile.

    `hosts.transfer.collector` gives up a worker that sends nothing any more. A transfer that continues is not cut short.
    """
    began = looked_at = moved_at = await Now()
    collection, activity = await StartCollection(crew, request), 0
    while True:
        now = await Now()
        current = await ground.check(lease)
        end_at = inf if current is None else max(current.ends_at, began + LAST_COLLECT_S)
        if now >= end_at:
            return await StopCollection(collection, "the end of the slice's time came first")
        seen = await WaitForCollection(collection, max(min(WAIT_S, end_at - now), 0.0))
        if seen.result is not None:
            return seen.result
        now = await Now()
        await Report("collect", progress_text(seen, now - began), passing=True)
        if seen.activity != activity:
            activity, moved_at = seen.activity, now
        for task in tasks:
            await task.tick(now - moved_at)
        if now - looked_at >= LOOK_S:
            looked_at = now
            await ground.look(lease)


def progress_text(seen: CollectionProgress, took_s: float) -> str:
    """Return the progress in words, such as `1,203 of 12,000 files, 3.2 GB of 41.0 GB, 86.1 MB/s`."""
    if not seen.total_files:
        return f"reading the results: {format_size(seen.hashed_bytes)} so far"
    rate = f", {format_size(seen.size_bytes / took_s)}/s" if took_s >= 1 else ""
    size = f"{format_size(seen.size_bytes)} of {format_size(seen.total_bytes)}"
    return f"{seen.files:,} of {seen.total_files:,} file{'s'[: seen.total_files != 1]}, {size}{rate}"


def check_collected(collected: CollectResult | None) -> None:
    """Raise ArtifactError for files that were refused or damaged, or that are still on the slice."""
    if collected is None or not collected.problems:
        return
    if collected.waiting:
        raise errors.ArtifactError(f"not all results are collected: {collected.waiting[0]}")
    raise errors.ArtifactError(
        f"artifacts were refused or damaged, {len(collected.problems):,} in all: {collected.problems[0]}",
        hint="the others are in the run's directory",
    )


async def hold_slice(
    progress: JobProgress, linger_s: float | None, capabilities: Capabilities, *, keep_on_failure_s: float | None = None
) -> None:
    """Hold the slice of a run that has ended if results are still on it, or if its job failed and is to be looked at.

    If that fails, report it; the slice is released.
    """
    lease = progress.owed.lease
    failed_s = keep_on_failure_s if isinstance(progress.error, errors.PayloadFailed) else None
    waiting = progress.collected is not None and progress.collected.uncollected
    if lease is None or (failed_s is None and not waiting):
        return
    hold_s = failed_s or 0.0
    if waiting:
        hold_s = max(hold_s, capabilities.timings.linger_s if linger_s is None else linger_s)
    try:
        current, _ = await check_slice(lease)
        now = await Now()
        if current.deadline - now < LEAST_HOLD_S:
            raise errors.DeadlineExceeded("its deadline is reached")
        held_for = HeldFor.RESULTS if waiting else HeldFor.FAILURE
        progress.lease = await keep_slice(progress.owed, now + hold_s, capabilities, held_for)
    except errors.TpujobError as error:
        lost = ", and the results that are not collected are lost with it" if waiting else ""
        await Report("warning", f"{lease.name.node} cannot be held{lost}: {error.message}")


@dataclass(slots=True)
class HoldRenewal:
    """A periodic task: while results arrive, or a job runs, extend the hold by one time to live; never past the deadline."""

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
            held = HeldUntil(self.lease.id, now, now + ahead_s, self.lease.held_for or HeldFor.USER)
            self.lease = await move_claim(self.lease, held, self.capabilities)
        except errors.Vanished:
            raise
        except errors.CloudError:
            pass  # there is time for another try


@dataclass(frozen=True, slots=True)
class UncollectedRun:
    """A run that has ended, with results on a held slice. `borrowed`: it is the slice of `tpujob up`, and stays."""

    run: RunRecord
    attempt: Attempt
    lease: Lease
    request: CollectRequest
    borrowed: bool = False
    wide: CollectRequest | None = None  # before it: of what lies beside the artifacts, to another place perhaps

    @property
    def own_error(self) -> errors.TpujobError | None:
        """The error of the run, its results aside; None after a success."""
        return _own_error(self.attempt)


def _own_error(attempt: Attempt) -> errors.TpujobError | None:
    error = recorded_error(attempt)
    return None if isinstance(error, errors.ArtifactError) else error


def end_of(attempt: Attempt, came: CollectResult, at: float) -> ResultsCollected:
    """Return how an attempt has ended now that its results came, from where its slice has no part."""
    error = _own_error(attempt)
    if error is None:
        try:
            check_collected(came)
        except errors.ArtifactError as missing:
            error = missing
    state = AttemptState.SUCCEEDED if error is None else attempt.state
    return ResultsCollected.by(attempt.id, at, state, error)


async def collect_again(to: UncollectedRun, capabilities: Capabilities) -> Outcome:
    """Collect the results and release the slice, proven; while results are missing, its hold stays as it is.

    Raises no TpujobError: whatever happens is in the outcome. The caller holds the lock of the attempt.
    """
    progress = JobProgress(to.run, to.attempt, to.lease, to.attempt.state)
    began, gone = await Now(), False
    try:
        progress.collected = collected = await _collect(to, progress, capabilities)
        progress.error = None if collected.waiting else to.own_error
        if progress.error is None:
            check_collected(collected)
    except errors.Interrupted as error:
        progress.error = error
    except (errors.Vanished, errors.Preempted) as error:
        gone = True
        progress.error = errors.ArtifactError(f"the results that were not collected are lost: {error.message}")
    except errors.ArtifactError as error:
        progress.error = error
    except errors.TpujobError as error:
        progress.error = errors.ArtifactError(f"the results were not collected: {error.message}", hint=error.hint)
    except Exception as error:
        progress.fail_with_bug(error)
    await MaskSignals()
    await progress.enter(None)
    if progress.crew is not None:
        await Disconnect(progress.crew)
    came = progress.collected
    complete = came is not None and not came.uncollected
    if came is not None and not came.waiting:
        await _record_end(to, progress, release=complete)
    progress.lease = await latest_lease(to.lease)
    over = gone or progress.lease.ends_at <= await Now()
    if to.borrowed or not (complete or over):
        progress.owed.kept_until = progress.lease.hold_until
    else:
        progress.owed.lease = to.lease
        await release_owed(progress.owed, capabilities, RELEASED if complete else "the time for its results is over")
    await Unlock(to.lease.id)
    await Unlock(to.attempt.id)
    progress.spans["release"] = progress.owed.release_s
    return replace(progress.outcome(now := await Now()), took_s=now - began)


async def _collect(to: UncollectedRun, progress: JobProgress, capabilities: Capabilities) -> CollectResult:
    if not await Lock(to.lease.id) and not to.borrowed:
        raise errors.WrongState(f"another tpujob command uses {to.lease.name.node}")
    await try_start_guardian()  # the claim is in the labels
    await progress.enter("connect")
    await Report("collect", f"connecting to {to.lease.name.node}", passing=True)
    now = await Now()
    patience_s = min(CONNECT_S, max(to.lease.ends_at - now, LAST_COLLECT_S))  # not past the end of the hold
    try:
        workers = await retry.until(now + patience_s, Workers(to.lease.name))
        progress.crew = await Connect(to.lease, workers, patience_s)
        await hold_attempt(cast("FleetPort", progress.crew), to.attempt.id)
    except errors.TpujobError:
        await check_slice(to.lease)  # it may be gone, or going
        raise
    await progress.enter("collect")
    ground, tasks = LeasedStay(), [] if to.borrowed else [HoldRenewal(to.lease, capabilities)]
    if to.wide is None:
        return await collect_results(ground, to.lease, progress.crew, to.request, tasks)
    came = await collect_results(ground, to.lease, progress.crew, to.wide, tasks)
    for stage, text in wide_lines(to.wide, came):
        await Report(stage, text)
    rest = await collect_results(ground, to.lease, progress.crew, without(to.request, came), tasks)
    return replace(rest, files=rest.files + came.files) if to.wide.destination == to.request.destination else rest


def wide_lines(wide: CollectRequest, came: CollectResult) -> list[tuple[str, str]]:
    """Return what is to be said of what came from beside the artifacts, each with its stage."""
    what = (
        f"{len(came.files):,} file{'s'[: len(came.files) != 1]}, {format_size(came.size_bytes)} in {wide.destination}"
    )
    missed = came.problems + came.left
    if not missed and (came.files or came.notes):
        return [("collect", what)]
    why = f"not collected: {missed[0]}" if missed else "--work matches no file of the job"
    return [("collect", what), ("warning", why)]


def without(request: CollectRequest, came: CollectResult) -> CollectRequest:
    """Return a request for what has not come."""
    here = {(file.worker, file.path) for file in came.files} | came.equal | request.elsewhere
    return replace(request, elsewhere=here)


async def _record_end(to: UncollectedRun, progress: JobProgress, *, release: bool) -> None:
    """Record how the run ended, in one transaction with the end of the claim on its slice, if that is to be released."""
    now = await Now()
    progress.state = AttemptState.SUCCEEDED if progress.error is None else to.attempt.state
    collected = ResultsCollected.by(to.attempt.id, now, progress.state, progress.error)
    try:
        await Record(collected, *([ReleaseBegan(to.lease.id, now, RELEASED)] if release and not to.borrowed else []))
    except NotAllowed:  # another process has released it
        await try_record(collected)
    except errors.TpujobError as failure:
        await Report("warning", failure.message)


LAST_SAVE_S = 25.0  # of the 30 s between a preemption notice and the preemption
BEFORE_RELEASE_S = 5.0  # after Ctrl-C: the slice is billed meanwhile
MOST_TOLD = 10
QUICK_S = 0.5  # most copies take less; a longer one is looked at again with the next tick
SHARE = 20  # a copy takes at most one part in so many of the time
OFTENEST = 10  # and is made at most so many times as often as a large one


@dataclass(slots=True)
class PeriodicSave:
    """A periodic task: save the work every `every_s`, or more often if that is quick, while all workers answer."""

    lease: Lease
    crew: Crew
    saved_work: SavedWork
    every_s: float
    progress: JobProgress
    often: bool = True  # for another attempt: more often if that is quick
    _copy: Collection | None = None  # the one that is being made
    _began_at: float = 0.0
    _not_before: float | None = None

    async def tick(self, silent_s: float = 0.0) -> None:
        now = await Now()
        if self._not_before is None:
            self._not_before = now + self.every_s / OFTENEST
        if self._copy is not None:
            await self._look(0.0)
        elif now >= self._not_before and silent_s == 0:  # a silent worker would only time out
            await self._start()
            await self._look(QUICK_S)

    async def last(self, most_s: float = LAST_SAVE_S, *, look: bool = True) -> None:
        """Save what can still be saved of a slice that is about to go. `look`: until it has gone."""
        end = await Now() + most_s
        await self.stop()
        await self._start()
        while self._copy is not None and await Now() < end and not (look and await self._is_gone()):
            await self._look(WAIT_S)
        await self.stop()

    async def tell(self) -> None:
        """Say what the last copy has not of a slice that goes."""
        left = self.progress.unsaved = self.saved_work.left
        for problem in left[:MOST_TOLD]:
            await Report("lost", f"not copied whole: {problem}")
        if len(left) > MOST_TOLD:
            await Report("lost", f"not copied whole: {len(left) - MOST_TOLD:,} more")

    async def stop(self) -> None:
        """End the copy that is being made; what arrived of it stays for the next one."""
        if self._copy is not None:
            await self._keep(await StopCollection(self._copy, "the job or its slice has ended"))

    async def _start(self) -> None:
        self._began_at = await Now()
        self._copy = await StartSave(self.crew, self.saved_work)

    async def _look(self, timeout_s: float) -> None:
        """Wait for the copy; keep it if it is made."""
        assert self._copy is not None
        try:
            copied = (await WaitForCollection(self._copy, timeout_s)).result
        except errors.RemoteError as error:
            await _report_not_saved(error)
            await self._keep(None)
        else:
            if copied is not None:
                await self._keep(copied)

    async def _keep(self, copied: CollectResult | None) -> None:
        """Keep what is complete of the copy, and plan the next one."""
        self._copy = None
        try:
            if copied is not None and 0 in await KeepSave(self.saved_work, copied):
                self.progress.saved_at = self._began_at
        except errors.ArtifactError as error:
            await _report_not_saved(error)
        now = await Now()
        quick_s = max(SHARE * (now - self._began_at), self.every_s / OFTENEST)
        self._not_before = now + (min(quick_s, self.every_s) if self.often else self.every_s)

    async def _is_gone(self) -> bool:
        try:
            await check_slice(self.lease)
        except errors.CloudError as error:
            return isinstance(error, errors.SliceLost | errors.Vanished)
        return False


async def _report_not_saved(error: errors.TpujobError) -> None:
    await Report("save", f"the work was not saved this time: {error.message}", passing=True)
