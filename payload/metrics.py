"""metrics.jsonl: figures of a training by step, one JSON object a line, for those who follow it and compare it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import IO

from payload import artifacts


class MetricsFile:
    """Appends lines such as `{"step": 1200, "loss": 0.41}`. Each is in the file when `write` returns."""

    def __init__(self, path: Path, *, after: int | None) -> None:
        """Keep the lines up to step `after`, those of the training that is resumed; None: all. Raises OSError."""
        kept = [line for line in _lines(path) if after is None or _step_of(line) <= after]
        artifacts.write_whole(path, lambda file: file.write("".join(kept).encode()))
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, step: int | None, values: dict[str, float | None]) -> None:
        """Append the values that there are. NaN and infinities, which JSON lacks, become null. Raises OSError."""
        finite = {name: _plain(value) for name, value in values.items() if value is not None}
        if finite:
            line = finite if step is None else {"step": int(step), **finite}
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()


def _plain(value: float) -> float | None:
    """Return a number that JSON carries: one of NumPy, PyTorch or JAX as Python's own, null for what is not finite."""
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None


def _lines(path: Path) -> list[str]:
    """Return the complete lines."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _step_of(line: str) -> float:
    """Return the step of a line; infinity for one that has none, which is not kept."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
