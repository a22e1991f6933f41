"""What is known of every run, whatever its job measures: seconds, restarts, dollars, main figure, and its attempts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, job_file
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.report.rows import costs
from orchestrator.report.rows.layout import format_cost
from orchestrator.system.lazy import Later
from orchestrator.text.units import clock, format_duration

if TYPE_CHECKING:
    from orchestrator.report.files import artifact_files, metrics
else:  # where there is a run
    artifact_files = Later("orchestrator.report.files.artifact_files")
    metrics = Later("orchestrator.report.files.metrics")


@dataclass(frozen=True, slots=True)
class WholeRun:
    """Of all attempts. `job_s`: without waiting, setup and collecting; None until the job ran. `cost_usd`: None if unknown."""

    job_s: float | None = None
    restarts: int = 0
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
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
    params: dict[str, Any]  #: of the job
    sweep: str | None  #: the name of the sweep, and what the run is called in it
    variant: str | None
    accelerator_type: str | None = None  #: of the slice of the last attempt; None: it had none
    zone: str | None = None  #: of that slice
    metric: str | None = None  #: the name of the main figure, such as `test_accuracy` or `loss`; None: it reported none
    value: float | None = None  #: its last value; None: it is no finite number

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def summary(run: RunRecord, attempt: Attempt, lease: Lease | None, cost_usd: float | None) -> RunSummary:
    """Return a run in short, of which this is the last attempt, on this slice. Of its files, the ends are read."""
    directory = Path(run.directory)
    values = metrics.newest(directory) | artifact_files.read_object(
        directory / "worker0" / "artifacts" / "metrics.json"
    )
    metric, value = metrics.main_figure(values) or (None, None)
    return RunSummary(
        run=run.id, name=run.name, state=str(attempt.state), exit_code=attempt.exit_code, cloud=run.cloud,
        job=job_file(run.job_path), started_at=run.created_at, ended_at=attempt.ended_at, directory=run.directory,
        cost_usd=cost_usd, params=run.spec.params, sweep=run.spec.sweep.name, variant=run.spec.sweep.variant,
        accelerator_type=lease.accelerator_type if lease else None, zone=lease.name.zone if lease else None,
        metric=metric, value=value,
    )  # fmt: skip


def whole_run(ledger: Ledger, run: RunRecord, now: float) -> WholeRun:
    """Return the figures of a run. `now`: the ledger's time of its cloud, which counts for a job that still runs."""
    attempts = ledger.attempts_of(run.id)
    ran = [seconds for each in attempts if (seconds := _job_s(ledger, each, now)) is not None]
    return WholeRun(sum(ran) if ran else None, max(len(attempts) - 1, 0), costs.of_run(ledger, run, now))


def _job_s(ledger: Ledger, attempt: Attempt, now: float) -> float | None:
    """Return the seconds from the start of the job to its end, which is when collecting began, if it did."""
    if attempt.started_at is None:
        return None
    moved = [(at, data.get("state")) for at, kind, data in ledger.events(attempt.id) if kind == "moved"]
    ended_at = min((at for at, state in moved if state == AttemptState.COLLECTING), default=attempt.ended_at)
    return (now if ended_at is None else ended_at) - attempt.started_at


@dataclass(frozen=True, slots=True)
class TriedCandidate:
    """A candidate that gave no slice. `where` is its type and zone."""

    where: str
    why: str
    at: float


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """One attempt. Times are unix seconds of the ledger; `cause` is why it was lost, if a new one could follow."""

    attempt: str
    state: str
    cause: str | None
    detail: str
    began_at: float
    running_at: float | None
    ended_at: float | None
    zone: str | None
    node: str | None
    provisioning: str | None
    ready_at: float | None
    tried: tuple[TriedCandidate, ...]
    usd: float | None
    continued: str | None = None  # from where it went on, of an attempt that followed a lost one
    lost_s: float | None = None  # from its end until its successor ran


def attempt_reports(ledger: Ledger, run: RunRecord, now: float) -> tuple[AttemptReport, ...]:
    """Return the attempts of a run in order. `now`: the ledger's time of the run's cloud."""
    attempts, amounts = ledger.attempts_of(run.id), costs.of_attempts(ledger, run, now)  # first those: more may begin
    reports = [_report(ledger, run, attempt, amounts[attempt.id]) for attempt in attempts]
    for index, after in enumerate(reports[1:]):
        before = reports[index]
        if before.ended_at is not None and after.running_at is not None:
            reports[index] = replace(before, lost_s=after.running_at - before.ended_at)
    return tuple(reports)


def _report(ledger: Ledger, run: RunRecord, attempt: Attempt, usd: float | None) -> AttemptReport:
    events = ledger.events(attempt.id)
    lease = ledger.lease(attempt.lease_id) if attempt.lease_id else None
    return AttemptReport(
        attempt=attempt.id, state=str(attempt.state),
        cause=next((data["cause"] for _, kind, data in events if kind == "attempt_ended" and data.get("cause")), None),
        detail=attempt.detail, began_at=costs.began_at(ledger, run, attempt), running_at=attempt.started_at,
        ended_at=attempt.ended_at, zone=lease.name.zone if lease else None, node=lease.name.node if lease else None,
        provisioning=lease.provisioning if lease else None, ready_at=lease.ready_at if lease else None,
        tried=tuple(TriedCandidate(e["where"], e["why"], e["at"]) for _, kind, e in events if kind == "tried"),
        usd=usd, continued=next((data["text"] for _, kind, data in events if kind == "continued"), None),
    )  # fmt: skip


def attempt_lines(reports: Sequence[AttemptReport], cloud: str) -> list[str]:
    """Return the lines of the attempts; none for a single attempt that got the first slice it asked for."""
    if len(reports) <= 1 and not any(each.tried for each in reports):
        return []
    found = []
    for number, each in enumerate(reports, 1):
        where = f"{each.zone} {each.provisioning}" if each.zone else "no slice"
        again = f" · {format_duration(each.lost_s)} until its successor ran" if each.lost_s is not None else ""
        start = f" · {each.continued}" if each.continued else ""
        ran = f"{_ran(each)} · {each.cause or each.state}{again} · {format_cost(each.usd, cloud)}"
        found.append(f"attempt  {number} · {where}{start} · {ran}")
        found += [f"tried    {clock(tried.at)}  {tried.where}: {tried.why}" for tried in each.tried]
    return found


def _ran(each: AttemptReport) -> str:
    if each.running_at is None:
        return "never ran"
    return "runs" if each.ended_at is None else f"ran {format_duration(each.ended_at - each.running_at)}"
