"""What every run has, whatever its job measures: the seconds that its job ran, restarts and dollars, from the ledger."""

from dataclasses import dataclass

from orchestrator.core.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.ledger.ledger import Ledger
from orchestrator.report import costs


@dataclass(frozen=True, slots=True)
class WholeRun:
    """Of all attempts. `job_s`: without waiting, setup and collecting; None until the job ran. `cost_usd`: None if unknown."""

    job_s: float | None = None
    restarts: int = 0
    cost_usd: float | None = None


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
