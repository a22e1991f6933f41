"""`tpujob status`: what is alive and what is owed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from orchestrator.cli.done import Done
from orchestrator.cli.options import Cloud, Json, Project

if TYPE_CHECKING:
    from orchestrator.cli.session import Session
    from orchestrator.core.lease import Lease


def status(as_json: Json = False, cloud: Cloud = None, project: Project = None) -> None:
    """What is alive right now, asked of the API, with what it cost so far; and what is not proven gone."""
    from orchestrator.cli.session import Session
    from orchestrator.cli.talk import emit, emit_json

    session = Session.open(cloud, project, ends=True)
    session.recover(look=True)
    session.note_overdue()
    rows = [_row(session, lease) for lease in session.ledger.open_leases()]
    if as_json:
        emit_json(
            {"cloud": session.target.kind, "project": session.target.project, "why": session.target.why, "slices": rows}
        )
        raise Done(session.exit_code())
    session.announce()
    if not rows:
        emit("nothing is alive and nothing is owed that this machine knows of")
    for row in rows:
        emit(_line(row))
    raise Done(session.exit_code())


def _row(session: Session, lease: Lease) -> dict[str, Any]:
    from orchestrator.engine.cloud_effects import Get
    from orchestrator.engine.retry import until
    from orchestrator.errors import CloudError
    from orchestrator.report.words import usd_so_far

    now = time.time()
    try:
        view = session.run(until(now + 10, Get(lease.name)), lease.cloud)
        state = view.native_state if view else "not visible"
    except CloudError as error:
        state = f"unknown: {error.message}"
    return {
        "name": lease.handle,
        "node": lease.name.node,
        "project": lease.name.project,
        "zone": lease.name.zone,
        "accelerator_type": lease.accelerator_type,
        "spot": lease.spot,
        "purpose": str(lease.purpose),
        "lease": str(lease.state),
        "state": state,
        "created_at": lease.created_at,
        "deadline": lease.deadline,
        "ends_at": lease.ends_at,
        "hold_until": lease.hold_until,
        "down_at": lease.down_at,
        "in_use": session.owners.alive(lease.id),
        "followed": session.is_followed(lease),
        "usd_per_hour": lease.usd_per_hour,
        "usd_so_far": usd_so_far(lease, now),
        "budget_usd": lease.budget_usd,
        "mode": str(lease.mode),
        "emulated": lease.cloud == "emulated",
    }


def _line(row: dict[str, Any]) -> str:
    from orchestrator.core.durations import format_duration, format_usd
    from orchestrator.report.times import day_clock

    left = format_duration(max(row["ends_at"] - time.time(), 0.0))
    use = "in use" if row["in_use"] else "idle"
    if row["mode"] == "detached":
        use = "detached, followed" if row["followed"] else "detached"
    if row["down_at"] is not None:
        use = f"being deleted for {format_duration(time.time() - row['down_at'])}"
    spent = f"{format_usd(row['usd_so_far'])} so far"
    if row["budget_usd"] is not None:
        spent = f"{format_usd(row['usd_so_far'])} of {format_usd(row['budget_usd'])}"
    cost = f"emulated, free ({spent} on Google Cloud)" if row["emulated"] else spent
    age = format_duration(time.time() - row["created_at"])
    words = [
        row["name"],
        row["node"],
        row["accelerator_type"],
        row["zone"],
        row["state"],
        use,
        age,
        f"until {day_clock(row['ends_at'])} ({left} left)",
        cost,
    ]
    return "\t".join(words)
