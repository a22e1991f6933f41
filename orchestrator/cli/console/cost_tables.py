"""`tpujob cost` as tables, sentences and CSV."""

from datetime import UTC, datetime

from orchestrator.report.causes import Cause
from orchestrator.report.rows.layout import csv_cell, csv_lines, format_cost
from orchestrator.report.spending import By, CloudCost, CostReport, CostRow, OpenSlice
from orchestrator.text.terminal import Table
from orchestrator.text.units import format_duration, format_usd, format_usd_per_hour, minute_clock


def head(found: CloudCost) -> str:
    """Return the name of a cloud, and what its dollars are."""
    return f"{found.cloud}: {found.dollars}" if found.dollars else found.cloud


def title(found: CostReport) -> str:
    """Return the period, and what the figures are."""
    return f"{_period(found)} · {found.note}"


def _period(found: CostReport) -> str:
    begin = datetime.fromtimestamp(found.since, UTC)
    if found.until is not None and found.until <= found.asked_at:
        return f"{begin:%Y-%m} (UTC)"
    return f"{minute_clock(found.since)} to {minute_clock(_until(found))}"


def _until(found: CostReport) -> float:
    return found.asked_at if found.until is None else min(found.until, found.asked_at)


def table(found: CloudCost, by: By) -> Table:
    """Return the rows of one cloud and their total."""
    rows = [*found.rows, found.total] if len(found.rows) > 1 else list(found.rows)
    billed = found.billed
    figures = ("CHIP HOURS", "COST", "FAILED", "IDLE", "LOST", "SPOT SAVED") if billed else ("HOURS",)
    head = ("RUN", "JOB", *figures) if by == "run" else (by.upper(), "RUNS", *figures)
    body = tuple(
        (
            row.name,
            row.job or "" if by == "run" else str(row.runs),
            *(_dollars(row) if billed else (_hours(row.hours),)),
        )
        for row in rows
    )
    first_right = 2 if by == "run" else 1
    return Table(head, body, right=tuple(range(first_right, len(head))), optional=(2, 1, 6, 4) if billed else ())


def causes(row: CostRow, *, billed: bool) -> Table:
    """Return to what the hours of a row went, the greatest part first, but for less than a tenth of a second."""
    body = []
    for each in row.shown_causes:
        share = f"{100 * each.hours / row.hours:.1f} %" if row.hours else "-"
        dollars = (_hours(each.chip_hours), _part(each.cost_usd)) if billed else ()
        body.append((each.cause, share, format_duration(3600 * each.hours), *dollars))
    head = ("WHERE IT WENT", "SHARE", "TIME", *(("CHIP HOURS", "COST") if billed else ()))
    return Table(head, tuple(body), right=tuple(range(1, len(head))))


def _dollars(row: CostRow) -> tuple[str, ...]:
    parts = (row.failed_usd, row.idle_usd, row.lost_usd, row.spot_saved_usd)
    return (_hours(row.chip_hours), cost_text(row), *map(_part, parts))


def _hours(hours: float | None) -> str:
    if hours is None:
        return "unknown"
    return "<0.1" if 0 < hours < 0.05 else f"{hours:,.1f}"


def cost_text(row: CostRow) -> str:
    """Return the dollars; `unknown` for what has no price, beside what has one."""
    if row.cost_usd is not None:
        return format_usd(row.cost_usd)
    return f"{format_usd(row.known_usd)} + unknown" if row.known_usd else "unknown"


def _part(usd: float | None) -> str:
    if usd == 0:
        return "-"
    return "unknown" if usd is None else f"-{format_usd(-usd)}" if usd < 0 else format_usd(usd)


def remarks(found: CloudCost) -> list[str]:
    """Return what the table does not say: what the parts are, what has no price, what is still billed."""
    total = found.total
    waited = format_duration(3600 * total.waited_hours)
    said = [f"waited for a slice, with none billed: {waited}"] if waited != "0 s" else []
    if not found.billed:
        return said
    parts = [
        ("jobs", total.job_usd),
        ("creating and deleting", total.overhead_usd),
        ("FAILED, attempts that did not succeed", total.failed_usd),
        ("IDLE, held without a run", total.idle_usd),
        ("LOST, slices that no job reached, as in a lost race", total.lost_usd),
    ]
    if any(usd for _, usd in parts):  # else all of it is unknown, or free
        said += [f"of {cost_text(total)}: {'; '.join(f'{name}: {_part(usd)}' for name, usd in parts if usd != 0)}"]
    if total.unpriced_hours:
        hours = format_duration(total.unpriced_hours * 3600)
        said.append(f"unknown: {hours} of slices without a price in the table; no sum of dollars has them")
    return [*said, *(_open_text(each, found.cloud) for each in found.open_slices)]


def _open_text(each: OpenSlice, cloud: str) -> str:
    what = f"{each.node} ({each.name}, {each.accelerator_type}, {each.zone}, {each.state})"
    cost = f"{format_cost(each.cost_usd, cloud)} of it here"
    if each.forgotten:
        return f"forgotten, never proven gone: {what}, counted until {minute_clock(each.counted_until)}: {cost}"
    until = minute_clock(each.counted_until)
    return f"still billed: {what}, {format_usd_per_hour(each.usd_per_hour)}, counted until {until}: {cost}"


def csv_text(found: CostReport) -> str:
    """Return a header and one line for each row, without totals; a dollar that is unknown is empty."""
    left_out = {"name", "causes"} | ({"job"} if found.by != "run" else set())
    columns = [each for each in CostRow.__dataclass_fields__ if each not in left_out]
    period = {"since": minute_clock(found.since), "until": minute_clock(_until(found))}
    rows = [
        {
            **period,
            "cloud": cloud.cloud,
            found.by: csv_cell(row.name),
            **{k: csv_cell(getattr(row, k)) for k in columns},
            **_cause_cells(row),
        }
        for cloud in found.clouds
        for row in cloud.rows
    ]
    of_causes = [f"{cause}_cause_{what}" for cause in Cause for what in ("hours", "usd")]
    return csv_lines(rows, ("since", "until", "cloud", found.by, *columns, *of_causes))


def _cause_cells(row: CostRow) -> dict[str, float | None]:
    """Return hours and dollars of each cause; what a row has nothing of is empty."""
    hours: dict[str, float | None] = {f"{each.cause}_cause_hours": each.hours for each in row.causes}
    return hours | {f"{each.cause}_cause_usd": each.cost_usd for each in row.causes}
