"""`tpujob status`: the slices in the API, and those that are not proven gone."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cli.console import console, emit, emit_json, emit_lines
from orchestrator.cli.options import Cloud, Json, Project
from orchestrator.cli.tables import print_table
from orchestrator.client.session import Session
from orchestrator.client.slices.status import SliceRow
from orchestrator.client.slices.status import status as slice_status
from orchestrator.client.sweeps.progress import SweepProgress
from orchestrator.core.text.durations import format_duration, format_usd
from orchestrator.report.layout import day_clock, format_cost, short_clock
from orchestrator.settings import EMULATED, GOOGLE

HEAD = ("SLICE", "TYPE", "ZONE", "STATE", "CLAIM", "COST SO FAR", "AT MOST", "NODE")


def status(as_json: Json = False, cloud: Cloud = None, project: Project = None) -> int:
    """List every slice of tpujob in the project, asked of the API, with its cost so far; and what is not proven gone.

    Exits with 77 when the API could not be asked for want of credentials or a permission, with 75 when it did not answer, or
    not completely: then something may be alive that is not listed.
    """
    session = Session.open(cloud, project, reporter=console().reporter, ends=True, light=True)
    found = slice_status(session)
    code = session.exit_code(found.exit_code)
    if as_json:
        emit_json(found.as_json())
        return code
    session.announce()
    for asked in found.projects:
        emit(asked.summary)
        if asked.error is not None and asked.error.hint:
            session.reporter.notice("hint", asked.error.hint)
    if found.google_not_asked:
        emit(f"Google Cloud · not asked: {found.google_not_asked}")
    _print_slices(found.slices, complete=found.exit_code == 0)
    emit_lines([f"{run.name}, waiting for capacity, run {run.run}" for run in found.waiting])
    for sweep in found.sweeps:
        _print_sweep(sweep)
    return code


def _print_slices(rows: Sequence[SliceRow], *, complete: bool) -> None:
    """Print a table of your slices, and one line for each slice of other owners: their cost is not yours."""
    if not rows:
        doubt = "no slice of tpujob was seen; there may be some in what did not answer"
        emit("nothing of tpujob is alive there" if complete else doubt)
    if yours := [cells(row) for row in rows if row.yours]:
        print_table(HEAD, yours, right=(6,), states=(3,), optional=(7,), wraps=(5, 4))
    emit_lines([_other(row) for row in rows if not row.yours])


def _print_sweep(sweep: SweepProgress) -> None:
    """Print how far a sweep is, and a row for each of its variants."""
    emit(f"sweep {sweep.name}: {sweep.counts}")
    rows = [(each.name, each.variant, each.state, each.run or "") for each in sweep.variants]
    print_table(("SWEEP", "VARIANT", "STATE", "RUN"), rows, states=(2,), shortens=(1,))


def cells(row: SliceRow) -> tuple[str, ...]:
    """Return the row of one of your slices, one text for each of HEAD."""
    at_most = [usd for usd in (row.usd_at_most, row.budget_usd) if usd is not None]
    return (
        row.name,
        row.accelerator_type,
        row.zone,
        row.state,
        _claim(row),
        format_cost(row.usd_so_far, EMULATED if row.emulated else GOOGLE),
        format_usd(min(at_most)) if at_most else "unknown",
        row.node,
    )


def _claim(row: SliceRow) -> str:
    """Return why the slice may exist, and until when."""
    if row.down_at is not None:
        return f"being deleted for {format_duration(row.now - row.down_at)}"
    if row.mode == "detached":
        use = "detached, followed" if row.followed else "detached"
    elif row.mode == "hold":
        use = "held" if row.in_use is None or row.stopped else f"held, {'in use' if row.in_use else 'idle'}"
    elif row.run:
        use = f"run {row.run}"
    elif row.lease:
        use = "in use"
    else:
        use = f"lease {row.lease_id}" if row.lease_id else "no claim that can be read"
    until = f", until {short_clock(row.ends_at, row.now)}" if row.ends_at is not None else ""
    if row.idle_ends_at is not None and row.ends_at is not None and row.idle_ends_at < row.ends_at:
        until += f"; if unused, until {short_clock(row.idle_ends_at, row.now)}"
    remark = f"; {row.remark}" if row.remark else ""
    return f"{use}{until}{remark}"


def _other(row: SliceRow) -> str:
    whose = f"owner {row.owner}, another user or machine" if row.owner else "no owner label"
    since = f" since {day_clock(row.created_at)}" if row.created_at is not None else ""
    what = f"{row.name}, {row.accelerator_type}, {row.zone}, {row.state}{since}"
    return f"({whose}: {what}, {_claim(row)}, {row.node})"
