"""Times of day and aligned columns, as every table and message shows them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime


def clock(at: float) -> str:
    """Return the time of day in UTC, such as `14:02:11Z`. `at`: unix seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%SZ")


def day_clock(at: float | None) -> str:
    """Return day and time in UTC, such as `2026-11-21 14:02:11Z`; empty for None. `at`: unix seconds."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return one line for each row, its cells aligned and two spaces apart. Columns in `right` are aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
