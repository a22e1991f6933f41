"""The attempts of a run, from the ledger: the candidates that were tried and why not, what was lost, what each cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.core.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.core.text.durations import format_duration
from orchestrator.core.text.times import clock
from orchestrator.ledger.ledger import Ledger
from orchestrator.report import costs
from orchestrator.report.layout import format_cost


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


def attempts(ledger: Ledger, run: RunRecord, now: float) -> tuple[AttemptReport, ...]:
    """Return the attempts of a run in order. `now`: the ledger's time of the run's cloud."""
    amounts = costs.of_attempts(ledger, run, now)
    reports = [_report(ledger, run, attempt, amounts[attempt.id]) for attempt in ledger.attempts_of(run.id)]
    for index, after in enumerate(reports[1:]):
        before = reports[index]
        if before.ended_at is not None and after.running_at is not None:
            reports[index] = replace(before, lost_s=after.running_at - before.ended_at)
    return tuple(reports)


def _report(ledger: Ledger, run: RunRecord, attempt: Attempt, usd: float | None) -> AttemptReport:
    events = ledger.events(attempt.id)
    lease = ledger.lease(attempt.lease_id) if attempt.lease_id else None
    return AttemptReport(
        attempt=attempt.id,
        state=str(attempt.state),
        cause=next((data["cause"] for _, kind, data in events if kind == "attempt_ended" and data.get("cause")), None),
        detail=attempt.detail,
        began_at=costs.began_at(ledger, run, attempt),
        running_at=attempt.started_at,
        ended_at=attempt.ended_at,
        zone=lease.name.zone if lease else None,
        node=lease.name.node if lease else None,
        provisioning=lease.provisioning if lease else None,
        ready_at=lease.ready_at if lease else None,
        tried=tuple(TriedCandidate(e["where"], e["why"], e["at"]) for _, kind, e in events if kind == "tried"),
        usd=usd,
        continued=next((data["text"] for _, kind, data in events if kind == "continued"), None),
    )


def lines(reports: Sequence[AttemptReport], cloud: str) -> list[str]:
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
