"""What a function leaves: its result as JSON, or the exception that ended it as text."""

from __future__ import annotations

import itertools
import json
import math
import os
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from payload import artifacts

MAX_RESULT_BYTES = 10_000_000
MAX_DEPTH, MAX_DIGITS = 100, 4000
TOO_BIG = 10**MAX_DIGITS  # Python makes no text of a number that is a little longer
_WRITE = "write it to a file in $TPUJOB_ARTIFACTS"
MAX_MESSAGE_CHARS, MAX_TRACEBACK_CHARS = 4_000, 60_000


def as_json(value: Any, where: str, depth: int = 0, steps: Iterator[int] | None = None) -> Any:
    """Return what JSON carries of the value: tuples as lists, and one number of numpy, torch or JAX as a plain one.

    Raises TypeError or ValueError, which name the place, for anything else. `steps` counts the values.
    """
    steps = steps or itertools.count()
    if depth > MAX_DEPTH:
        raise ValueError(f"{where} is nested more than {MAX_DEPTH} levels deep")
    if next(steps) > MAX_RESULT_BYTES // 3:  # as text with its comma, a value in a list has 3 bytes at least
        raise ValueError(f"{where} comes after more than {MAX_RESULT_BYTES // 3:,} other values; {_WRITE}")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # `str` makes of a member of an enum its name
    if isinstance(value, int):
        if abs(value) >= TOO_BIG:
            raise ValueError(
                f"{where} has more than {MAX_DIGITS:,} digits, which JSON cannot carry; return hex(…) of it"
            )
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON cannot carry; return None or text in its place")
        return float(value)
    if isinstance(value, (list, tuple)):
        return [as_json(each, f"{where}[{number}]", depth + 1, steps) for number, each in enumerate(value)]
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has a key of type {_kind(key)}; the keys of a JSON object are plain text")
        return {str.__str__(key): as_json(each, f"{where}[{key!r}]", depth + 1, steps) for key, each in value.items()}
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return as_json(value.item(), where, depth + 1, steps)
    raise TypeError(f"{where} is a {_kind(value)}, which JSON cannot carry; {_WRITE}")


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def content(value: Any) -> bytes:
    """Return the value as JSON. Raises ValueError if it is too large."""
    encoded = json.dumps(value, allow_nan=False).encode()
    if len(encoded) > MAX_RESULT_BYTES:
        raise ValueError(
            f"the result has {len(encoded) / 1e6:,.1f} MB as JSON, and {MAX_RESULT_BYTES / 1e6:.0f} MB is the most; {_WRITE}"
        )
    return encoded


def numbers(value: Any) -> dict[str, Any]:
    """Return the numbers of a result, for metrics.json: those of a dictionary, or a single one as `value`."""
    named = value if isinstance(value, dict) else {"value": value}
    return {name: each for name, each in named.items() if isinstance(each, (int, float)) and not isinstance(each, bool)}


def write_error(directory: Path, error: BaseException, file: str) -> None:
    """Write function-error.json, unless another process of this worker did so before."""
    kind = type(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file] or list(frames)
    text = "".join(traceback.format_exception(kind, error, error.__traceback__))
    if len(text) > MAX_TRACEBACK_CHARS:
        text = f"{text[: MAX_TRACEBACK_CHARS // 2]}\n[…]\n{text[-MAX_TRACEBACK_CHARS // 2 :]}"
    found = {
        "schema": 1,
        "type": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "message": _text(error)[:MAX_MESSAGE_CHARS],
        "traceback": text,
        "file": own[-1].filename.removeprefix(f"{Path.cwd()}{os.sep}") if own else "",
        "line": own[-1].lineno if own else None,
    }
    draft = directory / f".{artifacts.ERROR}.{os.getpid()}.tmp"
    with suppress(OSError):  # the log has the traceback, too
        draft.write_text(json.dumps(found))
        try:
            os.link(draft, directory / artifacts.ERROR)
        finally:
            draft.unlink()


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
