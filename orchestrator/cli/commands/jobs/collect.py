"""`tpujob collect`: bring home what was left on a slice, then release it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.cli.exit import ExitCode

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.lease.attempt import Attempt, RunRecord
    from orchestrator.core.lease.lease import Lease


def collect(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
    max_results: Annotated[
        str | None, typer.Option(metavar="SIZE|none", help="Instead of the job's limits.max_results, such as 80GB.")
    ] = None,
) -> None:
    """Bring home the results that a run left on its slice, and release it, proven. What is at home is not sent again.

    Exits with the job's own code once everything is at home, with 65 while it is not. Ctrl-C leaves the slice held.
    """

    from orchestrator.cli.session import open_session

    session = open_session()
    session.recover(look=True)
    found, attempt = session.ledger.find_run(run)
    most_bytes = _most_bytes(found, max_results)
    _claim(session, found, attempt)
    found, attempt = session.ledger.find_run(found.id)  # as whoever had it a moment ago has left it
    lease = session.of_run(found.id)
    if lease is None or not _may_have_some(lease, found, attempt):
        _nothing_left(session, found, attempt, lease)
    _collect(session, found, attempt, lease, most_bytes)


def _most_bytes(found: RunRecord, text: str | None) -> int | None:
    from orchestrator.core.text.sizes import parse_size
    from orchestrator.errors import UserError

    if text is None:
        said: int | None = found.spec.get("limits", {}).get("max_results")
        return said
    try:
        return None if text == "none" else parse_size(text)
    except ValueError as error:
        raise UserError(f"--max-results {text}: {error}, or none") from error


def _claim(session: Session, found: RunRecord, attempt: Attempt) -> None:
    """Only one process collects, and only after the end."""
    from orchestrator.core.lease.attempt import LOCAL
    from orchestrator.errors import UserError

    if not attempt.state.ended:
        hint = "wait for its end" if found.cloud == LOCAL else f"`tpujob attach {found.id}` follows a detached one"
        raise UserError(f"{found.id} has not ended: whoever follows it brings its results home", hint=hint)
    if not session.locks.claim(attempt.id):
        raise UserError(f"another process is bringing the results of {found.id} home", hint="wait for its end")


def _may_have_some(lease: Lease, found: RunRecord, attempt: Attempt) -> bool:
    """Held for its results, or brought by `tpujob up`. What `--keep` keeps is a person's, and its results are at home."""
    from orchestrator.core.lease.attempt import results_wait
    from orchestrator.core.lease.lease import LeaseState

    there = lease.state is LeaseState.READY and lease.hold_until is not None
    return there and (lease.run != found.id or results_wait(attempt, lease))


def _nothing_left(session: Session, found: RunRecord, attempt: Attempt, lease: Lease | None) -> NoReturn:
    from orchestrator.cli.console import emit
    from orchestrator.core.lease.attempt import AttemptState
    from orchestrator.errors import SliceLost
    from orchestrator.report.words import fate

    success = attempt.state is AttemptState.SUCCEEDED
    where = f"what came home is in {found.directory}"
    emit(f"result   {'all results are at home' if success else 'there is nothing left to bring home'}; {where}")
    if attempt.lease_id is not None:
        emit(f"released {fate(lease or session.ledger.lease(attempt.lease_id))}")
    code = 0 if success else attempt.exit_code
    raise ExitCode(session.exit_code(SliceLost.exit_code if code is None else code))


def _collect(session: Session, found: RunRecord, attempt: Attempt, lease: Lease, most_bytes: int | None) -> NoReturn:
    from orchestrator.cli.commands.jobs.run import finish
    from orchestrator.engine.jobs.collection import Left, collect_again
    from orchestrator.remote.transfer.collect import CollectRequest

    order = CollectRequest(attempt.id, Path(found.directory), tuple(found.spec.get("artifacts", ())), most_bytes)
    left = Left(found, attempt, lease, order, borrowed=lease.run != found.id)
    outcome = session.on_cloud(lambda capabilities: collect_again(left, capabilities), lease.cloud)
    finish(session, outcome, [] if left.borrowed else [lease.id])
