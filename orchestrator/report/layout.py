"""Times of day, costs and tables, as every message and command shows them. Pure."""

from datetime import UTC, datetime
from typing import Any, NamedTuple

from orchestrator import places
from orchestrator.core.text.durations import format_usd


def clock(at: float) -> str:
    """Return the time of day in UTC, such as `14:02:11Z`. `at`: unix seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%SZ")


def day_clock(at: float | None) -> str:
    """Return day and time in UTC, such as `2026-11-21 14:02:11Z`; empty for None. `at`: unix seconds."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def minute_clock(at: float) -> str:
    """Return day and minute in UTC, such as `2026-11-21 14:02Z`. `at`: unix seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%MZ")


def short_clock(at: float, now: float) -> str:
    """Return the time of day if it is on the day of `now`, else day and minute; both in UTC."""
    return clock(at) if at // 86400 == now // 86400 else minute_clock(at)


def format_cost(usd: float | None, cloud: str) -> str:
    """Return what a slice or a run of this cloud costs: `$0.10`, `$0.10 emulated`, `none (local)`; `unknown` for None."""
    if not places.traits_of(cloud).billed:
        return f"none ({cloud})"
    if usd is None:
        return "unknown"
    return f"{format_usd(usd)} emulated" if places.is_emulated(cloud) else format_usd(usd)


def csv_cell(value: Any) -> Any:
    """Return the value for a CSV file; a text that a spreadsheet would read as a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


class Table(NamedTuple):
    """A table as cells of text. Columns, from 0: `right` are aligned right, `optional` are left out where there is no room."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    optional: tuple[int, ...] = ()

    def lines(self) -> list[str]:
        """Return one line for the heading and for each row, aligned, two spaces between columns."""
        every = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        return [
            "  ".join(
                cell.rjust(width) if number in self.right else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in every
        ]
