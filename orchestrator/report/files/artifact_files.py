"""Read the files that a run left: JSON, JSON lines and logs. They come from a job: any bytes, and none is trusted.

Only regular files are opened (a FIFO would block for ever, a link could point anywhere), the number of bytes is bounded, and a
value of the wrong type or size is dropped.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from orchestrator.text import parsing
from orchestrator.text.terminal import clean, printable

MAX_JSON_BYTES = 1 << 20
MAX_MEASURED = 1e15
MAX_TEXT_CHARS = 60
T = TypeVar("T")


def open_regular(path: Path | str, below: int | None = None) -> BinaryIO | None:
    """Return the open file; None when it does not exist, cannot be opened or is not a regular file.

    `below`: the open directory in which a path that is not absolute begins.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=below)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    return os.fdopen(fd, "rb")


def remembered(read: Callable[[BinaryIO], T]) -> Callable[[Path], T | None]:
    """Return a function that reads a file, but not again one that did not change; None: there is no regular one."""

    @lru_cache(maxsize=32)
    def known(path: Path, size_bytes: int, mtime_ns: int) -> T | None:
        file = open_regular(path)
        if file is None:
            return None
        with file:
            return read(file)

    def found(path: Path) -> T | None:
        try:
            stat_ = path.lstat()
        except OSError:
            return None
        return known(path, stat_.st_size, stat_.st_mtime_ns)

    return found


def read_object(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the JSON object in the file; empty when there is none that can be read."""
    file = open_regular(path)
    if file is None:
        return {}
    with file:
        data = file.read(max_bytes + 1)
    return {} if len(data) > max_bytes else parse_object(data) or {}


def parse_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object; None for anything else."""
    try:
        data = parsing.loads(text, parse_int=_integer)
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


PIECE_BYTES = 64 << 10


def pieces(
    file: BinaryIO, line_bytes: int, *, max_bytes: int | None = None, rest: bytes = b""
) -> Iterator[tuple[list[Any], int]]:
    """Yield what complete lines hold, some at a time, and how many of them make no sense. Raises OSError.

    A line of more than `line_bytes` makes none. What follows the last line end is still being written, or was cut. Nothing is
    read beyond `max_bytes`; then the last piece is `([], -1)`. `rest`: what is before the file's position of its next line.
    """
    size = 0
    while piece := file.read(PIECE_BYTES):
        size += len(piece)
        if max_bytes is not None and size > max_bytes:
            piece = piece[: len(piece) - (size - max_bytes)]
        *lines, rest = (rest + piece).split(b"\n")
        rest = rest[: line_bytes + 1]
        found = loads(lines, line_bytes)
        yield found, sum(map(bool, lines)) - len(found)
        if max_bytes is not None and size > max_bytes:
            yield [], -1
            return


def loads(lines: Sequence[bytes], line_bytes: int) -> list[Any]:
    """Return what these lines hold, without those that are empty, longer than `line_bytes`, or no JSON.

    All are parsed in one call, by the parser of pydantic, which is twice as quick as that of Python; one by one if that fails.
    """
    from pydantic_core import from_json  # `list` of an empty ledger reads no file

    sizes = list(map(len, lines))
    fitting = lines
    if sizes and (min(sizes) == 0 or max(sizes) > line_bytes):
        fitting = [line for line in lines if line and len(line) <= line_bytes]
    try:
        found: list[Any] = from_json(b"[%s]" % b",".join(fitting))
        if len(found) == len(fitting):
            return found
    except ValueError:
        pass
    found = []
    for line in fitting:
        try:
            found.append(parsing.loads(line))
        except ValueError:
            continue
    return found


LAST_BYTES = 64 << 10


def last_objects(path: Path, line_bytes: int) -> list[dict[str, Any]]:
    """Return the objects in the last complete lines of the file, oldest first: quickly, however large it is."""
    file = open_regular(path)
    if file is None:
        return []
    with file:
        begin = max(os.fstat(file.fileno()).st_size - LAST_BYTES, 0)
        file.seek(begin)
        try:
            lines = file.read(LAST_BYTES).split(b"\n")[1 if begin else 0 : -1]
        except OSError:
            return []
    return [each for each in loads(lines, line_bytes) if isinstance(each, dict)]


TAIL_BYTES = 8 << 10  # of a log, in which its last line is looked for


def log_directory(run_directory: Path) -> Path:
    """Return where the log files of the run in this directory are."""
    return run_directory / "logs"


def log_path(run_directory: Path, worker: int) -> Path:
    """Return the log file of a worker."""
    return log_directory(run_directory) / f"worker{worker}.log"


def last_line(path: Path) -> str:
    """Return the last line of a log that is not empty, safe for a terminal; "" without one."""
    file = open_regular(path)
    if file is None:
        return ""
    with file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(size - TAIL_BYTES, 0))
        found = file.read(TAIL_BYTES).rstrip()
    return clean(found[found.rfind(b"\n") + 1 :]).strip()
