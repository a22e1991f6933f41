"""`tpujob collect`: bring home what was left on a slice, then release it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from orchestrator.cli.done import Done

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.core.attempt import Attempt, Run
    from orchestrator.core.lease import Lease


def collect(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
) -> None:
    """Bring home the results that a run left on its slice, and release it, proven. What is at home is not sent again.

    Exits with the job's own code once everything is at home, with 65 while it is not. Ctrl-C leaves the slice held.
    """
    from orchestrator.cli.session import Session

    session = Session.open()
    session.recover(look=True)
    found, attempt = session.ledger.find_run(run)
    lease = session.of_run(found.id)
    _check_ended(session, found, attempt)
    if lease is None or not _is_there(lease) or _is_kept(lease, found, attempt):
        _nothing_left(session, found, attempt, lease)
    _collect(session, found, attempt, lease)


def _check_ended(session: Session, found: Run, attempt: Attempt) -> None:
    from orchestrator.errors import UserError

    if not attempt.state.ended:
        hint = f"`tpujob attach {found.id}` follows it" if found.cloud != "local" else "wait for its end"
        raise UserError(f"{found.id} has not ended: whoever follows it brings its results home", hint=hint)
    if not session.owners.claim(attempt.id):
        raise UserError(f"another process is bringing the results of {found.id} home", hint="wait for its end")


def _is_there(lease: Lease) -> bool:
    from orchestrator.core.lease import LeaseState

    return lease.state is LeaseState.READY and lease.hold_until is not None


def _is_kept(lease: Lease, found: Run, attempt: Attempt) -> bool:
    """After a success, by `--keep`: it is a person's, and the results are at home."""
    from orchestrator.core.attempt import results_wait

    return lease.run == found.id and not results_wait(attempt, lease)


def _nothing_left(session: Session, found: Run, attempt: Attempt, lease: Lease | None) -> NoReturn:
    from orchestrator.cli.talk import emit
    from orchestrator.core.attempt import AttemptState
    from orchestrator.errors import SliceLost
    from orchestrator.report.words import fate

    success = attempt.state is AttemptState.SUCCEEDED
    where = f"what came home is in {found.directory}"
    emit(f"result   {'all results are at home' if success else 'there is nothing left to bring home'}; {where}")
    if attempt.lease_id is not None:
        emit(f"released {fate(lease or session.ledger.lease(attempt.lease_id))}")
    code = attempt.exit_code
    raise Done(session.exit_code(SliceLost.exit_code if code is None and not success else code or 0))


def _collect(session: Session, found: Run, attempt: Attempt, lease: Lease) -> NoReturn:
    from orchestrator.cli.run import finish
    from orchestrator.engine.results import Left, collect_again
    from orchestrator.remote.collect import Order

    limits = found.spec.get("limits", {})
    order = Order(attempt.id, Path(found.directory), tuple(found.spec.get("artifacts", ())), limits.get("max_results"))
    left = Left(found, attempt, lease, order, borrowed=lease.run != found.id)
    outcome = session.on_cloud(lambda can: collect_again(left, can), lease.cloud)
    finish(session, outcome, [] if left.borrowed else [lease.id])
