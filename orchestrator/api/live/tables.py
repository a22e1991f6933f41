"""The words of the table of `tpujob top`, for a terminal and for its page: its columns, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator import catalog
from orchestrator.report.files.metrics import figure_text
from orchestrator.report.rows.layout import format_cost
from orchestrator.text.units import clock, format_usd, rough_duration
from orchestrator.traits import is_emulated

if TYPE_CHECKING:
    from orchestrator.api.live.top import Top, TopRow

HEAD = (
    "NAME", "RUN", "STATE", "TYPE", "ZONE", "STEP", "FIGURE", "RATE", "HBM", "DUTY", "CPU", "COST", "AT MOST", "UNTIL",
)  # fmt: skip
RIGHT = (5, 8, 9, 10, 11, 12)  # columns of numbers
ALIASES = {
    "job": "name", "run": "id", "type": "accelerator_type", "figure": "value", "hbm": "hbm_percent", "duty": "duty_percent",
    "cpu": "cpu_percent", "cost": "usd_so_far", "at_most": "usd_at_most", "started": "started_at",
}  # fmt: skip
SORTS = ("state", "name", "type", "step", "figure", "rate", "hbm", "duty", "cost", "until", "started")
HIGHEST_FIRST = ("step", "figure", "rate", "hbm", "duty", "cost", "started")


def values(row: TopRow) -> dict[str, Any]:
    """Return the fields of a row, also under the heads of the table: what `--filter` and `--sort` know."""
    found = asdict(row)
    return found | {alias: found[name] for alias, name in ALIASES.items()}


def cells(row: TopRow, now: float) -> tuple[str, ...]:
    """Return the texts of a row, one for each of HEAD."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{value:.0f} %"

    name = f"{row.sweep} {row.variant}" if row.sweep and row.variant else row.name
    rate = "-"
    if row.rate is not None:
        rate = f"{row.rate:,.0f}" if row.rate >= 100 else f"{row.rate:.3g}"
        rate += f" {row.rate_of}/s"
    until = "-" if row.until is None else f"in {rough_duration(row.until - now)}"
    if row.ended_at is not None:
        until = f"{rough_duration(now - row.ended_at)} ago"
    return (
        name,
        row.id if row.kind != "slice" else "-",
        f"{row.kind} {row.state}" if row.kind == "slice" else row.state,
        catalog.spoken(row.accelerator_type) if row.accelerator_type else "-",
        row.zone or "-",
        "-" if row.step is None else f"{row.step:,}",
        figure_text(row.metric, row.value) if row.metric else "-",
        rate,
        percent(row.hbm_percent),
        percent(row.duty_percent),
        percent(row.cpu_percent),
        format_cost(row.usd_so_far, ""),
        "-" if row.usd_at_most is None or row.ended_at is not None else format_usd(row.usd_at_most),
        until,
    )


def sorted_by(row: TopRow) -> tuple[float | None, ...]:
    """Return the numbers by which the texts of `cells` are sorted; None: by the text."""
    figures = (row.step, row.value, row.rate, row.hbm_percent, row.duty_percent, row.cpu_percent)
    return *[None] * 5, *figures, row.usd_so_far, row.usd_at_most, row.ended_at or row.until


def title(top: Top, shown: int) -> str:
    """Return the line above the table: which cloud, when, how many."""
    alive = sum(row.ended_at is None for row in top.rows)
    asked = "the API is being asked" if top.asked_at is None else f"asked the API at {clock(top.asked_at)}"
    count = f"{alive} go on" + (f", {shown} of {len(top.rows)} shown" if shown != len(top.rows) else "")
    return f"{'EMULATED' if is_emulated(top.cloud) else top.cloud} · {asked} · {count}"


def remarks(rows: Sequence[TopRow]) -> list[str]:
    """Return a sentence for each row that has one."""
    return [f"{row.name}: {row.remark}" for row in rows if row.remark]
