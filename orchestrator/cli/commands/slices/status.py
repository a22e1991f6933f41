"""`tpujob status`: what is alive and what is owed, by the API's own word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Json, Project

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.client.slices.inventory import Asked
    from orchestrator.core.lease.lease import Lease
    from orchestrator.core.lease.slices import SliceView
    from orchestrator.errors import CloudError

Row = dict[str, Any]

HEAD = ("SLICE", "TYPE", "ZONE", "STATE", "CLAIM", "COST SO FAR", "AT MOST", "NODE")


def status(as_json: Json = False, cloud: Cloud = None, project: Project = None) -> None:
    """Every slice of tpujob in the project, asked of the API, and what it cost so far; and what is not proven gone.

    Exits with 77 when the API could not be asked for want of credentials or a permission, with 75 when it did not answer, or
    not completely: then something may be alive that is not listed.
    """
    from orchestrator.cli.console import emit, emit_json
    from orchestrator.cli.session import open_session
    from orchestrator.client.slices import inventory

    session = open_session(cloud, project, ends=True, light=True)
    before = {lease.id for lease in session.ledger.open_leases()}
    answers = inventory.ask(session, session.ledger.open_leases())
    session.recover(look=all(asked.complete for asked in answers))
    session.note_overdue()
    rows = _rows(session, answers, before)
    code = session.exit_code(inventory.worst(answers))
    if as_json:
        emit_json(_shape(session, answers, rows))
        raise ExitCode(code)
    session.announce()
    for asked in answers:
        emit(asked.summary)
        if asked.error is not None and asked.error.hint:
            session.reporter.say("hint", asked.error.hint)
    if no_google := _google_left_out(session, answers):
        emit(f"Google Cloud · not asked: {no_google}")
    for line in _table(rows, sure=inventory.worst(answers) == 0):
        emit(line)
    raise ExitCode(code)


def _google_left_out(session: Session, answers: list[Asked]) -> str | None:
    """Why nobody asked Google Cloud, where a slice of an earlier day may be billed. None: somebody did."""
    from orchestrator.client.session import GOOGLE

    if any(asked.cloud == GOOGLE for asked in answers):
        return None
    source = session.target.source
    return "no project is configured" if source == "default" else f"{source} names an emulator"


# -- rows --------------------------------------------------------------------------------------------------------------


def _rows(session: Session, answers: list[Asked], before: set[str]) -> list[Row]:
    """What the ledger has open, and whatever else the API showed. `before`: the leases that were open when it was asked."""
    places = {(asked.cloud, asked.project): asked for asked in answers}
    known = session.ledger.leases()
    rows = [_known(session, lease, places.get((lease.cloud, lease.name.project))) for lease in known if lease.open]
    accounted = {lease.name.node for lease in known if lease.open or lease.id in before}
    closed = {lease.name.node: lease for lease in known if not lease.open}
    for asked in answers:
        for key, view in asked.views.items():
            if view.name.node not in accounted:
                remark = asked.odd.get(key) or _remark(view, closed.get(view.name.node))
                rows.append(_unknown(session, asked, view, remark))
    return rows


def _remark(view: SliceView, closed: Lease | None) -> str:
    """What this machine knows of a slice that the API shows and that it does not answer for."""
    from orchestrator.core.lease.absence import ours
    from orchestrator.core.lease.lease import LeaseState
    from orchestrator.report.layout import day_clock

    if closed is None or not ours(view, closed):
        return "not in this machine's ledger"
    if closed.state is LeaseState.FORGOTTEN:
        return f"forgotten here, {closed.reason}"
    return f"was proven absent {day_clock(closed.gone_at)}, and is listed now"


def _known(session: Session, lease: Lease, asked: Asked | None) -> Row:
    from orchestrator.errors import CloudError
    from orchestrator.report import costs

    now, waiting = session.now(lease.cloud), session.results_on(lease)
    view = asked.view_of(lease) if asked is not None else CloudError("it was made after the question")
    return {
        "name": lease.handle,
        "node": lease.name.node,
        "project": lease.name.project,
        "zone": lease.name.zone,
        "accelerator_type": lease.accelerator_type,
        "spot": lease.spot,
        "purpose": str(lease.purpose),
        "lease": str(lease.state),
        "state": _state(view),
        "created_at": lease.created_at,
        "deadline": lease.deadline,
        "ends_at": lease.ends_at,
        "hold_until": lease.hold_until,
        "down_at": lease.down_at,
        "in_use": session.locks.is_locked(lease.id),
        "followed": session.is_followed(lease),
        "usd_per_hour": lease.usd_per_hour,
        "usd_so_far": costs.of_lease(lease, now),
        "usd_at_most": costs.at_most(lease),
        "budget_usd": lease.budget_usd,
        "mode": str(lease.mode),
        "emulated": lease.cloud == "emulated",
        "run": lease.run,
        "owner": lease.owner,
        "yours": True,
        "remark": None if waiting is None else f"results of {waiting} are on it: `tpujob collect {waiting}`",
        "now": now,
    }


def _state(view: SliceView | CloudError | None) -> str:
    """Not to be seen is not to be absent, and not to be asked is neither."""
    if view is None:
        return "not visible"
    return f"unknown: {view.message}" if isinstance(view, Exception) else view.native_state


def _unknown(session: Session, asked: Asked, view: SliceView, remark: str) -> Row:
    """A slice of which only the API knows: what its labels say, and its price by the table."""
    import os

    from orchestrator import catalog, settings
    from orchestrator.core.lease import claim_labels
    from orchestrator.core.lease.slices import SliceState
    from orchestrator.core.text import names

    now = asked.at or 0.0  # the server's clock, by which its labels are written
    stamp = claim_labels.read(view, settings.pace_of(asked.cloud, os.environ))
    if stamp is not None and stamp.odd:
        stamp = None  # what gc would make of it is nobody's claim
    ends_at = min(stamp.claimed_until, stamp.deadline) if stamp else None
    price = catalog.usd_per_hour(view.accelerator_type, view.name.zone, spot=view.spot)
    billed = view.state not in (SliceState.QUEUED, SliceState.TOMBSTONE)
    since = view.created_at

    def usd(until: float | None) -> float | None:
        if not billed:
            return 0.0
        return None if price is None or since is None or until is None else price * max(until - since, 0.0) / 3600

    owner = view.labels.get("tpujob-owner")
    return {
        "name": view.labels.get("tpujob-name") or view.name.node,
        "node": view.name.node,
        "project": view.name.project,
        "zone": view.name.zone,
        "accelerator_type": view.accelerator_type,
        "spot": view.spot,
        "purpose": None,
        "lease": None,
        "state": view.native_state,
        "created_at": since,
        "deadline": stamp.deadline if stamp else None,
        "ends_at": ends_at,
        "hold_until": None,
        "down_at": None,
        "in_use": None,
        "followed": None,
        "usd_per_hour": price,
        "usd_so_far": usd(now),
        "usd_at_most": usd(ends_at),
        "budget_usd": None,
        "mode": view.labels.get(names.MODE),
        "emulated": asked.cloud == "emulated",
        "run": view.labels.get("tpujob-lease-id"),
        "owner": owner,
        "yours": owner == session.owner,
        "remark": remark,
        "now": now,
    }


# -- what it says ------------------------------------------------------------------------------------------------------


def _table(rows: list[Row], *, sure: bool) -> list[str]:
    """Yours as a table, whosever else they are one line each: those are not yours to pay or to delete."""
    from orchestrator.report.layout import aligned

    if not rows:
        return [
            "nothing of tpujob is alive there"
            if sure
            else "no slice of tpujob was seen; what did not answer may hold some all the same"
        ]
    yours = [_cells(row) for row in rows if row["yours"]]
    lines = aligned([HEAD, *yours], right=(5, 6)) if yours else []
    return lines + [_other(row) for row in rows if not row["yours"]]


def _cells(row: Row) -> tuple[str, ...]:
    at_most = [usd for usd in (row["usd_at_most"], row["budget_usd"]) if usd is not None]
    return (
        row["name"],
        row["accelerator_type"],
        row["zone"],
        row["state"],
        _claim(row),
        _usd(row, row["usd_so_far"]),
        _usd(row, min(at_most, default=None)),
        row["node"],
    )


def _usd(row: Row, amount: float | None) -> str:
    from orchestrator.core.text.durations import format_usd

    return f"emulated ({format_usd(amount)})" if row["emulated"] else format_usd(amount)


def _claim(row: Row) -> str:
    """Why it lives, and until when."""
    from orchestrator.core.text.durations import format_duration
    from orchestrator.report.layout import day_clock

    if row["down_at"] is not None:
        return f"being deleted for {format_duration(row['now'] - row['down_at'])}"
    if row["mode"] == "detached":
        use = "detached, followed" if row["followed"] else "detached"
    elif row["mode"] == "hold":
        use = "held" if row["in_use"] is None else f"held, {'in use' if row['in_use'] else 'idle'}"
    else:
        use = f"run {row['run']}" if row["run"] else "in use" if row["lease"] else "no claim that can be read"
    until = f", until {day_clock(row['ends_at'])}" if row["ends_at"] is not None else ""
    remark = f"; {row['remark']}" if row["remark"] else ""
    return f"{use}{until}{remark}"


def _other(row: Row) -> str:
    from orchestrator.report.layout import day_clock

    whose = f"owner {row['owner']}, another user or machine" if row["owner"] else "nobody's label on it"
    since = f" since {day_clock(row['created_at'])}" if row["created_at"] is not None else ""
    what = f"{row['name']}, {row['accelerator_type']}, {row['zone']}, {row['state']}{since}"
    return f"({whose}: {what}, {_claim(row)}, {row['node']})"


def _shape(session: Session, answers: list[Asked], rows: list[Row]) -> Row:
    first, left_out = answers[0], _google_left_out(session, answers)
    return {
        "cloud": session.target.kind,
        "project": session.target.project,
        "why": session.target.why,
        "asked_at": first.at,
        "complete": all(asked.complete for asked in answers),
        "asked": [asked.shape() for asked in answers],
        "not_asked": [{"cloud": "google", "why": left_out}] if left_out else [],
        "slices": [{key: value for key, value in row.items() if key != "now"} for row in rows],
    }
