"""The story of a run: its attempts, the zones that were tried for each and why not, what was lost, what it cost.

Read from the ledger's events, which nothing ever changes; money is what `report.costs` says.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from orchestrator.core.lease.attempt import Attempt, RunRecord
from orchestrator.core.lease.lease import Lease
from orchestrator.core.text.durations import format_duration, format_usd
from orchestrator.ledger.ledger import Ledger
from orchestrator.report import costs
from orchestrator.report.layout import clock


def attempts(ledger: Ledger, run: RunRecord, now: float) -> list[dict[str, Any]]:
    """One row for each attempt, in order."""
    rows: list[dict[str, Any]] = []
    amounts = costs.of_attempts(ledger, run, now)
    for attempt in ledger.attempts_of(run.id):
        events = ledger.events(attempt.id)
        tried = [data for _, kind, data in events if kind == "tried"]
        lease = _lease(ledger, attempt)
        began = next((at for at, kind, _ in events if kind == "began"), run.created_at)
        cause = next((data["cause"] for _, kind, data in events if kind == "attempt_ended" and data.get("cause")), None)
        rows.append(
            {
                "attempt": attempt.id,
                "state": str(attempt.state),
                "cause": cause,
                "detail": attempt.detail,
                "began_at": began,
                "running_at": attempt.started_at,
                "ended_at": attempt.ended_at,
                "zone": lease.name.zone if lease else None,
                "node": lease.name.node if lease else None,
                "provisioning": lease.provisioning if lease else None,
                "ready_at": lease.ready_at if lease else None,
                "tried": [{"where": data["where"], "why": data["why"], "at": data["at"]} for data in tried],
                "usd": amounts[attempt.id],
            }
        )
    for before, after in pairwise(rows):
        lost_at, running_at = before["ended_at"], after["running_at"]
        before["lost_s"] = None if lost_at is None or running_at is None else running_at - lost_at
    return rows


def lines(rows: list[dict[str, Any]]) -> list[str]:
    """Nothing for a run with one attempt that got the first slice that it asked for: its story is told anyway."""
    if len(rows) <= 1 and not any(row["tried"] for row in rows):
        return []
    said = []
    for number, row in enumerate(rows, 1):
        why = row["cause"] or row["state"]
        where = f"{row['zone']} {row['provisioning']}" if row["zone"] else "no slice"
        lost = row.get("lost_s")
        again = f" · {format_duration(lost)} until its successor ran" if lost is not None else ""
        said.append(f"attempt  {number} · {where} · {_ran(row)} · {why}{again} · {_usd(row['usd'])}")
        said += [f"tried    {clock(no['at'])}  {no['where']}: {no['why']}" for no in row["tried"]]
    return said


def _ran(row: dict[str, Any]) -> str:
    if row["running_at"] is None:
        return "never ran"
    return "runs" if row["ended_at"] is None else f"ran {format_duration(row['ended_at'] - row['running_at'])}"


def _usd(amount: float | None) -> str:
    return "price unknown" if amount is None else format_usd(amount)


def _lease(ledger: Ledger, attempt: Attempt) -> Lease | None:
    return ledger.lease(attempt.lease_id) if attempt.lease_id else None
