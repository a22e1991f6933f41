"""`tpujob cancel`: end a run, delete its slice, prove it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.cli.exit import ExitCode

if TYPE_CHECKING:
    from orchestrator.client.session import Session

COLLECT_S = 60.0  # what the artifacts of a stopped local job may take


def cancel(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
) -> None:
    """End a run, detached or in another terminal: its slice is deleted, and proven gone. Artifacts are not collected.

    A job with `on: local` is stopped as by Ctrl-C, and keeps its artifacts.
    """
    from orchestrator.cli.console import emit
    from orchestrator.cli.session import open_session
    from orchestrator.core.lease.attempt import LOCAL, AttemptEnded, AttemptState
    from orchestrator.core.lease.lease import Mode
    from orchestrator.engine.slices import held
    from orchestrator.errors import UserError
    from orchestrator.report.layout import clock
    from orchestrator.report.words import fate

    session = open_session(quiet=True, ends=True)
    session.recover(look=True)
    found, attempt = session.ledger.find_run(run)
    if attempt.state.ended:
        emit(f"{found.id} has ended already: {attempt.state}")
        kept = session.of_run(found.id)
        if kept is not None:
            session.reporter.say("note", fate(kept))
        raise ExitCode(session.exit_code())
    if found.cloud == LOCAL:
        _cancel_here(session, found.id, attempt.id)
    lease = session.of_run(found.id)
    if lease is None:
        raise UserError(f"{found.id} has no slice yet", hint="press Ctrl-C where it was started")
    if lease.mode is Mode.HOLD:
        raise UserError(
            f"{found.id} works on {lease.handle}, which `tpujob up` brought",
            hint=f"press Ctrl-C where the run was started, or `tpujob down {lease.handle}`",
        )
    (released,) = session.on_cloud(
        lambda capabilities: held.down((lease,), capabilities, reason="tpujob cancel"), lease.cloud
    )
    session.note(released)
    if not session.locks.alive(attempt.id):  # else the process that runs it sees the slice go, and says so itself
        ended = AttemptEnded(attempt.id, session.now(lease.cloud), AttemptState.INTERRUPTED, detail="cancelled")
        session.ledger.record(ended)
    if released.gone:
        emit(f"{found.id} cancelled; {lease.name.node} absent (checked {clock(released.checked_at)})")
    raise ExitCode(session.exit_code())


def _cancel_here(session: Session, run: str, attempt: str) -> NoReturn:
    """The process that runs it here stops it, collects what it made, and writes down how it ended."""
    from orchestrator.cli.console import emit
    from orchestrator.engine.jobs.monitor import STOP_GRACE_S
    from orchestrator.errors import TpujobError
    from orchestrator.remote.fleet.local import ask_to_end

    ask_to_end(session.directory / "local", attempt)
    give_up_at = time.monotonic() + STOP_GRACE_S + COLLECT_S
    while session.locks.alive(attempt):
        if time.monotonic() > give_up_at:
            raise TpujobError(f"{run} has not ended", hint="it has been asked to; `tpujob list` shows when it has")
        time.sleep(0.1)
    emit(f"{run} cancelled; nothing of it runs on this machine any more")
    raise ExitCode(session.exit_code())
