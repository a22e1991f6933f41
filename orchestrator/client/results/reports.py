"""Runs of this machine, from its ledger and their files: `show` for one, `compare` for several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.client.session import Session
from orchestrator.client.sweeps import progress
from orchestrator.errors import UnknownRun
from orchestrator.report import results
from orchestrator.report.comparison.figures import RunFigures, figures
from orchestrator.report.results import RunReport
from orchestrator.report.whole_run import whole_run


def show(session: Session, run: str | None) -> RunReport:
    """Return everything about a run: the beginning of its id, or the name of its job; None: the newest. Raises UnknownRun."""
    session.recover()
    found, attempt = session.ledger.newest_run() if run is None else session.ledger.find_run(run)
    session.know_secrets(found)
    return results.report(session.ledger, found, attempt, session.now(found.cloud))


def compare(session: Session, names: Sequence[str]) -> tuple[RunFigures, ...]:
    """Return the figures of these runs, each named as for `show`, in their order; once for a run that is named twice.

    The name of a sweep stands for the newest run of each of its variants. Raises UnknownRun.
    """
    session.recover()
    ledger = session.ledger
    found = {run.id: (run, attempt) for run, attempt in map(ledger.find_run, _runs(session, names))}
    columns = []
    for run, last in found.values():
        session.know_secrets(run)
        whole = whole_run(ledger, run, session.now(run.cloud))
        columns.append(figures(run, last, ledger.lease(last.lease_id) if last.lease_id else None, whole))
    return tuple(columns)


def _runs(session: Session, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        of_sweep = progress.runs_of(session, name)
        if of_sweep == []:
            raise UnknownRun(
                f"no variant of the sweep {name!r} was run yet", hint="`tpujob status` shows how far it is"
            )
        yield from [name] if of_sweep is None else of_sweep
