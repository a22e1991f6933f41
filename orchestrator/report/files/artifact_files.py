"""Read the files that a payload left. They come from a worker, or from a job on this machine, so they are not trusted.

Only regular files are opened (a FIFO would block for ever, a link could point anywhere), the number of bytes is bounded, and a
value of the wrong type or size is dropped.
"""

import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.core.text import json_text
from orchestrator.core.text.terminal import printable

MAX_JSON_BYTES = 1 << 20
MAX_MEASURED = 1e15
MAX_TEXT_CHARS = 60


def open_regular(path: Path) -> BinaryIO | None:
    """Return the open file; None when it does not exist, cannot be opened or is not a regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return os.fdopen(fd, "rb")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in the file; empty when there is none that can be read."""
    file = open_regular(path)
    if file is None:
        return {}
    with file:
        data = file.read(MAX_JSON_BYTES + 1)
    return {} if len(data) > MAX_JSON_BYTES else parse_object(data) or {}


def parse_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object; None for anything else."""
    try:
        data = json_text.loads(text, parse_int=_integer)
    except ValueError:  # UnicodeDecodeError is a ValueError
        return None
    return data if isinstance(data, dict) else None


def _integer(digits: str) -> float:
    """Read a number of thousands of digits as infinite: Python refuses to convert it."""
    return int(digits) if len(digits) < 20 else float(digits)


def measured(value: Any) -> float | None:
    """Return the number if it can have been measured (finite, from 0 to MAX_MEASURED); else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_MEASURED else None


def count(value: Any) -> int | None:
    """Return the number if it is a whole one that can have been counted; else None."""
    number = measured(value)
    return int(number) if number is not None and number == int(number) else None


def short_text(value: Any) -> str | None:
    """Return the text on one line, MAX_TEXT_CHARS at most, without control characters; None for anything else."""
    text = printable(value).strip() if isinstance(value, str) else ""
    return text[:MAX_TEXT_CHARS] or None


def section(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the object under this key; empty for anything else."""
    found = data.get(name)
    return found if isinstance(found, dict) else {}
