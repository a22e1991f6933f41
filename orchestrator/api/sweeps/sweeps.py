"""Run a sweep: the variants of a job over one slice or several, each slice used for one variant after the other.

    run_sweep(session, sweep, path) -> SweepResult

`Client.sweep`, `tpujob run` of a file with `matrix:` and the `.map` of a function call it. It needs no file: a `Sweep` has a
name, variants (`Variant(number, label, spec, params)`: `label` is unique, `spec.name` the name of its runs) and `parallel`, the
number of lanes. Events of a variant carry its label as `variant`. A variant that fails does not stop the others.

What succeeded before with the same job, code and cloud is not run again, so the same call goes on after an interruption.
"""

from __future__ import annotations

import hashlib
import json
import queue
import secrets
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import traits
from orchestrator.api.jobs import results
from orchestrator.api.results import pages
from orchestrator.api.session.events import SweepResult, VariantResult
from orchestrator.api.session.reporter import Reporter
from orchestrator.api.session.session import Session
from orchestrator.api.session.shown_logs import Choice
from orchestrator.api.session.sleep_inhibitor import awake
from orchestrator.api.session.sweep_progress import living_records, lock_of
from orchestrator.api.sweeps import plans
from orchestrator.api.sweeps.lanes import Board, LaneThread, LaneWork, result_of
from orchestrator.errors import Canceled, Interrupted, TpujobError, UserError
from orchestrator.places.preparation import records as runs
from orchestrator.places.preparation import requirements
from orchestrator.places.preparation.code import shipment_of, survey_of
from orchestrator.promise.effects.interpreter import HEARD_WITHIN_S, signals_to
from orchestrator.promise.lease.lease import CANCEL
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.ledger.rows import SweepRecord, VariantRecord
from orchestrator.text import names

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.job.sweep import Sweep


def run_sweep(session: Session, sweep: Sweep, path: Path, *, again: bool = False, logs: Choice = None) -> SweepResult:
    """Run the variants, and return what became of each. Reports a RunResult for each, and the SweepResult at the end.

    `path`: the job file, or any path in the directory to which
    the paths of the jobs are relative. `again`: run also what succeeded before. `logs`: of which workers the caller shows the
    logs. Raises UserError for what cannot be run, and CloudError for
    what the plan needs: then nothing was created.
    """
    reporter = session.reporter
    plans.check(session, sweep, path)
    plans.check_logs(session, sweep, logs)
    work_keys = {variant.number: work_key(session, variant.spec, path) for variant in sweep.variants}
    session.recover(look=True)
    done = {} if again else done_before(session, sweep, work_keys)
    board = Board(sweep.variants, done)
    lanes = min(sweep.parallel, len(sweep.variants) - len(done))
    plans.show(session, sweep, done, lanes)
    with ExitStack() as stack:
        record = stack.enter_context(recorded(session, sweep, path, work_keys, done))
        if lanes and any(traits.traits_on(variant.spec.on).billed for variant in sweep.variants):
            stack.enter_context(awake(session, "a sweep is attached to this machine"))
        inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        shared = {"id": record.id, "name": sweep.name}
        by_number = {each.number: {**shared, **of_run(each)} for each in record.variants}
        work = LaneWork(
            board,
            session,
            path,
            by_number,
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


def _run_lanes(work: LaneWork, count: int, inbox: queue.SimpleQueue[int | None]) -> TpujobError | None:
    """Run the lanes to their end. Return the signal or cancel that ended them, or None. Raises what is a bug in one of them."""
    lanes = [LaneThread(work, number) for number in range(1, count + 1)]
    work.board.lanes = count
    signals: list[int] = []
    with signals_to(inbox.put):
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
    on_slices = any(traits.traits_on(variant.spec.on).by_target for variant in work.board.variants)
    _tell(work.session.reporter, number, len(signals), f"{running} run{'s'[: running != 1]}", on_slices=on_slices)


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


# Sweeps in the ledger: which variants one has, and what became of each, by the runs of this machine.
#
# A sweep is alive while its process holds its lock. The key of a variant stands for its work: the job as resolved, its code and
# data, and the cloud. A run with that key that succeeded counts in every later sweep.

STARTING = "sweeps"  # the lock of a sweep that looks whether another one does the same


def work_key(session: Session, spec: JobSpec, path: Path) -> str:
    """Return the same key for the same work: the job as resolved (secrets by name only), its code and data, the cloud."""
    with ExitStack() as stack:
        shipment = shipment_of(session, survey_of(session, spec, path), stack)
        code = shipment.id if shipment else None
        asked = requirements.read(spec, path, code_sha256=code)
    cloud = f"{session.target.kind} {session.target.project}" if traits.traits_on(spec.on).billed else spec.on
    job = spec.model_dump(mode="json", exclude={"name", "notify", *runs.OF_A_SWEEP})
    work = {"job": job, "code": code, "environment": asdict(asked), "cloud": cloud}
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()


def done_before(session: Session, sweep: Sweep, work_keys: Mapping[int, str]) -> dict[int, VariantResult]:
    """Return the variants of which a run succeeded before, and its files are still there."""
    succeeded: dict[str, tuple[RunRecord, Attempt]] = {}
    for run, attempt in session.ledger.runs():
        key = run.spec.sweep.key
        if key and attempt.state is AttemptState.SUCCEEDED and Path(run.directory, "worker0").is_dir():
            succeeded.setdefault(key, (run, attempt))
    found = {}
    for variant in sweep.variants:
        if pair := succeeded.get(work_keys[variant.number]):
            run, attempt = pair
            lease = session.ledger.lease(attempt.lease_id) if attempt.lease_id else None
            result = replace(results.recorded(session, run, attempt, lease), variant=variant.label)
            made = replace(result_of(variant), state=result.state, run=run.id, exit_code=0, done_before=True)
            found[variant.number] = replace(made, result=result)
    return found


@contextmanager
def recorded(
    session: Session, sweep: Sweep, path: Path, work_keys: Mapping[int, str], done: Mapping[int, VariantResult]
) -> Iterator[SweepRecord]:
    """Record the sweep, for `status` and `compare`. It is alive while its lock is held: within this block, and this process.

    Raises UserError if another process runs a variant of it already.
    """
    rows = tuple(
        VariantRecord(
            variant.number,
            variant.name,
            variant.label,
            dict(variant.params),
            work_keys[variant.number],
            done[variant.number].run if variant.number in done else None,
        )
        for variant in sweep.variants
    )
    identity = names.new_run_id(secrets.randbits(names.RUN_BITS))
    record = SweepRecord(identity, sweep.name, str(path), session.now(), rows)
    session.lock(STARTING)
    try:
        mine = {key for number, key in work_keys.items() if number not in done}
        for other in living_records(session):
            if mine & {each.key for each in other.variants}:
                hint = "`tpujob status` shows how far it is"
                raise UserError(f"{other.name} is being run already, by another process", hint=hint)
        session.ledger.record_sweep(record)
        session.locks.lock(lock_of(record))
    finally:
        session.locks.unlock(STARTING)
    try:
        yield record
    finally:
        session.locks.unlock(lock_of(record))


def of_run(row: VariantRecord) -> dict[str, Any]:
    """Return what a run's record has about its variant."""
    return {key: getattr(row, key) for key in ("number", "variant", "params", "key")}
