"""The metrics that a run left, each in a few numbers: last, best, lowest, highest.

They come from worker 0's `metrics.jsonl`, and from what the patterns of the job found in its log. A million lines are read
in seconds, a piece at a time; nothing of them is kept but these numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from orchestrator.core.text.metric_lines import LINE_BYTES, NAMES, is_metric, less_is_better, number, step_of
from orchestrator.report.files.artifact_files import open_regular

PIECE_BYTES = 256 << 10
NUMBERS = frozenset((int, float))
_Point = tuple[float | None, int | None]  # a value and its step


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a run. `last`: None if it was not a finite number; `best`: the lowest or the highest, by its name."""

    last: float | None
    last_step: int | None
    best: float | None
    best_step: int | None
    low: float | None
    high: float | None
    count: int


def collected_path(directory: Path) -> Path:
    """Return where the collected file of a run is."""
    return directory / "worker0" / "artifacts" / "metrics.jsonl"


def live_path(directory: Path) -> Path:
    """Return where the file is as far as it came while the job ran, until it is collected."""
    return directory / "logs" / "worker0.metrics.jsonl"


def found_path(directory: Path) -> Path:
    """Return where the finds of the `metrics:` patterns are."""
    return directory / "metrics.jsonl"


def read(directory: Path) -> dict[str, Metric]:
    """Return the metrics of the run in this directory, by name; empty where it has none."""
    collected = collected_path(directory)
    file = collected if collected.exists() else live_path(directory)
    return {**summarize(found_path(directory)), **summarize(file)}


def short(value: float | None) -> str:
    """Return a value with four digits: `0.4123`, `1,234`, `1.2e-05`; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def summarize(path: Path) -> Mapping[str, Metric]:
    """Return the metrics of one file; empty if it cannot be read. A file that did not change is not read again."""
    try:
        found = path.stat()
    except OSError:
        return {}
    return _summarize(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=8)
def _summarize(path: Path, size_bytes: int, mtime_ns: int) -> Mapping[str, Metric]:
    sums: dict[str, _Sum] = {}
    try:
        for rows in _rows(path):
            _add(sums, rows)
    except OSError:
        pass
    return {name: total.metric(less_is_better(name)) for name, total in sums.items()}


class _Sum:
    """A metric so far. A point is a value and its step."""

    __slots__ = ("count", "high", "last", "low")

    def __init__(self) -> None:
        self.count = 0
        self.last: _Point = (None, None)
        self.low: tuple[float, int | None] | None = None
        self.high: tuple[float, int | None] | None = None

    def add(self, values: Sequence[float], rows: Sequence[dict[str, Any]]) -> None:
        """Add the values, one from each row."""
        finite = [(value, row) for value, row in zip(values, rows, strict=True) if number(value) is not None]
        self.count += len(values)
        self.last = (number(values[-1]), step_of(rows[-1].get("step")))
        if finite:
            self._extremes([value for value, _ in finite], [row for _, row in finite])

    def add_finite(self, values: Sequence[float], rows: Sequence[dict[str, Any]]) -> None:
        """Add values that are known to be finite: the same, with loops that are not of Python."""
        self.count += len(values)
        self.last = (float(values[-1]), step_of(rows[-1].get("step")))
        self._extremes(values, rows)

    def _extremes(self, values: Sequence[float], rows: Sequence[dict[str, Any]]) -> None:
        low, high = min(values), max(values)
        if self.low is None or low < self.low[0]:
            self.low = (float(low), step_of(rows[values.index(low)].get("step")))
        if self.high is None or high > self.high[0]:
            self.high = (float(high), step_of(rows[values.index(high)].get("step")))

    def metric(self, less: bool) -> Metric:
        low: _Point = self.low or (None, None)
        high: _Point = self.high or (None, None)
        (last, last_step), (best, best_step) = self.last, low if less else high
        return Metric(last, last_step, best, best_step, low[0], high[0], self.count)


def _add(sums: dict[str, _Sum], found: list[Any]) -> None:
    """Add the objects of some lines, one metric after the other."""
    objects = [each for each in found if type(each) is dict]
    for name in dict.fromkeys(chain.from_iterable(objects)):
        if name == "step" or (name not in sums and len(sums) >= NAMES):
            continue
        rows = [each for each in objects if name in each]
        values = [each[name] for each in rows]
        plain = NUMBERS.issuperset(map(type, values)) and is_metric(name, values[0]) and _all_finite(values)
        if not plain:
            rows = [each for each in rows if is_metric(name, each[name])]
            values = [each[name] for each in rows]
        if values:
            total = sums.setdefault(name, _Sum())
            (total.add_finite if plain else total.add)(values, rows)


def _all_finite(values: list[float]) -> bool:
    try:
        return math.isfinite(sum(values))
    except OverflowError:
        return False


def _rows(path: Path) -> Iterator[list[Any]]:
    """Yield what the complete lines hold, some at a time. Raises OSError."""
    rest, opened = b"", open_regular(path)
    if opened is None:
        return
    with opened as file:
        while piece := file.read(PIECE_BYTES):
            *lines, rest = (rest + piece).split(b"\n")
            rest = rest[: LINE_BYTES + 1]
            yield _loads([line for line in lines if line and len(line) <= LINE_BYTES])


def _loads(lines: list[bytes]) -> list[Any]:
    """All lines in one call, which takes half the time; one by one if that fails."""
    try:
        found: list[Any] = json.loads(b"[%s]" % b",".join(lines))
        if len(found) == len(lines):
            return found
    except (ValueError, RecursionError):
        pass
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            continue
    return found
