"""What every run has, whatever its job measures: which it is, seconds, restarts and dollars, from the ledger."""

from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState, RunRecord, job_file
from orchestrator.ledger.ledger import Ledger
from orchestrator.report import costs


@dataclass(frozen=True, slots=True)
class WholeRun:
    """Of all attempts. `job_s`: without waiting, setup and collecting; None until the job ran. `cost_usd`: None if unknown."""

    job_s: float | None = None
    restarts: int = 0
    cost_usd: float | None = None


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


def summary(run: RunRecord, attempt: Attempt, cost_usd: float | None) -> RunSummary:
    """Return what the ledger has of a run, of which this is the last attempt."""
    return RunSummary(
        run=run.id,
        name=run.name,
        state=str(attempt.state),
        exit_code=attempt.exit_code,
        cloud=run.cloud,
        job=job_file(run.job_path),
        started_at=run.created_at,
        ended_at=attempt.ended_at,
        directory=run.directory,
        cost_usd=cost_usd,
        params=run.spec.params,
        sweep=run.spec.sweep.name,
        variant=run.spec.sweep.variant,
    )


def whole_run(ledger: Ledger, run: RunRecord, now: float) -> WholeRun:
    """Return the figures of a run. `now`: the ledger's time of its cloud, which counts for a job that still runs."""
    attempts = ledger.attempts_of(run.id)
    ran = [seconds for each in attempts if (seconds := _job_s(ledger, each, now)) is not None]
    return WholeRun(sum(ran) if ran else None, max(len(attempts) - 1, 0), costs.of_run(ledger, run, now))


def _job_s(ledger: Ledger, attempt: Attempt, now: float) -> float | None:
    """Return the seconds from the start of the job to its end, which is when collecting began, if it did."""
    if attempt.started_at is None:
        return None
    collecting = [at for at, kind, data in ledger.events(attempt.id) if _is_collecting(kind, data)]
    ended_at = min(collecting, default=attempt.ended_at)
    return (now if ended_at is None else ended_at) - attempt.started_at


def _is_collecting(kind: str, data: dict[str, object]) -> bool:
    return kind == "moved" and data.get("state") == AttemptState.COLLECTING
