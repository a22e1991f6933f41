"""Reading the files that a payload left, with care: they came from a worker, or from whatever the job was on this machine.

Only regular files are opened (a FIFO would wait for ever, a link could lead anywhere), only so many bytes are read, and a
value is taken only if it is what it should be. `results` and `timing` call me.
"""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.remote.ssh.terminal import printable

MAX_JSON_BYTES = 1 << 20
MAX_FIGURE = 1e15
MAX_TEXT_CHARS = 60


def open_regular(path: Path) -> BinaryIO | None:
    """None: there is no such file, or nothing that may be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return os.fdopen(fd, "rb")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file, or an empty one when there is none that can be read."""
    file = open_regular(path)
    if file is None:
        return {}
    with file:
        data = file.read(MAX_JSON_BYTES + 1)
    return {} if len(data) > MAX_JSON_BYTES else parse_object(data) or {}


def parse_object(text: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        return None
    return data if isinstance(data, dict) else None


def _integer(digits: str) -> float:
    """A number without end is infinite, not an error when it is shown."""
    return int(digits) if len(digits) < 20 else float(digits)


def figure(value: Any) -> float | None:
    """A number that can have been measured: finite, not negative, not absurd."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 <= value <= MAX_FIGURE else None


def count(value: Any) -> int | None:
    number = figure(value)
    return int(number) if number is not None and number == int(number) else None


def words(value: Any) -> str | None:
    """A short text on one line."""
    text = printable(value).strip() if isinstance(value, str) else ""
    return text[:MAX_TEXT_CHARS] or None


def section(data: dict[str, Any], name: str) -> dict[str, Any]:
    found = data.get(name)
    return found if isinstance(found, dict) else {}
