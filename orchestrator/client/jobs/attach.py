"""Follow a detached run to its end: its log, its artifacts, the release of its slice. Leaving early changes nothing."""

import time
from contextlib import closing
from pathlib import Path

from orchestrator import places
from orchestrator.client import lookup, shown_logs
from orchestrator.client.events import RunResult, Workers, relative
from orchestrator.client.jobs import results
from orchestrator.client.jobs.log_output import JobOutput
from orchestrator.client.results.logs import stored_lines, worker_count
from orchestrator.client.session import LOCK_POLL_S, RECOVERY_S, Session
from orchestrator.client.shown_logs import Choice
from orchestrator.core.lease.lease import Lease, LeaseState
from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.errors import UserError
from orchestrator.places.place import Stay
from orchestrator.report import worker_ends
from orchestrator.report.files.artifact_files import log_directory
from orchestrator.report.messages import lease_outcome
from orchestrator.report.results import describe
from orchestrator.run.job_run import JobRun
from orchestrator.run.monitor import by_command
from orchestrator.run.program import run_job
from orchestrator.run.progress import Outcome


def attach(session: Session, run: str, *, logs: Choice = None) -> RunResult:
    """Follow the run of this id or name to its end, collect its artifacts, release its slice, and return the result.

    One process follows a run. Beside another one this reports the log, and takes over if that process dies. Of a run that
    has ended, the log is reported and the result comes from the ledger. With `result.detached` the run goes on: Ctrl-C
    ended this, or its slice cannot be reached. Raises UnknownRun, UserError for a run that is not detached and for a name of
    several that have not ended. `logs`: of which workers the caller shows the logs; UserError for one that is not there.
    """
    session.recover(look=True)
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
    outcome, stay = _follow(session, found, attempt, lease)
    if outcome.detached:
        return results.left_again(session, outcome)
    result = results.finish(session, outcome, [outcome.lease.id] if outcome.lease else [])
    results.watch_rest(session, outcome, stay)
    return result


def _follow(session: Session, found: RunRecord, attempt: Attempt, lease: Lease) -> tuple[Outcome, Stay]:
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
