"""Times of day in words. Pure."""

from datetime import UTC, datetime


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
