"""Runs that this machine's ledger does not have: their slice is found by its labels, their record is on its worker 0.

What is found is recorded in the ledger, and from then on every command finds it there. A job that runs detached, and results
that wait on a held slice, are taken over by who follows or collects them. Of a run that a living process follows elsewhere,
only the log can be read.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from orchestrator import traits
from orchestrator.api.jobs.log_output import JobOutput, make_directory
from orchestrator.api.session import lookup
from orchestrator.api.session.session import Session
from orchestrator.api.slices import connected, elsewhere
from orchestrator.errors import CloudError, Interrupted, RemoteError, TpujobError, UserError
from orchestrator.promise.lease.changes import AttemptChange, AttemptEnded, Began, Leased, Moved
from orchestrator.promise.lease.lease import Lease, LeaseState, Mode
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.run.monitor import payload_failed


def look_for_run(session: Session, text: str, owner: str | None = None, *, ended: bool = False) -> None:
    """See to it that the ledger has the run that this id or name means, if a slice of it is there.

    Nothing changes where the ledger has a run of this id, or one of this name that goes on; `ended`: or one at all. Beside one
    that has ended here, only a job that runs on its own counts. Raises what `slices.elsewhere.find` raises; UserError for a run
    that a process elsewhere follows, or of which worker 0 has no record.
    """
    known = connected.is_known(session, text)
    if owner is None and (_goes_on(session, text) or (known and ended)):
        return
    try:
        lease = connected.slice_of_run(session, text, owner, detached=known and owner is None)
        if lease is not None:
            _record(session, lease)
    except TpujobError as error:
        if not known or owner is not None or isinstance(error, Interrupted):
            raise
        session.reporter.notice("note", f"what runs on other machines is not looked at: {error.message}")


def _goes_on(session: Session, text: str) -> bool:
    """Return whether the ledger has what is meant, so that the API need not be asked: of a name, one that has not ended."""
    found = lookup.meant(session, text)
    runs = [session.ledger.run(each) for each in found.runs]
    by_name = all(run.name == text for run, _ in runs)
    return bool(found.sweeps) or any(not (by_name and attempt.state.ended) for _, attempt in runs)


def leases_to_cancel(session: Session, text: str, owner: str | None = None) -> list[Lease]:
    """Return the slice on which a job of another machine runs, now in the ledger to be deleted.

    None where the ledger has the run, or the API shows no such job. Raises what `slices.elsewhere.find_job` raises.
    """
    if owner is None and _goes_on(session, text):
        return []
    try:
        for each in connected.known_slices(session, text, owner):
            elsewhere.as_labels_say(session, each)
        known = connected.known_slices(session, text, owner)
        running = lookup.one_of([each for each in known if each.run is not None and each.hold_until is None])
        return [running] if running is not None else elsewhere.find_job(session, text, owner)
    except TpujobError as error:
        if owner is not None or isinstance(error, UserError | Interrupted) or not connected.is_known(session, text):
            raise
        return []


def record_of(session: Session, lease: Lease) -> RunRecord | None:
    """Return the run of a lease if it may have left something outside its slice; None also where nothing tells of it."""
    if traits.traits_of(lease.cloud).made_with_job:
        with suppress(CloudError, RemoteError, UserError), closing(connected.Connected(session, lease)) as there:
            return there.attempt()[0]
    return None


def _record(session: Session, lease: Lease) -> None:
    """Write the run of a slice into the ledger, as it is now; one that it has stays as it is."""
    if lease.mode is Mode.RUN:
        raise UserError(
            f"{lease.handle} ({lease.run}) is followed by the process that started it, on another machine",
            hint=f"`tpujob logs {lease.run} --follow` shows its log here, `tpujob cancel {lease.run}` ends it",
        )
    with closing(connected.Connected(session, lease)) as there:
        run, attempt = there.attempt()
        known = session.ledger.attempts_of(run.id)
        if any((each.id, each.lease_id) == (attempt.id, lease.id) for each in known):
            return  # on another slice it is a start that was not finished here
        now = session.now(lease.cloud)
        began: list[Began | AttemptChange] = [
            Began(run, attempt),
            Leased(attempt.id, now, lease.id),
            *([Moved(attempt.id, now, AttemptState.RUNNING)] if lease.state is LeaseState.READY else ()),
        ]
        if not Path(run.directory).is_dir():  # it is there where only the ledger was lost
            make_directory(Path(run.directory))
        if lease.hold_until is not None:
            began.append(_end(session, there, run, attempt))
        session.ledger.record(*began)


def _end(session: Session, there: connected.Connected, run: RunRecord, attempt: Attempt) -> AttemptEnded:
    """Fetch the logs of a job that has ended, and return how it ended."""
    with closing(JobOutput(Path(run.directory), session.reporter, run.spec, anew=True)) as output:
        status = there.end(attempt.id, output, output.metrics)
    error = payload_failed(status, "main", run.id) if status.failed else None
    state = AttemptState.SUCCEEDED if error is None else AttemptState.FAILED
    more = {} if error is None else {"rc": error.rc, "workers": error.workers}
    return AttemptEnded.by(attempt.id, session.now(run.cloud), state, error, **more)
