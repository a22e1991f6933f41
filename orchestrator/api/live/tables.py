"""The words of the table of `tpujob top`, for a terminal and for its page: its columns, and what is in them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from orchestrator import catalog
from orchestrator.report.files.metrics import figure_text
from orchestrator.report.rows.layout import format_cost, run_name
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
STALE_S = 60.0  # then a row says how old its step is
HIGHEST_FIRST = ("step", "figure", "rate", "hbm", "duty", "cost", "started")


def values(row: TopRow) -> dict[str, Any]:
    """Return the fields of a row, also under the heads of the table: what `--filter` and `--sort` know.

    What has several names has all of them, as a tuple.
    """
    found = asdict(row)
    names, kind = (row.name, name(row)), row.accelerator_type
    found |= {"name": names, "accelerator_type": (kind, catalog.spoken(kind)) if kind else None}
    return found | {alias: found[each] for alias, each in ALIASES.items()}


def name(row: TopRow) -> str:
    """Return the name of a row in the table."""
    return run_name(row.name, row.sweep, row.variant)


def cells(row: TopRow, now: float) -> tuple[str, ...]:
    """Return the texts of a row, one for each of HEAD."""

    def percent(value: float | None) -> str:
        return "-" if value is None or row.state != "running" else f"{value:.0f} %"

    step = "-" if row.step is None else f"{row.step:,}"
    seen_s = 0.0 if row.seen_at is None or row.ended_at is not None else time.time() - row.seen_at
    if seen_s > STALE_S:
        step += f", {rough_duration(seen_s)} ago"
    rate = "-"
    if row.rate is not None:
        rate = f"{row.rate:,.0f}" if row.rate >= 100 else f"{row.rate:.3g}"
        rate += f" {row.rate_of}/s"
    until = "-" if row.until is None else f"in {rough_duration(row.until - now)}"
    if row.ended_at is not None:
        until = f"{rough_duration(now - row.ended_at)} ago"
    return (
        name(row),
        row.id if row.kind != "slice" and row.cloud else "-",  # a variant that waits has no cloud and no run
        f"{row.kind} {row.state}" if row.kind == "slice" else row.state,
        catalog.spoken(row.accelerator_type) if row.accelerator_type else "-",
        row.zone or "-",
        step,
        figure_text(row.metric, row.value) if row.metric else "-",
        rate,
        percent(row.hbm_percent),
        percent(row.duty_percent),
        percent(row.cpu_percent),
        format_cost(row.usd_so_far, "" if row.usd_so_far is not None else row.cloud),
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
    asked = f"asked the API at {clock(top.asked_at)}" if top.asked_at else "the API is being asked"
    if top.asked_at is None and top.problems:
        asked = "the API has not answered"
    count = f"{alive} go on" + (f", {shown} of {len(top.rows)} shown" if shown != len(top.rows) else "")
    return f"{'EMULATED' if is_emulated(top.cloud) else top.cloud} · {asked} · {count}"


def remarks(rows: Sequence[TopRow]) -> list[str]:
    """Return a sentence for each row that has one, with its name, and its id where others have the same."""
    named = Counter(map(name, rows))
    return [f"{name(row)}{f' {row.id}' * (named[name(row)] > 1)}: {row.remark}" for row in rows if row.remark]
