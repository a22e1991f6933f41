"""The end of a run: reports it, forgets the keys of its slices, and makes its `RunResult`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import traits as place_traits
from orchestrator.api.results import pages
from orchestrator.api.session.connections import OFF
from orchestrator.api.session.events import RunResult, relative
from orchestrator.api.session.session import Session
from orchestrator.errors import PayloadFailed, TpujobError, exit_code
from orchestrator.hosts.transfer.collect import EVERYTHING, CollectResult, Problem
from orchestrator.hosts.transfer.places import DRAFT
from orchestrator.places.preparation import buckets
from orchestrator.promise.lease.lease import HeldFor, Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord, recorded_error
from orchestrator.report.messages import (
    held_after_failure,
    lease_outcome,
    left_on_slice,
    outcome_lines,
    release_outcome,
    uncollected_alert,
)
from orchestrator.report.results import OF_TPUJOB, describe, metrics, payload_spans, saved_text
from orchestrator.report.rows import collected, costs, worker_ends
from orchestrator.report.rows.layout import format_cost
from orchestrator.report.rows.whole_run import WholeRun, whole_run
from orchestrator.run.progress import Outcome
from orchestrator.system import private_files
from orchestrator.text.units import day_clock, format_duration

if TYPE_CHECKING:
    from orchestrator.places.place import Stay


def finish(session: Session, outcome: Outcome, drafted: Iterable[str] = ()) -> RunResult:
    """Report the end of a run and return its result. `drafted`: the leases whose keys are of no use any more."""
    outcome = _as_recorded(session, outcome)
    lease = outcome.lease
    if outcome.released is not None and outcome.unproven:
        session.note(outcome.released)
    session.forget_drafts(drafted, kept=lease if outcome.kept_until is not None or outcome.passed_on else None)
    if outcome.released is not None and outcome.released.gone:
        session.forget_keys(outcome.released.lease.id)  # also of a slice that an earlier run of the lane has drafted
    if outcome.error is not None:
        session.reporter.fail(outcome.error)
    _tell_results(session, outcome)
    if outcome.kept_until is not None and lease is not None and lease.held_for is HeldFor.FAILURE:
        for line in held_after_failure(lease, outcome.ended_at):
            session.reporter.notice("held", line)
    directory = Path(outcome.run.directory)
    _remove_saved_work(session, outcome, directory)
    saved = _saved_in_bucket(outcome)
    if outcome.error is None and saved is not None:
        saved.delete()
    whole = _whole(session, outcome)
    workers: tuple[worker_ends.WorkerReport, ...] = ()
    if isinstance(outcome.error, PayloadFailed):
        workers = worker_ends.reports(outcome.error.workers, directory)
        # The error of a run whose results are collected later has none; the ledger knows them.
        workers = workers or worker_ends.recorded(session.ledger, outcome.attempt, directory)
    inside = payload_spans(directory)
    checked = ", all hashes match" if outcome.collected and outcome.collected.files else ""
    detail = outcome.error.message if outcome.error else "unknown"
    said = describe(outcome.run, outcome.state, detail, relative(directory), checked)
    lines = outcome_lines(outcome, result=said, inside=inside, usd=whole.cost_usd, workers=workers)
    return _ended(session, replace(_result(session, outcome, whole, lines=lines), workers=workers))


def _saved_in_bucket(outcome: Outcome) -> buckets.SavedInBucket | None:
    """Return where the workers of the run save its work; None where they do not."""
    spec = outcome.run.spec
    if spec.bucket is None or spec.values.get("on_preemption") != "restart":
        return None
    return buckets.saved_of(outcome.run.cloud, spec.bucket, outcome.run.id)


def tell_rest(session: Session, outcome: Outcome, stay: Stay, *, watch: bool) -> None:
    """Report what the end of the run leaves billed at its place. `watch`: for a bounded time; Ctrl-C ends that."""
    if outcome.lease is None or outcome.unproven or outcome.detached or outcome.passed_on:
        return
    try:
        session.run(stay.tell_rest(outcome.lease, watch=watch), outcome.lease.cloud)
    except TpujobError as error:  # nothing depends on the watch
        session.reporter.notice("nodes", f"not watched any more: {error.message}")


def left_running(session: Session, outcome: Outcome, drafted: Iterable[str], *, of_queue: bool = False) -> RunResult:
    """Report that a detached job has started, and return where it is. Its results are collected by the queue, or by a process
    that this starts.
    """
    lease, run = outcome.lease, outcome.run.id
    assert lease is not None
    session.forget_drafts(drafted, kept=lease)
    if not of_queue:
        _start_collector(session, run)
    worst = format_cost(costs.between(lease.usd_per_hour, lease.created_at, lease.deadline), lease.cloud)
    say = session.reporter.notice
    ends = f"until {day_clock(lease.deadline)} at the latest"
    traits = place_traits.traits_of(lease.cloud)
    if not traits.watched:
        ends = f"and what it leaves in the cluster is deleted by {day_clock(lease.deadline)} at the latest"
    say("detach", f"the job goes on without this process, {ends}")
    say("cost", f"worst case if everything fails: {worst}")
    say("bounds", _bounds(session, lease))
    extend = f" · tpujob extend {run} --by 1h" if traits.vms else ""
    say("next", f"tpujob attach {run} · tpujob logs -f {run} · tpujob cancel {run}{extend}")
    if (saved := _saved_in_bucket(outcome)) is not None and traits.held and not of_queue:
        say("next", f"if it loses its slice, the job with `--resume {run}` goes on from what it saves to {saved.url}")
    return _left(session, outcome, lines=[run])


def left_again(session: Session, outcome: Outcome) -> RunResult:
    """Report that `attach` ends and the run goes on."""
    if outcome.error is not None:
        session.reporter.fail(outcome.error)
    _tell_results(session, outcome)
    run = outcome.run.id
    session.reporter.notice("attach", f"{run} goes on; `tpujob attach {run}` follows it again")
    return _left(session, outcome)


def ended_before(
    session: Session, run: RunRecord, attempt: Attempt, lease: Lease | None, lines: Iterable[str]
) -> RunResult:
    """Report the result of a run that another process ended, from the ledger, and return it."""
    for kind, text in collected.lines(collected.read(Path(run.directory), lease)):
        session.reporter.notice(kind, text)
    tell_saved(session, Path(run.directory))
    return _ended(session, recorded(session, run, attempt, lease, lines))


def recorded(
    session: Session, run: RunRecord, attempt: Attempt, lease: Lease | None, lines: Iterable[str] = ()
) -> RunResult:
    """Return the result of a run that has ended, from the ledger."""
    made = _made(session, run, attempt, lease, whole_run(session.ledger, run, session.now(run.cloud)))
    return replace(
        made,
        workers=worker_ends.recorded(session.ledger, attempt, made.directory),
        released=lease is None or lease.gone_at is not None,
        release="nothing was created" if lease is None else lease_outcome(lease),
        error=recorded_error(attempt),
        lines=tuple(lines),
    )


def _result(session: Session, outcome: Outcome, whole: WholeRun, *, lines: Iterable[str] = ()) -> RunResult:
    run = outcome.run
    return replace(
        _made(session, run, outcome.attempt, outcome.lease, whole),
        state=str(outcome.state),
        exit_code=session.exit_code(outcome.exit_code),
        started_at=outcome.started_at,
        ended_at=outcome.ended_at,
        released=_is_released(outcome),
        release=release_outcome(outcome) if place_traits.traits_of(run.cloud).billed else "it ran on this machine",
        detached=outcome.detached,
        error=outcome.error,
        lines=tuple(lines),
    )


def _made(session: Session, run: RunRecord, attempt: Attempt, lease: Lease | None, whole: WholeRun) -> RunResult:
    """Return what the ledger and the files of a run say of it, without the end of its slice."""
    directory = Path(run.directory)
    return RunResult(
        run=run.id,
        name=run.name,
        state=str(attempt.state),
        exit_code=session.exit_code(attempt.exit_code or 0),
        directory=directory,
        started_at=run.created_at,
        ended_at=attempt.ended_at or run.created_at,
        attempt_count=int(attempt.id.rpartition("-")[2]),
        restarts=whole.restarts,
        emulated=place_traits.is_emulated(run.cloud),
        accelerator=None if lease is None else lease.accelerator_type,
        zone=None if lease is None else lease.name.zone,
        job_s=whole.job_s,
        cost_usd=whole.cost_usd,
        metrics=metrics(directory),
        artifacts=_artifacts(directory),
        results=collected.read(directory, lease),
    )


def command_exit_code(session: Session, result: RunResult) -> int:
    """Return the exit code of the command with this result, also where the run goes on and has none of its own."""
    return session.exit_code(exit_code(result.error)) if result.exit_code is None else result.exit_code


def _left(session: Session, outcome: Outcome, lines: Iterable[str] = ()) -> RunResult:
    """Return the result of a run that goes on: it has neither an end nor an exit code."""
    if outcome.released is not None and outcome.unproven:
        session.note(outcome.released)
    left = _result(session, outcome, WholeRun(), lines=lines)
    return _ended(session, replace(left, exit_code=None, ended_at=None))


def _ended(session: Session, result: RunResult) -> RunResult:
    result = replace(result, report=pages.run_ended(session, result.run, result.directory))
    session.reporter.emit(result)
    return result


def _is_released(outcome: Outcome) -> bool:
    if outcome.detached or outcome.kept_until is not None:
        return False
    if outcome.released is not None:
        return outcome.released.gone
    return outcome.lease is None or outcome.lease.gone_at is not None


def _artifacts(directory: Path) -> tuple[Path, ...]:
    """Return the files of the job that were collected, in order."""
    walked = (each for worker in directory.glob("worker*") for each in os.walk(worker))
    found = sorted(Path(parent, name) for parent, _, files in walked for name in files)
    return tuple(path for path in found if path.relative_to(directory).parts[1:] not in OF_TPUJOB)


def _as_recorded(session: Session, outcome: Outcome) -> Outcome:
    """Return the outcome with the end in the ledger, which another process may have recorded before."""
    try:
        _, attempt = session.ledger.run(outcome.run.id)
        lease = session.ledger.lease(outcome.lease.id) if outcome.lease is not None else None
    except TpujobError:
        return outcome
    return replace(outcome, ended_at=attempt.ended_at or outcome.ended_at, lease=lease)


def _whole(session: Session, outcome: Outcome) -> WholeRun:
    """Return what the ledger says of the whole run. A ledger that cannot be read costs nothing but these figures."""
    try:
        return whole_run(session.ledger, outcome.run, session.now(outcome.run.cloud))
    except TpujobError as error:
        session.reporter.notice("warning", f"{error.message}; what the run cost is not known")
        return WholeRun()


def _tell_results(session: Session, outcome: Outcome) -> None:
    """Write down and report what is to be said of the results beside their files. What is missing on a slice is an alert."""
    if outcome.collected is None:
        return
    try:
        remarks = collected.keep(Path(outcome.run.directory), outcome.collected)
    except OSError as error:
        session.reporter.notice("warning", f"{collected.NAME} cannot be written: {error.strerror or error}")
        remarks = ()
    alert = bool(outcome.collected.waiting) and outcome.lease is not None
    others = [each for each in remarks if each.kind != "left" and not (alert and each.kind == "missing")]
    for kind, text in collected.lines(others):
        session.reporter.notice(kind, text)
    if left := collected.left_lines(outcome.collected.left):
        for line in left_on_slice(outcome, left):
            session.reporter.notice("left", line)
    if alert:
        session.reporter.alert(uncollected_alert(outcome))


def _remove_saved_work(session: Session, outcome: Outcome, directory: Path) -> None:
    """Remove what was copied while the job ran, unless it is all that is left of the job; say what became of that."""
    saved = directory / "saved"
    came = outcome.collected
    if came is not None and not came.waiting and (not came.left or outcome.kept_until is not None):
        shutil.rmtree(saved, ignore_errors=True)
    # Of each copy, also of one that was cut: what is moved makes it no younger.
    copies = [copy for place in (saved / ".draft", saved) for copy in place.glob("worker*")]
    times = {copy.name: copy.stat().st_mtime for copy in copies}
    for path in [path for path in (saved / ".draft").rglob("*") if path.is_file() and path.name != DRAFT]:
        target = saved / path.relative_to(saved / ".draft")  # the file is whole, though its copy is not
        private_files.make_directory(target.parent)
        path.replace(target)
    for name, time_s in times.items():
        with contextlib.suppress(FileNotFoundError):
            os.utime(saved / name, (time_s, time_s))
    shutil.rmtree(saved / ".draft", ignore_errors=True)
    lost = outcome.unsaved
    if not tell_saved(session, directory):
        at = day_clock(min((copy.stat().st_mtime for copy in saved.glob("worker*")), default=None))
        shutil.rmtree(saved, ignore_errors=True)
        if came is None and outcome.spans.get("main") and outcome.released is not None:
            what = f"after {at}, when it was copied last, is" if at else "was not copied, and is"
            lost = (*lost, Problem(0, EVERYTHING, f"what the job wrote {what} gone with its slice"))
            session.reporter.notice("lost", lost[-1].why)
    if came is None and lost and outcome.released is not None:
        with contextlib.suppress(OSError):  # it was said
            collected.keep(directory, CollectResult(refused=lost))


def tell_saved(session: Session, directory: Path) -> bool:
    """Say what of the job's files is here only because it was copied while the job ran; return whether anything is."""
    if said := saved_text(directory, relative(directory)):
        session.reporter.notice("saved", said)
    return bool(said)


def _start_collector(session: Session, run: str) -> None:
    """Start a process that follows the run to its end. If it is killed, another `tpujob attach` takes its place."""
    if os.environ.get("TPUJOB_COLLECTOR", "").lower() in OFF:
        return
    with private_files.open_file(session.directory / "collector.log", "ab") as log:
        subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.cli", "attach", run],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={name: value for name, value in os.environ.items() if name != "TPUJOB_CRASH_AT"},
            start_new_session=True,
        )


def _bounds(session: Session, lease: Lease) -> str:
    """Return what ends the slice, or the job on a cluster, if this machine does not."""
    if not place_traits.traits_of(lease.cloud).watched:
        return "the cluster ends Job and pods by itself ✓ · a job that still waits in a queue is not ended by it"
    ran_here = [ran for ran in session.ledger.gc_runs(lease.cloud, lease.name.project) if ran.scope != "local"]
    gc = f"gc ran {format_duration(session.now() - ran_here[0].at)} ago" if ran_here else "no gc run was ever seen here"
    return f"the watchdog on every worker ✓ · {gc} (`tpujob doctor`) · no limit by the cloud itself"
