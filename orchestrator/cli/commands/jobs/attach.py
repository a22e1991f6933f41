"""`tpujob attach`: follow a detached run to its end, bring its artifacts home, release its slice."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.cli.exit import ExitCode

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.lease.attempt import Attempt, RunRecord
    from orchestrator.engine.jobs.job_run import Outcome


def attach(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
) -> None:
    """Follow a detached run to its end: log, artifacts, proof. Ctrl-C leaves it running."""

    from orchestrator.cli.session import open_session

    session = open_session()
    session.recover(look=True)
    found, attempt = session.ledger.find_run(run)
    while attempt.state.ended or not session.locks.claim(attempt.id):
        # Over, or somebody is attached already: the collector, or another terminal. Its place is ours if it dies.
        if not attempt.state.ended:
            session.reporter.say(
                "attach", "another process follows it already: reading along, and ready to take its place"
            )
        attempt = _read_along(session, found, attempt)
        if attempt.state.ended:
            _say_ended(session, found, attempt)
    outcome = follow(session, found, _as_left(session, found, attempt))
    if outcome.detached:
        _say_left(session, found, outcome)
    report(session, outcome)


def follow(session: Session, found: RunRecord, attempt: Attempt) -> Outcome:
    from orchestrator.client.jobs.output import JobOutput
    from orchestrator.core.lease.lease import LeaseState
    from orchestrator.engine.jobs.attach import Attachment, attach
    from orchestrator.errors import UserError
    from orchestrator.remote.transfer.collect import CollectRequest

    lease = session.of_run(found.id)
    if lease is None or lease.detached_at is None or lease.state is not LeaseState.READY:
        raise UserError(f"{found.id} is not detached", hint=f"`tpujob show {found.id}` says what became of it")
    session.reporter.secrets.add(*(os.environ.get(name, "") for name in found.spec.get("secret_sources", ())))
    output = JobOutput(Path(found.directory), session.reporter, anew=True)
    limits = found.spec.get("limits", {})
    to = Attachment(
        found,
        attempt,
        lease,
        CollectRequest(
            attempt.id, Path(found.directory), tuple(found.spec.get("artifacts", ())), limits.get("max_results")
        ),
        max_duration_s=float(limits.get("max_duration", lease.deadline - lease.created_at)),
        sink=output,
        linger_s=limits.get("linger"),
    )
    with closing(output):
        return session.on_cloud(lambda capabilities: attach(to, capabilities), lease.cloud)


def report(session: Session, outcome: Outcome) -> NoReturn:
    from orchestrator.cli.commands.jobs.run import finish

    finish(session, outcome, [outcome.lease.id] if outcome.lease else [])


def _say_left(session: Session, found: RunRecord, outcome: Outcome) -> None:
    from orchestrator.cli.console import console

    console().quiet()
    if outcome.error is not None:
        session.reporter.fail(outcome.error)
    session.reporter.say("attach", f"{found.id} goes on without us; `tpujob attach {found.id}` comes back to it")
    raise ExitCode(session.exit_code(outcome.exit_code))


def _read_along(session: Session, found: RunRecord, attempt: Attempt) -> Attempt:
    """The log as it arrives here, until nobody writes it any more; then the attempt as it is."""
    from orchestrator.cli.commands.results.logs import stream

    stream(session, found, attempt, follow=True)
    if not attempt.state.ended:  # whoever was attached may have died, or have left without the proof
        session.recover(look=True)
        _, attempt = session.ledger.find_run(found.id)
    return attempt


def _as_left(session: Session, found: RunRecord, attempt: Attempt) -> Attempt:
    """The attempt is ours now. Whoever had it until this moment may have ended it, or have died on the way to its end."""
    from orchestrator.core.lease.lease import LeaseState

    lease = session.of_run(found.id)
    if lease is None or lease.state is not LeaseState.READY:
        session.locks.release(attempt.id)
        session.recover(look=True)
        _, attempt = session.ledger.find_run(found.id)
        if attempt.state.ended:
            _say_ended(session, found, attempt)
    return attempt


def _say_ended(session: Session, found: RunRecord, attempt: Attempt) -> NoReturn:
    """How it ended, from the ledger; then its own exit code, or 75."""
    from orchestrator.cli.console import emit
    from orchestrator.core.lease.attempt import AttemptState
    from orchestrator.report.words import fate

    emit(f"result   {attempt.state}{f': {attempt.detail}' if attempt.detail else ''}")
    emit(f"released {fate(session.ledger.lease(attempt.lease_id)) if attempt.lease_id else 'nothing was created'}")
    session.reporter.say("run", f"{found.id} · {found.directory} · tpujob show {found.id}")
    code = attempt.exit_code
    if code is None:  # nobody was there when it ended
        code = 0 if attempt.state is AttemptState.SUCCEEDED else 71
    raise ExitCode(session.exit_code(code))
