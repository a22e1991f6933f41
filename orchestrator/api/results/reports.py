"""Runs of this machine, from its ledger and their files: `show` for one, `compare` for several."""

from collections.abc import Sequence

from orchestrator.api.session import lookup
from orchestrator.api.session.session import Session
from orchestrator.report import results
from orchestrator.report.comparison.figures import RunFigures, figures
from orchestrator.report.results import RunReport
from orchestrator.report.rows.whole_run import whole_run


def show(session: Session, run: str | None) -> RunReport:
    """Return everything about a run: the beginning of its id, or the name of its job; None: the newest. Raises UnknownRun."""
    session.recover()
    found, attempt = lookup.run(session, run)
    session.know_secrets(found)
    return results.report(session.ledger, found, attempt, session.now(found.cloud))


def compare(session: Session, names: Sequence[str]) -> tuple[RunFigures, ...]:
    """Return the figures of these runs, each named as for `show`, in their order; once for a run that is named twice.

    The name of a sweep stands for the newest run of each of its variants. Raises UnknownRun.
    """
    session.recover()
    ledger = session.ledger
    found = {run.id: (run, attempt) for name in names for run, attempt in lookup.runs_of(session, name)[1]}
    columns = []
    for run, last in found.values():
        session.know_secrets(run)
        whole = whole_run(ledger, run, session.now(run.cloud))
        columns.append(figures(run, last, ledger.lease(last.lease_id) if last.lease_id else None, whole))
    return tuple(columns)
