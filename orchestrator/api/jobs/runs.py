"""Run a job: checks, the plan of its place, the program, then the result. Or follow a detached run to its end (`attach`).

Leaving `attach` early changes nothing.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import places
from orchestrator.api.jobs import checking, elsewhere, planning, repeating, results
from orchestrator.api.jobs.log_output import JobOutput, make_directory
from orchestrator.api.results import pages
from orchestrator.api.results.logs import stored_lines, worker_count
from orchestrator.api.session import lookup, shown_logs
from orchestrator.api.session.events import RunResult, Workers, relative
from orchestrator.api.session.session import LOCK_POLL_S, RECOVERY_S, Session
from orchestrator.api.session.shown_logs import Choice
from orchestrator.api.session.sleep_inhibitor import awake
from orchestrator.check.record import FILE as CHECK
from orchestrator.errors import TpujobError, UserError
from orchestrator.places.place import Prepared, QueuedRun, Stay, Wish
from orchestrator.places.preparation import buckets, code, requirements
from orchestrator.promise.lease.access import NO_WISH
from orchestrator.promise.lease.lease import Lease, LeaseState
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.report.files.artifact_files import log_directory
from orchestrator.report.messages import lease_outcome
from orchestrator.report.results import describe
from orchestrator.report.rows import worker_ends
from orchestrator.run.job_run import JobRun, Lane
from orchestrator.run.monitor import by_command
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome
from orchestrator.system import whole_file
from orchestrator.traits import is_emulated

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec


DOCTOR = "tpujob doctor"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a job, beside what its file says."""

    keep_s: float | None = None  # hold the slice for so long after a success
    keep_on_failure_s: float | None = None  # instead of the file's `keep_on_failure`
    max_duration_s: float | None = None  # instead of the file's `limits.max_duration`
    detach: bool = False  # return once the job has started
    sweep: Mapping[str, Any] | None = None  # of which sweep the run is, and which of its variants
    logs: Choice = None  # of which workers the caller shows the logs; each must be there
    watch_nodes: bool = False  # of a cluster, after the end
    lane: Lane | None = None  # the slice of the run before, and what the next one gets
    cloud_is_named: bool = False  # by the command, not by the settings
    resume: str | None = None  # the run that goes on, from what its workers saved to the bucket of the job
    check: bool = False  # run nothing whose program does not fit, or was not judged
    queued: QueuedRun | None = None  # of a queue, which looks after it once it has started
    again_of: str | None = None  # the run that this one repeats

    def wish(self) -> Wish:
        """Return what of it is for the place."""
        return Wish(
            self.keep_s,
            self.detach,
            self.cloud_is_named,
            one_of_several=self.lane is not None,
            has_slice=self.lane is not None and self.lane.lease is not None,
            sweep=self.sweep,
            resume=self.resume,
            queued=self.queued,
            check_workers=partial(shown_logs.check, "--logs", self.logs),
        )


def start_run(session: Session, spec: JobSpec, path: Path, options: RunOptions) -> RunResult:
    """Run a job and return its result; with `options.detach`, return once the job has started.

    `path` is the job file, or any path in the directory to which `code:` is relative. How the job ended, a failure included,
    is in the result. Raises UserError for what cannot be run, and CloudError or
    TpujobError for what comes before the first candidate is asked for: then nothing was created. Raises TeardownUnproven
    when signals ended the wait for the proof.
    """
    env = planning.environment(spec, session.reporter)
    if options.max_duration_s is not None:
        spec = spec.with_max_duration(options.max_duration_s)
    if options.keep_on_failure_s is not None:
        spec = spec.with_keep_on_failure(options.keep_on_failure_s)
    place, wish = places.place_on(spec.on), options.wish()
    if options.resume is not None and not buckets.saves(spec):
        raise UserError("a run goes on from its bucket only with `bucket:` and `on_preemption: restart` in its job")
    place.check(session, spec, path, wish)
    code.check_directories(spec, path)
    session.check_machine()
    if options.lane is None:
        for line in requirements.warnings(spec, path):
            session.reporter.notice("warning", line)
    if options.check:
        checking.require(session, spec, path, env)
    checked = checking.recorded(session, spec, path, env)
    if options.lane is None and place.traits.tpus and not is_emulated(session.target.kind):
        session.reporter.notice("plan", checking.told(spec, checked))
    with ExitStack() as stack:
        prepared = place.prepare(session, spec, env, path, wish, stack)
        if checked is not None:
            prepared = replace(prepared, files={**prepared.files, CHECK: json.dumps(checked)})
        outcome = _played(session, spec, path, options, prepared, stack)
    if not outcome.detached:
        place.tidy(session, outcome.run)
    elif outcome.error is not None:  # of a queue: another runner looks after the slice by now
        session.forget_drafts(prepared.drafted, kept=outcome.lease)
        raise outcome.error
    if outcome.detached:
        return results.left_running(session, outcome, prepared.drafted, of_queue=options.queued is not None)
    if outcome.error is not None and spec.access.wish != NO_WISH:
        outcome.error.hint = _about_the_job(outcome.error.hint, spec, path)
    result = results.finish(session, outcome, prepared.drafted)
    if options.sweep is None:
        results.tell_rest(session, outcome, prepared.stay, watch=options.watch_nodes)
    return result


def _played(
    session: Session, spec: JobSpec, path: Path, options: RunOptions, prepared: Prepared, stack: ExitStack
) -> Outcome:
    run, traits = prepared.run, prepared.stay.traits
    directory = Path(run.directory)
    try:
        # Of a queue, it may be that of an attempt that got no slice.
        if (prepared.resumed is None and options.queued is None) or not directory.is_dir():
            make_directory(directory)
    except TpujobError:
        session.forget_drafts(prepared.drafted)
        raise
    for name, text in prepared.files.items():
        whole_file.replace(directory / name, text)
    output = stack.enter_context(closing(JobOutput(directory, session.reporter, spec)))
    job = JobRun(
        run=run, attempt=prepared.attempt, stay=prepared.stay, phases=prepared.phases,
        artifacts=tuple(spec.artifacts), directory=directory, sink=output, metrics=output.metrics,
        max_duration_s=spec.limits.max_duration_s, held=prepared.held, lane=options.lane if traits.held else None,
        shipment=prepared.shipment, keep_s=options.keep_s, keep_on_failure_s=spec.keep_on_failure,
        detach=options.detach, queued=options.queued, max_restarts=prepared.max_restarts,
        saved_work=prepared.saved_work, resumed=prepared.resumed,
        stall_s=spec.limits.stall if traits.watched else None, linger_s=spec.limits.linger,
        most_bytes=spec.limits.max_results, ports=spec.ports if traits.watched else (),
    )  # fmt: skip
    if traits.watched and not options.detach and options.lane is None:
        why = f"run {run.id} is attached to this machine"
        stack.enter_context(awake(session, why, else_do="; `tpujob submit` outlives that"))
    with pages.reported_if_it_raises(session, run), repeating.kept(session, spec, path, prepared, options.again_of):
        return session.on_cloud(lambda capabilities: run_job(job, capabilities), run.cloud)


def _about_the_job(hint: str | None, spec: JobSpec, path: Path) -> str | None:
    """Return the hint with the command that looks at the way of this job, which by itself looks at that of the settings."""
    words = ["tpujob", "doctor", *([str(path)] if path.is_file() else [])]
    if not path.is_file() and spec.access.wish.via not in (None, "auto"):
        words += ["--via", str(spec.access.wish.via)]
    return hint and hint.replace(f"`{DOCTOR}`", f"`{shlex.join(words)}`")


def attach(
    session: Session,
    run: str,
    *,
    logs: Choice = None,
    watch_nodes: bool = False,
    owner: str | None = None,
    lane: Lane | None = None,
) -> RunResult:
    """Follow the run of this id or name to its end, collect its artifacts, release its slice, and return the result.

    A run that another machine started is found by the labels of its slice: one of this user, or of another `owner` who is
    named. One process follows a run. Beside another one on this machine this reports the log, and takes over if that process
    dies. Of a run that has ended, the log is reported and the result comes from the ledger. With `result.detached` the run
    goes on: Ctrl-C ended this, or its slice cannot be reached. Raises UnknownRun, UserError for a run that is not detached
    and for a name of several that have not ended. `logs`: of which workers the caller shows the logs; UserError for one that
    is not there. `watch_nodes`: of a cluster, after the end. `lane`: to which its slice goes on, if another job can use it.
    """
    session.recover(look=True)
    elsewhere.look_for_run(session, run, owner)
    found, attempt = lookup.live_run(session, run)
    if (count := worker_count(session, found, attempt)) is not None:
        shown_logs.check("--logs", logs, count)
    if found.spec.ports and not attempt.state.ended:
        session.reporter.notice("ports", by_command(found.id, found.spec.ports))
    while attempt.state.ended or not session.locks.lock(attempt.id):
        if not attempt.state.ended:
            session.reporter.notice("attach", "another process follows the run: showing its log, ready to take over")
        attempt = _read_along(session, found, attempt)
        if attempt.state.ended:
            return _ended(session, found, attempt)
    attempt, lease = _after_lock(session, found)
    if lease is None:
        return _ended(session, found, attempt)
    session.ledger.check_not_newer()  # at the end the slice may have to be held for the results
    outcome, stay = _follow(session, found, attempt, lease, lane)
    if outcome.detached:
        return results.left_again(session, outcome)
    drafted = [outcome.lease.id] if outcome.lease and not outcome.passed_on else []
    result = results.finish(session, outcome, drafted)
    results.tell_rest(session, outcome, stay, watch=watch_nodes)
    return result


def _follow(
    session: Session, found: RunRecord, attempt: Attempt, lease: Lease, lane: Lane | None
) -> tuple[Outcome, Stay]:
    """Follow the job to its end. This process has the lock of the attempt."""
    session.know_secrets(found)
    place = places.place_of(lease.cloud)
    spec, directory = found.spec, Path(found.directory)
    with closing(JobOutput(directory, session.reporter, spec, anew=True)) as output:
        stay, phases = place.attached(found, lease)
        to = JobRun(
            run=found,
            attempt=attempt,
            stay=stay,
            phases=phases,
            artifacts=tuple(spec.artifacts),
            directory=directory,
            sink=output,
            metrics=output.metrics,
            max_duration_s=spec.limits.max_duration or lease.deadline - lease.created_at,
            attached_to=lease,
            lane=lane,
            linger_s=spec.limits.linger,
            most_bytes=spec.limits.max_results,
        )
        outcome = session.on_cloud(lambda capabilities: run_job(to, capabilities), lease.cloud)
    if not outcome.detached:
        place.tidy(session, found)
    return outcome, stay


def _read_along(session: Session, found: RunRecord, attempt: Attempt) -> Attempt:
    """Report the log as it arrives here, until no process writes it any more; return the attempt as it is then."""
    if (count := worker_count(session, found, attempt)) is not None:
        session.reporter.emit(Workers(count, log_directory(Path(found.directory))))
    for lines in stored_lines(session, found, attempt, follow=True):
        session.reporter.emit(lines)
    if not attempt.state.ended:  # the process that followed it may have died, or have left without the proof
        session.recover(look=True)
        _, attempt = session.ledger.run(found.id)
    return attempt


def _after_lock(session: Session, found: RunRecord) -> tuple[Attempt, Lease | None]:
    """Return the attempt as the last holder of its lock left it, and the lease of the job that goes on; None: it has ended.

    That process may have ended it, or died near its end: then the lock is given back to the recovery. Raises UserError for a
    run that has not ended and is not detached.
    """
    _, attempt = session.ledger.run(found.id)
    lease = lookup.lease_of_run(session, found.id)
    if lease is not None and lease.runs_detached and not attempt.state.ended:
        return attempt, lease
    session.locks.unlock(attempt.id)
    session.recover(look=True)
    _, attempt = session.ledger.run(found.id)
    if not attempt.state.ended:
        raise UserError(f"{found.id} is not detached", hint=f"`tpujob show {found.id}` says what became of it")
    return attempt, None


def _ended(session: Session, found: RunRecord, attempt: Attempt) -> RunResult:
    lease = session.ledger.lease(attempt.lease_id) if attempt.lease_id else None
    give_up_at = time.monotonic() + RECOVERY_S
    while lease is not None and _is_being_released(session, lease) and time.monotonic() < give_up_at:
        session.reporter.progress("release", f"another process deletes {lease.name.node}")
        time.sleep(LOCK_POLL_S)
        lease = session.ledger.lease(lease.id)
    workers = worker_ends.recorded(session.ledger, attempt, Path(found.directory))
    lines = [
        f"result   {describe(found, attempt.state, attempt.detail, relative(Path(found.directory)))}",
        *(f"workers  {line}" for line in worker_ends.lines(workers)),
        f"released {lease_outcome(lease) if lease is not None else 'nothing was created'}",
    ]
    return results.ended_before(session, found, attempt, lease, lines)


def _is_being_released(session: Session, lease: Lease) -> bool:
    return lease.state is LeaseState.DOWN and session.locks.is_locked(lease.id)
