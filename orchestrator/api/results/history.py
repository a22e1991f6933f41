"""The runs of this machine: `list`, and the names that a shell completes. All that their files say is in `reports`."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

from orchestrator import settings
from orchestrator.api.session.session import Session
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.report.rows import costs
from orchestrator.report.rows.whole_run import RunSummary, summary


def runs(session: Session) -> tuple[RunSummary, ...]:
    """Return the runs of this machine, newest first. Recovers what earlier commands left first."""
    session.recover()
    ledger = session.ledger
    return tuple(
        summary(
            run,
            attempt,
            ledger.lease(attempt.lease_id) if attempt.lease_id else None,
            costs.of_run(ledger, run, session.now(run.cloud)),
        )
        for run, attempt in ledger.runs()
    )


def runs_named(begin: str, most: int) -> list[tuple[RunRecord, Attempt]]:
    """Return the newest runs whose name or id begins like that, `most` of them at most, each with its last attempt.

    Raises TpujobError for a ledger that cannot be read.
    """
    with _session() as session:
        every = session.ledger.runs() if session is not None else []
        return [each for each in every if each[0].name.startswith(begin) or each[0].id.startswith(begin)][:most]


def sweeps() -> list[str]:
    """Return the names of the sweeps, newest first, each once."""
    with _session() as session:
        return list(dict.fromkeys(sweep.name for sweep in session.ledger.sweeps())) if session is not None else []


def slices() -> list[Lease]:
    """Return the leases of the slices that are not proven absent."""
    with _session() as session:
        return session.ledger.open_leases() if session is not None else []


@contextmanager
def _session() -> Iterator[Session | None]:
    """Yield a session; None where there is no state directory, which a completion does not make."""
    if not settings.state_dir(os.environ).is_dir():
        yield None
        return
    with closing(Session.open(light=True)) as session:
        yield session
