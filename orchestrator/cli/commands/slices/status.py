"""`tpujob status`: the slices in the API, and those that are not proven gone."""

from collections.abc import Sequence

from orchestrator import catalog
from orchestrator.api.session.sweep_progress import SweepProgress
from orchestrator.api.slices.status import SliceRow, WaitingRun
from orchestrator.cli.console.output import console, emit_json, emit_wrapped, open_client
from orchestrator.cli.console.tables import on_terminal, print_table
from orchestrator.cli.options import Cloud, Json, Project
from orchestrator.report.rows.layout import format_cost
from orchestrator.text.units import day_clock, format_duration, format_usd, rough_duration, short_clock

HEAD = ("SLICE", "TYPE", "ZONE", "STATE", "CLAIM", "COST", "AT MOST", "NODE")
BRIEF_HEAD = (*HEAD[:-1], "UNTIL", HEAD[-1])


def status(as_json: Json = False, cloud: Cloud = None, project: Project = None) -> int:
    """List every slice of tpujob in the project, asked of the API, with its cost so far; and what is not proven gone.

    Exits with 77 when the API could not be asked for want of credentials or a permission, with 75 when it did not answer, or
    not completely: then something may be alive that is not listed.
    """
    client = open_client(cloud, project)
    found = client.status()
    if as_json:
        emit_json(found.as_json())
        return found.exit_code
    client.announce()
    for asked in found.projects:
        emit_wrapped([asked.summary])
        if asked.error is not None and asked.error.hint:
            console().notice("hint", asked.error.hint)
    if found.google_not_asked:
        emit_wrapped([f"Google Cloud · not asked: {found.google_not_asked}"])
    print_slices(found.slices, found.waiting, complete=found.exit_code == 0)
    emit_wrapped(found.left)
    for sweep in found.sweeps:
        _print_sweep(sweep)
    return found.exit_code


def print_slices(rows: Sequence[SliceRow], waiting: Sequence[WaitingRun], *, complete: bool) -> None:
    """Print a table of your slices and of the runs that wait for one, then a line for each slice of other owners."""
    if not rows:
        doubt = "no slice of tpujob was seen; there may be some in what did not answer"
        emit_wrapped(["nothing of tpujob is alive there" if complete else doubt])
    yours = [row for row in rows if row.yours]
    if yours or waiting:
        (_draw if on_terminal() else _write)(yours, waiting)
    emit_wrapped([_other(row) for row in rows if not row.yours])


def _draw(rows: Sequence[SliceRow], waiting: Sequence[WaitingRun]) -> None:
    """Print the table for a terminal of 80 columns: claims in a few words, remarks below. The cloud is named above it."""
    mixed = len({row.emulated for row in rows}) > 1
    slices = [brief(row, mixed=mixed) for row in rows]
    runs = [brief_wait(run) for run in waiting]
    print_table(BRIEF_HEAD, [*slices, *runs], right=(5, 6), states=(3,), optional=(8, 7), wraps=(4,))
    emit_wrapped([f"{row.name}: {row.remark}" for row in rows if row.remark])


def _write(rows: Sequence[SliceRow], waiting: Sequence[WaitingRun]) -> None:
    """Print everything about a slice on one line, for other programs and files."""
    print_table(HEAD, [*map(cells, rows), *map(_waits, waiting)])


def _waits(run: WaitingRun) -> tuple[str, ...]:
    """Return the row of a run that has no slice, one text for each of HEAD."""
    where = (run.accelerator_type or "several", run.zone or "several")
    return run.name, *where, "waiting", f"run {run.run}", "-", "-", ""


def brief_wait(run: WaitingRun) -> tuple[str, ...]:
    """Return the row of a run that has no slice, one text for each of BRIEF_HEAD."""
    name, accelerator_type, *more, node = _waits(run)
    return name, catalog.spoken(accelerator_type), *more, "", node


def _print_sweep(sweep: SweepProgress) -> None:
    """Print how far a sweep is, and a row for each of its variants."""
    emit_wrapped([f"sweep {sweep.name}: {sweep.counts}"])
    rows = [(each.name, each.variant, each.state, each.run or "") for each in sweep.variants]
    print_table(("SWEEP", "VARIANT", "STATE", "RUN"), rows, states=(2,), shortens=(1,))


def cells(row: SliceRow) -> tuple[str, ...]:
    """Return the row of one of your slices, one text for each of HEAD."""
    cost = format_cost(row.usd_so_far, row.cloud)
    return row.name, row.accelerator_type, row.zone, row.state, _claim(row), cost, _at_most(row), row.node


def brief(row: SliceRow, *, mixed: bool = False) -> tuple[str, ...]:
    """Return the row of one of your slices, one text for each of BRIEF_HEAD. `mixed`: beside slices of another cloud."""
    cost = format_cost(row.usd_so_far, row.cloud if mixed else "")
    until = short_clock(row.ends_at, row.now) if row.ends_at is not None else ""
    what = (row.name, catalog.spoken(row.accelerator_type), row.zone, row.state)
    return *what, _brief_claim(row), cost, _at_most(row), until, row.node


def _at_most(row: SliceRow) -> str:
    at_most = [usd for usd in (row.usd_at_most, row.budget_usd) if usd is not None]
    return format_usd(min(at_most)) if at_most else "unknown"


def _brief_claim(row: SliceRow) -> str:
    """Return why the slice may exist; of one that you hold, for how long it does unless it is used."""
    if row.down_at is not None:
        return "being deleted"
    use = _use(row)
    ends = [at for at in (row.ends_at, row.idle_ends_at) if at is not None]
    if row.mode != "hold" or not ends:
        return use
    return f"{use.rpartition(' ')[2]}, {rough_duration(min(ends) - row.now)} left" if use != "held, in use" else use


def _claim(row: SliceRow) -> str:
    """Return why the slice may exist, and until when."""
    if row.down_at is not None:
        return f"being deleted for {format_duration(row.now - row.down_at)}"
    until = f", until {short_clock(row.ends_at, row.now)}" if row.ends_at is not None else ""
    if row.idle_ends_at is not None and row.ends_at is not None and row.idle_ends_at < row.ends_at:
        until += f"; if unused, until {short_clock(row.idle_ends_at, row.now)}"
    remark = f"; {row.remark}" if row.remark else ""
    return f"{_use(row)}{until}{remark}"


def _use(row: SliceRow) -> str:
    """Return what the slice is for."""
    if row.mode == "detached":
        return "detached, followed" if row.followed else "detached"
    if row.mode == "hold":
        return "held" if row.in_use is None or row.stopped else f"held, {'in use' if row.in_use else 'idle'}"
    if row.run:
        return f"run {row.run}"
    if row.lease:
        return "in use"
    return f"lease {row.lease_id}" if row.lease_id else "no claim that can be read"


def _other(row: SliceRow) -> str:
    whose = f"owner {row.owner}, another user" if row.owner else "no owner label"
    since = f" since {day_clock(row.created_at)}" if row.created_at is not None else ""
    what = f"{row.name}, {row.accelerator_type}, {row.zone}, {row.state}{since}"
    return f"({whose}: {what}, {_claim(row)}, {row.node})"
