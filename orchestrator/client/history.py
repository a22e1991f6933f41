"""The runs of this machine, from its ledger and their files: `list`, `show` and `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.client.session import Session
from orchestrator.report import compare as comparison
from orchestrator.report import costs, results
from orchestrator.report.figures import RunFigures, figures
from orchestrator.report.results import RunReport


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. Times are unix seconds of the ledger; `rc` is the job's own exit code, None until it ended."""

    run: str
    name: str
    state: str
    rc: int | None
    cloud: str
    job: str
    created_at: float
    ended_at: float | None
    directory: str
    usd: float | None  # of all attempts; None: a price is unknown, or it ran on this machine

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One column for each run, in the order in which they were named; a run named twice has one."""

    runs: tuple[RunFigures, ...]

    def as_json(self) -> dict[str, Any]:
        return comparison.as_json(self.runs)


def runs(session: Session) -> tuple[RunSummary, ...]:
    """Return the runs of this machine, newest first. Recovers what earlier commands left first."""
    session.recover()
    return tuple(
        RunSummary(
            run=run.id,
            name=run.name,
            state=str(attempt.state),
            rc=attempt.rc,
            cloud=run.cloud,
            job=run.job_path,
            created_at=run.created_at,
            ended_at=attempt.ended_at,
            directory=run.directory,
            usd=costs.of_run(session.ledger, run, session.now(run.cloud)),
        )
        for run, attempt in session.ledger.runs()
    )


def show(session: Session, run: str) -> RunReport:
    """Return everything about a run: the beginning of its id, or the name of its job. Raises UnknownRun."""
    session.recover()
    found, attempt = session.ledger.find_run(run)
    return results.report(session.ledger, found, attempt, session.now(found.cloud))


def compare(session: Session, names: Sequence[str]) -> Comparison:
    """Return the figures of these runs side by side, each named as for `show`. Raises UnknownRun."""
    session.recover()
    ledger = session.ledger
    found = {run.id: (run, attempt) for run, attempt in map(ledger.find_run, names)}
    columns = []
    for run, last in found.values():
        usd = costs.of_run(ledger, run, session.now(run.cloud))
        columns.append(figures(run, last, ledger.lease(last.lease_id) if last.lease_id else None, usd))
    return Comparison(tuple(columns))
