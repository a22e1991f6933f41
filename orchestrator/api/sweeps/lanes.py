"""The lanes of a sweep, threads that run one variant after the other on one slice, and the board of what is left to do.

The slice goes from run to run within the lane (`run.job_run`). It belongs to this process: when the process is killed, its
guardian deletes it, whether a variant runs on it or not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import traits
from orchestrator.api.jobs.results import command_exit_code
from orchestrator.api.jobs.runs import RunOptions, start_run
from orchestrator.api.session.events import RunResult, VariantResult
from orchestrator.api.session.reporter import Reporter
from orchestrator.api.session.session import Session
from orchestrator.api.session.sweep_progress import counts_of
from orchestrator.errors import (
    ArtifactError,
    Canceled,
    CapacityError,
    Interrupted,
    PayloadFailed,
    QuotaError,
    TeardownUnproven,
    TpujobError,
)
from orchestrator.promise.lease.changes import SweepEnded
from orchestrator.promise.lease.lease import CANCEL
from orchestrator.promise.lease.run_and_attempt import AttemptState
from orchestrator.run.job_run import Lane, release_lane

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.job.sweep import Variant


# After these codes another variant may fare better: the job's own, damaged artifacts, no capacity, a lost slice, time.
GO_ON = {*range(1, 64), 65, 69, 71, 124}


@dataclass
class Board:
    """Every method may be called from any thread. `done`: what earlier sweeps did, by number."""

    variants: tuple[Variant, ...]
    done: Mapping[int, VariantResult]
    lanes: int = 0  # that may take another variant
    stopped: bool = False
    canceled: bool = False  # by the user, before every variant had its run
    code: int = 0  # of what stopped it
    _results: dict[int, VariantResult] = field(default_factory=dict)
    _waiting: list[Variant] = field(default_factory=list)
    _running: dict[int, Variant] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._waiting = [variant for variant in self.variants if variant.number not in self.done]

    def take(self, like: JobSpec | None = None) -> Variant | None:
        """Return the next variant, which now counts as running; rather one that the slice of `like` can run.

        One job at a time runs on this machine (`on: local`), and wherever else two would slow each other down.
        """
        with self._lock:
            alone = {each.spec.on for each in self._running.values() if traits.traits_on(each.spec.on).alone}
            free = [each for each in self._waiting if each.spec.on not in alone]
            if self.stopped or not free:
                return None
            found = next((each for each in free if like is not None and may_follow(each.spec, like)), free[0])
            self._waiting.remove(found)
            self._running[found.number] = found
            return found

    def next_or_leave(self) -> Variant | None:
        """Return the next variant for a lane that has none; without one the lane ends, and takes back no other's."""
        with self._lock:
            found = self.take()
            self.lanes -= found is None
            return found

    def give_back(self, variant: Variant) -> None:
        """The variant was not run; another lane may."""
        with self._lock:
            del self._running[variant.number]
            self._waiting.insert(0, variant)

    def give_up_lane(self, variant: Variant) -> bool:
        """Give the variant back unless this is the last lane; return whether another one takes it."""
        with self._lock:
            if self.lanes < 2 or self.stopped:
                return False
            self.lanes -= 1
            self.give_back(variant)
            return True

    def end_lane(self) -> None:
        """A lane ends while variants may wait; without another lane, the sweep stops."""
        with self._lock:
            self.lanes -= 1
            if self.lanes == 0 and self._waiting:
                self.stop(ArtifactError.exit_code)

    def ended(self, variant: Variant, result: RunResult | None, code: int) -> None:
        """The variant has ended with this code of the command. What cannot get better with another one stops the sweep."""
        made = replace(result_of(variant), exit_code=code)
        if result is not None:
            made = replace(made, state=result.state, run=result.run, result=result)
        elif code < Interrupted.BASE:  # it could not be run; one that was interrupted before it began is still queued
            made = replace(made, state="error")
        with self._lock:
            del self._running[variant.number]
            self._results[variant.number] = made
            if code != 0 and code not in GO_ON:
                self.stop(code)

    def stop(self, code: int) -> None:
        """Begin no other variant. The first reason counts, but a slice that is not proven absent outranks it."""
        with self._lock:
            self.stopped = True
            self.code = (
                TeardownUnproven.exit_code if TeardownUnproven.exit_code in (code, self.code) else self.code or code
            )

    def cancel(self) -> bool:
        """Begin no other variant: the user ended the sweep. Return whether that is new, and ends something."""
        with self._lock:
            ends = bool(self._waiting) or any(each.state == AttemptState.CANCELED for each in self._results.values())
            if self.canceled or not ends:
                return False
            self.canceled = True
            self.stop(Canceled.exit_code)
            return True

    @property
    def counts(self) -> str:
        """Return how far it is; see `sweep_progress.counts_of`."""
        with self._lock:
            running = dict.fromkeys(islice(self._running, self.running), str(AttemptState.RUNNING))
            return counts_of([running.get(each.number, each.state) for each in self.results()])

    @property
    def running(self) -> int:
        """Return how many jobs run: where one ends, the next one is taken already."""
        with self._lock:
            return min(len(self._running), self.lanes)

    def results(self) -> tuple[VariantResult, ...]:
        """Return what became of each variant, in their order."""
        with self._lock:
            found = {**self.done, **self._results}
            return tuple(found.get(variant.number) or result_of(variant) for variant in self.variants)

    @property
    def exit_code(self) -> int:
        """Return the code of the sweep: of what stopped it, else of the first variant that failed, else 0."""
        return self.code or next((each.exit_code for each in self.results() if each.exit_code), 0)


def may_follow(spec: JobSpec, before: JobSpec) -> bool:
    """Return whether the slice of `before` can run `spec`, as far as the job files say."""
    return spec.on == before.on and traits.traits_on(spec.on).held and spec.tpu == before.tpu


def result_of(variant: Variant) -> VariantResult:
    """Return the result of a variant that was not run."""
    return VariantResult(variant.number, variant.label, variant.name, variant.params)


NO_SLICE_NOW = "there is no slice for it now: it waits for that of another variant"
NO_ROOM = "the cluster has no room for it now: it is submitted again once another variant has ended"
SLICE_KEPT = (ArtifactError, PayloadFailed)  # after which it may be
NO_SLICE = (CapacityError, QuotaError)  # there is none for this lane; the slices of the other lanes are there


@dataclass(frozen=True, slots=True)
class LaneWork:
    """What the lanes of a sweep share. `records`: by number, what the ledger has about a variant in each of its runs."""

    board: Board
    session: Session  # each lane has its own beside it
    path: Path
    records: Mapping[int, Mapping[str, Any]]
    is_canceled: Callable[[], bool]  # by the user, in whichever process
    ended: Callable[[], object]  # called when a lane has ended


class LaneThread:
    """`thread` runs it to the end of the queue. `error`: a bug, or a reported failure of its session."""

    def __init__(self, work: LaneWork, number: int) -> None:
        self._work, self._board = work, work.board
        self._reporter = Reporter(work.session.reporter.emit, work.session.reporter.secrets)
        self._lane = Lane(self._goes_on)
        self._current: Variant | None = None
        self._reserved: Variant | None = None
        self._session: Session | None = None
        self._interrupted: int | None = None
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        # Not a daemon: the end of the program waits for the release.
        self.thread = threading.Thread(target=self._serve, name=f"tpujob-lane-{number}")

    def interrupt(self, number: int) -> None:
        """End the variant that runs as this signal does, and release the slice. The user has been told."""
        with self._lock:
            self._interrupted = number
            if self._session is not None:
                self._session.interrupt(number, told=True)

    def _serve(self) -> None:
        try:
            session = self._work.session.beside(self._reporter)
            with self._lock:
                self._session = session
                if self._interrupted is not None:
                    session.interrupt(self._interrupted, told=True)
            try:
                self._run_all(session)
            finally:
                try:
                    self._release(session)
                finally:
                    with self._lock:
                        self._session = None
                    session.close()
        except BaseException as error:
            self.error = error
            if isinstance(error, TpujobError):
                self._reporter.fail(error)
            self._board.stop(error.exit_code if isinstance(error, TpujobError) else TpujobError.exit_code)
        finally:
            self._work.ended()

    def _run_all(self, session: Session) -> None:
        while (variant := self._next()) is not None:
            self._current, self._reporter.variant = variant, variant.label
            if not self._run(session, variant):
                return

    def _next(self) -> Variant | None:
        variant, self._reserved = self._reserved, None
        if self._work.is_canceled():
            self._cancel()
        if variant is not None and self._board.stopped:
            self._board.give_back(variant)
            return None
        return variant or self._board.next_or_leave()

    def _cancel(self) -> None:
        if self._board.cancel():
            self._reporter.variant = ""
            self._reporter.notice("stop", f"canceled by `{CANCEL}`: no other run begins")

    def _goes_on(self) -> bool:
        """Reserve the next variant while the slice of the current one is there; return whether it takes that slice over."""
        assert self._current is not None
        self._reserved = self._board.take(self._current.spec)
        return self._reserved is not None and may_follow(self._reserved.spec, self._current.spec)

    def _run(self, session: Session, variant: Variant) -> bool:
        """Run one variant; return whether this lane goes on. Its failure is its own."""
        result, error, held = None, None, traits.traits_on(variant.spec.on).held
        try:
            options = RunOptions(sweep=self._work.records[variant.number], lane=self._lane)
            result = start_run(session, variant.spec, self._work.path, options)
            code, error = command_exit_code(session, result), result.error
            if result.released and held:
                self._reporter.notice("released", result.release)
        except SweepEnded:  # a moment ago
            self._board.give_back(variant)
            self._cancel()
            return False
        except TpujobError as raised:
            self._reporter.fail(raised)
            code, error = session.exit_code(raised.exit_code), raised
        if isinstance(error, NO_SLICE) and not session.unproven and self._board.give_up_lane(variant):
            self._reporter.notice("sweep", NO_SLICE_NOW if held else NO_ROOM)
            return False
        self._board.ended(variant, result, code)
        self._tell()
        has_slice = self._lane.lease is not None  # which goes to the next variant, also after an error
        is_kept = result is not None and not (result.released or has_slice)
        left = result is not None and any(each.kind == "left" for each in result.results)
        if is_kept and (isinstance(error, SLICE_KEPT) or (left and error is None)):
            # Its slice is kept until its results are collected: another one beside it would exceed `parallel`.
            self._reporter.notice("sweep", f"no other job follows {variant.label}: its slice is kept for its results")
            self._board.end_lane()
            return False
        return True

    def _tell(self) -> None:
        self._reporter.variant = ""
        self._reporter.notice("sweep", self._board.counts)

    def _release(self, session: Session) -> None:
        """Release the slice of a lane that ends between two variants."""
        self._reporter.variant = ""
        if self._reserved is not None:
            self._board.give_back(self._reserved)
        if self._lane.lease is None:
            return
        owed = session.on_cloud(partial(release_lane, self._lane), self._lane.lease.cloud)
        if owed.released is not None:
            session.note(owed.released)
        if session.unproven:
            self._board.stop(session.exit_code())
