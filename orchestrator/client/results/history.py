"""The runs of this machine, from its ledger: `list`. What their files say is in `reports`, which imports more."""

from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.client.session import Session
from orchestrator.core.lease.run_and_attempt import job_file
from orchestrator.report import costs


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run. Times are unix seconds of the ledger; `exit_code` is that of the command that ended it, None until then."""

    run: str
    name: str
    state: str
    exit_code: int | None
    cloud: str
    job: str | None  #: its file
    started_at: float
    ended_at: float | None
    directory: str
    cost_usd: float | None  #: of all attempts; None: a price is unknown, or it ran on this machine
    params: dict[str, Any] = field(default_factory=dict)  #: of the job
    sweep: str | None = None  #: the name of the sweep, and what the run is called in it
    variant: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def runs(session: Session) -> tuple[RunSummary, ...]:
    """Return the runs of this machine, newest first. Recovers what earlier commands left first."""
    session.recover()
    return tuple(
        RunSummary(
            run=run.id,
            name=run.name,
            state=str(attempt.state),
            exit_code=attempt.exit_code,
            cloud=run.cloud,
            job=job_file(run.job_path),
            started_at=run.created_at,
            ended_at=attempt.ended_at,
            directory=run.directory,
            cost_usd=costs.of_run(session.ledger, run, session.now(run.cloud)),
            params=run.spec.params,
            sweep=run.spec.sweep.name,
            variant=run.spec.sweep.variant,
        )
        for run, attempt in session.ledger.runs()
    )
