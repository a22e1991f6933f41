"""Times of day as tpujob prints them: UTC, to the second."""

from __future__ import annotations

from datetime import UTC, datetime


def clock(at: float) -> str:
    """The time of day, in UTC: `14:02:11Z`."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%SZ")


def day_clock(at: float | None) -> str:
    """Day and time, in UTC: `2026-11-21 14:02:11Z`; nothing for a time that has not come."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
