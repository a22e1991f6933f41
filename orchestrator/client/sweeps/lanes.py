"""A lane of a sweep: a thread with a session of its own, which runs one variant after the other on one slice.

The slice goes from run to run within the lane (`run.lane`). It belongs to this process: when the process is killed, its
guardian deletes it, whether a variant runs on it or not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import places
from orchestrator.client.events import Reporter
from orchestrator.client.jobs.results import command_exit_code
from orchestrator.client.jobs.runs import RunOptions, start_run
from orchestrator.client.sweeps.board import may_follow
from orchestrator.core.lease.lease import CANCEL
from orchestrator.core.lease.run_and_attempt import SweepEnded
from orchestrator.errors import ArtifactError, CapacityError, PayloadFailed, QuotaError, TpujobError
from orchestrator.run.lane import Lane, release_lane

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.client.sweeps.board import Board
    from orchestrator.core.jobfile.sweep import Variant

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
        result, error, held = None, None, places.traits_on(variant.spec.on).held
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
        owed = session.on_cloud(partial(release_lane, self._lane))
        if owed.released is not None:
            session.note(owed.released)
        if session.unproven:
            self._board.stop(session.exit_code())
