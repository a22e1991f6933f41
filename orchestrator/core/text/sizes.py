"""Sizes, parsed and formatted: `50GB` in a job file, `3.2 GB` on screen. Pure."""

import re

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
