"""Run a sweep: the variants of a job over one slice or several, each slice used for one variant after the other.

    run_sweep(session, open_session, SweepRequest(sweep, path)) -> SweepResult

`Client.sweep`, `tpujob run` of a file with `matrix:` and the `.map` of a function call it. It needs no file: a `Sweep` has a
name, variants (`Variant(number, label, spec, params)`: `label` is unique, `spec.name` the name of its runs) and `parallel`, the
number of lanes. Events of a variant carry its label as `variant`. A variant that fails does not stop the others.

What succeeded before with the same job, code and cloud is not run again, so the same call goes on after an interruption.
"""

from __future__ import annotations

import queue
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import places
from orchestrator.client.events import Reporter, SweepResult
from orchestrator.client.jobs.sleep_inhibitor import awake
from orchestrator.client.results import pages
from orchestrator.client.sweeps import plans, records
from orchestrator.client.sweeps.board import Board
from orchestrator.client.sweeps.lanes import LaneThread, LaneWork, OpenSession
from orchestrator.core.lease.lease import CANCEL
from orchestrator.engine.runtime.interpreter import HEARD_WITHIN_S, signals_to
from orchestrator.errors import Canceled, Interrupted, TpujobError

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.client.shown_logs import Choice
    from orchestrator.core.jobfile.sweep import Sweep


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """`path`: the job file, or any path in the directory to which the paths of the jobs are relative.

    `again`: run also what succeeded before. `logs`: of which workers the caller shows the logs.
    """

    sweep: Sweep
    path: Path
    again: bool = False
    logs: Choice = None


def run_sweep(session: Session, open_session: OpenSession, request: SweepRequest) -> SweepResult:
    """Run the variants, and return what became of each. Reports a RunResult for each, and the SweepResult at the end.

    `open_session` makes a session for each lane, beside `session`. Raises UserError for what cannot be run, and CloudError for
    what the plan needs: then nothing was created.
    """
    sweep, reporter = request.sweep, session.reporter
    plans.check(session, sweep, request.path)
    plans.check_logs(session, sweep, request.logs)
    work_keys = {variant.number: records.work_key(session, variant.spec, request.path) for variant in sweep.variants}
    session.recover(look=True)
    done = {} if request.again else records.done_before(session, sweep, work_keys)
    board = Board(sweep.variants, done)
    lanes = min(sweep.parallel, len(sweep.variants) - len(done))
    plans.show(session, sweep, done, lanes)
    with ExitStack() as stack:
        record = stack.enter_context(records.recorded(session, request, work_keys, done))
        if lanes and any(places.traits_on(variant.spec.on).billed for variant in sweep.variants):
            stack.enter_context(awake(session, "a sweep is attached to this machine"))
        inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        shared = {"id": record.id, "name": sweep.name}
        by_number = {each.number: {**shared, **records.of_run(each)} for each in record.variants}
        work = LaneWork(
            board,
            open_session,
            request.path,
            by_number,
            reporter,
            is_canceled=lambda: session.ledger.is_canceled(record.id),
            ended=lambda: inbox.put(None),
        )
        error = _run_lanes(work, lanes, inbox)
    found = board.results()
    unfinished = any(each.exit_code is None or each.exit_code >= Interrupted.BASE for each in found)
    stopped = board.canceled or (board.stopped and unfinished)
    report = pages.sweep_ended(session, record.id) if any(each.run is not None for each in found) else None
    result = SweepResult(record.id, sweep.name, found, session.exit_code(board.exit_code), stopped, error, report)
    reporter.emit(result)
    return result


# -- lanes and signals -------------------------------------------------------------------------------------------------


@dataclass
class _Ear:
    inbox: queue.SimpleQueue[int | None]

    def interrupt(self, number: int) -> None:
        self.inbox.put(number)


def _run_lanes(work: LaneWork, count: int, inbox: queue.SimpleQueue[int | None]) -> TpujobError | None:
    """Run the lanes to their end. Return the signal or cancel that ended them, or None. Raises what is a bug in one of them."""
    lanes = [LaneThread(work, number) for number in range(1, count + 1)]
    work.board.lanes = count
    signals: list[int] = []
    with signals_to(_Ear(inbox)):
        try:
            for lane in lanes:
                lane.thread.start()
            while any(lane.thread.is_alive() for lane in lanes):
                _listen(work, lanes, inbox, signals)
        except BaseException:  # a lane that could not start: the others must not go on alone
            _end(work, lanes)
            raise
    for lane in lanes:
        if lane.error is not None and not isinstance(lane.error, TpujobError):
            raise lane.error
    if signals:
        return Interrupted(signals[0])
    if work.board.canceled:
        return Canceled(CANCEL)
    return next((lane.error for lane in lanes if isinstance(lane.error, TpujobError)), None)


def _listen(work: LaneWork, lanes: list[LaneThread], inbox: queue.SimpleQueue[int | None], signals: list[int]) -> None:
    """Wait for a signal or the end of a lane; a signal reaches all lanes at once."""
    try:
        number = inbox.get(timeout=HEARD_WITHIN_S)
    except queue.Empty:
        return
    if number is None:
        return
    signals.append(number)
    running = work.board.running
    work.board.stop(Interrupted.BASE + number)
    for lane in lanes:
        lane.interrupt(number)
    on_slices = any(places.traits_on(variant.spec.on).by_target for variant in work.board.variants)
    _tell(work.reporter, number, len(signals), f"{running} run{'s'[: running != 1]}", on_slices=on_slices)


def _tell(reporter: Reporter, number: int, count: int, runs: str, *, on_slices: bool) -> None:
    """Report what the signal does; `count`: of the signals so far."""
    name = signal.Signals(number).name
    if count == 1:
        reporter.notice("stop", f"{name}: stopping {runs}{' and deleting every slice' if on_slices else ''}")
    elif count < 3:
        left = "1 more to leave before the proof (the next tpujob command goes on with it)"
        reporter.notice("release", f"{name}: already deleting; {left}")


def _end(work: LaneWork, lanes: list[LaneThread]) -> None:
    work.board.stop(TpujobError.exit_code)
    for lane in lanes:
        lane.interrupt(signal.SIGTERM)
    for lane in lanes:
        if lane.thread.ident is not None:
            lane.thread.join()
