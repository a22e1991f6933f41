"""The runs of this machine, from its ledger: `list`. What their files say is in `reports`, which imports more."""

from orchestrator.client.session import Session
from orchestrator.report import costs
from orchestrator.report.whole_run import RunSummary, summary


def runs(session: Session) -> tuple[RunSummary, ...]:
    """Return the runs of this machine, newest first. Recovers what earlier commands left first."""
    session.recover()
    ledger = session.ledger
    return tuple(
        summary(run, attempt, costs.of_run(ledger, run, session.now(run.cloud))) for run, attempt in ledger.runs()
    )
