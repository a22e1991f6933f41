"""Durations, dollars, sizes and times of day, parsed and formatted: `1h30m` in a job file, `1 m 12 s` on screen. Pure."""

import math
import re
from datetime import UTC, datetime

_UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(
    r"\s*".join(rf"(?:(?P<{unit}>\d{{1,9}}(?:\.\d{{1,9}})?)\s*{unit})?" for unit in _UNITS_S), re.ASCII
)
_CLOCK = re.compile(r"(\d{1,4}):(\d{2})(?::(\d{2}))?", re.ASCII)


def parse_duration(text: str, least: str = "0s", most: str = "999999d") -> float:
    """Return the seconds of `90s`, `30m`, `1h30m`, `1.5h`, `2d`. Raises ValueError, which says what to write.

    `least` and `most`: what the caller allows. They only choose what to write.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match or not any(match.groups()):
        raise ValueError(f"write numbers with units, such as {_example(text.strip(), least, most)}")
    return float(sum(float(match[unit]) * seconds for unit, seconds in _UNITS_S.items() if match[unit]))


def _example(text: str, least: str, most: str) -> str:
    meant: list[str] = []
    if clock := _CLOCK.fullmatch(text):
        parts = zip(clock.groups(default="0"), "hms", strict=True)
        meant = ["".join(f"{int(number)}{unit}" for number, unit in parts if int(number)) or "0s"]
    elif re.fullmatch(r"\d{1,6}", text, re.ASCII) and int(text):
        meant = [f"{text}m", f"{text}h"]
    for some in (meant, ["90s", "30m", "1h30m", "2d"]):
        allowed = [each for each in some if parse_duration(least) <= parse_duration(each) <= parse_duration(most)]
        if allowed:
            return " or ".join(", ".join(allowed).rsplit(", ", 1))
    return least


def format_duration(seconds: float) -> str:
    """Return at most two units, and tenths of a second below a minute: `2.1 s`, `1 m 12 s`, `3 h 5 m`, `2 d`."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    # Round to the smaller of the two units first, so that 3599.7 s is an hour and not "59 m 60 s".
    small = 1 if round(seconds) < 3600 else 60 if round(seconds / 60) < 24 * 60 else 3600
    left = round(seconds / small) * small
    parts: list[str] = []
    for unit, unit_s in _UNITS_S.items():
        count, left = divmod(left, unit_s)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts)


def rough_duration(seconds: float) -> str:
    """Return whole units, the largest of which there are two: `59 m`, `23 h`."""
    for unit, unit_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def format_usd(amount: float | None) -> str:
    """Return `$0.10`; an amount above zero never looks like zero; None is "an unknown amount"."""
    if amount is None:
        return "an unknown amount"
    if 0 < amount < 0.01:
        return "<$0.01"
    return f"${amount:,.2f}"


def format_usd_per_hour(amount: float | None) -> str:
    """Return `about $9.60/h`: prices come from a dated table, never from a bill; only a granted slice is free."""
    if amount == 0:
        return "$0.00/h (granted)"
    return "price unknown" if amount is None else f"about ${amount:,.2f}/h"


_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([KMGT]?(?:i?B)|B)", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of `50GB`, `1.5 TB`, `512MiB`. Raises ValueError, which says what to write."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError("write a number with a unit, such as 500MB, 50GB or 1.5TB")
    return round(float(match[1]) * _UNITS[match[2].upper()])


def format_size(size_bytes: float) -> str:
    """Return `812 KB`, `3.2 GB`: at most three digits before the point, one after it from MB on."""
    for unit, digits in (("TB", 1), ("GB", 1), ("MB", 1), ("KB", 0)):
        if size_bytes >= 0.9995 * _UNITS[unit]:
            return f"{size_bytes / _UNITS[unit]:,.{digits}f} {unit}"
    return f"{size_bytes:,.0f} byte{'s'[: round(size_bytes) != 1]}"


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
