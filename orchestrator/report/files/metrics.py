"""The metrics that a run left, each in a few numbers (last, best, lowest, highest) and as a curve.

They come from worker 0's `metrics.jsonl`, and from what the patterns of the job found in its log. A million lines are read
in seconds, a piece at a time; nothing of them is kept but these numbers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from orchestrator.core.text.metric_lines import LINE_BYTES, NAMES, is_metric, less_is_better, number, step_of
from orchestrator.report.files.artifact_files import measured, open_regular
from orchestrator.report.files.curve import Curve
from orchestrator.report.files.json_lines import pieces

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


def steps_path(directory: Path) -> Path:
    """Return where it is written when which step of the job was reported here."""
    return directory / "logs" / "steps.jsonl"


def arrivals(directory: Path) -> list[tuple[int, float]]:
    """Return when which step was first reported here, in unix seconds of this machine, by step; empty where that is unknown.

    A job that repeats steps after the loss of its slice reports them once more; that does not count.
    """
    found: list[tuple[int, float]] = []
    with contextlib.suppress(OSError):
        for row in chain.from_iterable(_rows(steps_path(directory))):
            step = step_of(row.get("step")) if isinstance(row, dict) else None
            at = measured(row.get("at")) if step is not None else None
            if step is not None and at is not None and (not found or (step > found[-1][0] and at >= found[-1][1])):
                found.append((step, at))
    return found


def read(directory: Path) -> dict[str, Metric]:
    """Return the metrics of the run in this directory, by name; empty where it has none."""
    return {name: metric for path in _paths(directory) for name, metric in summarize(path).items()}


def curves(directory: Path) -> dict[str, Curve]:
    """Return the same metrics as curves. The x of a value is its step, or its number where the job names no step."""
    return {name: curve for path in _paths(directory) for name, (_, curve) in _of_file(path).items()}


def _paths(directory: Path) -> tuple[Path, Path]:
    """Return the files of a run; of a name that is in both, the second one counts."""
    collected = collected_path(directory)
    return found_path(directory), collected if collected.exists() else live_path(directory)


def short(value: float | None) -> str:
    """Return a value with four digits: `0.4123`, `1,234`, `1.2e-05`; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def summarize(path: Path) -> Mapping[str, Metric]:
    """Return the metrics of one file; empty if it cannot be read. A file that did not change is not read again."""
    return {name: metric for name, (metric, _) in _of_file(path).items()}


def _of_file(path: Path) -> Mapping[str, tuple[Metric, Curve]]:
    try:
        found = path.stat()
    except OSError:
        return {}
    return _read_file(path, found.st_size, found.st_mtime_ns)


@lru_cache(maxsize=16)
def _read_file(path: Path, size_bytes: int, mtime_ns: int) -> Mapping[str, tuple[Metric, Curve]]:
    sums: dict[str, _Sum] = {}
    try:
        for rows in _rows(path):
            _add(sums, rows)
    except OSError:
        pass
    return {name: (total.metric(less_is_better(name)), total.curve) for name, total in sums.items()}


class _Sum:
    """A metric so far. A point is a value and its step."""

    __slots__ = ("count", "curve", "high", "last", "low")

    def __init__(self) -> None:
        self.count = 0
        self.last: _Point = (None, None)
        self.low: tuple[float, int | None] | None = None
        self.high: tuple[float, int | None] | None = None
        self.curve = Curve()

    def add(self, values: Sequence[float], rows: Sequence[dict[str, Any]]) -> None:
        """Add the values, one from each row."""
        for index, (value, row) in enumerate(zip(values, rows, strict=True)):
            if (plain := number(value)) is not None:
                self.curve.add([plain], lambda _: self._x(row, index))  # noqa: B023 - called at once
            else:
                self.curve.add_hole(self._x(row, index))
        finite = [(value, row) for value, row in zip(values, rows, strict=True) if number(value) is not None]
        self.count += len(values)
        self.last = (number(values[-1]), step_of(rows[-1].get("step")))
        if finite:
            self._extremes([value for value, _ in finite], [row for _, row in finite])

    def add_finite(self, values: Sequence[float], rows: Sequence[dict[str, Any]]) -> None:
        """Add values that are known to be finite: the same, with loops that are not of Python."""
        self.curve.add(values, lambda index: self._x(rows[index], index))
        self.count += len(values)
        self.last = (float(values[-1]), step_of(rows[-1].get("step")))
        self._extremes(values, rows)

    def _extremes(self, values: Sequence[float], rows: Sequence[dict[str, Any]]) -> None:
        low, high = min(values), max(values)
        if self.low is None or low < self.low[0]:
            self.low = (float(low), step_of(rows[values.index(low)].get("step")))
        if self.high is None or high > self.high[0]:
            self.high = (float(high), step_of(rows[values.index(high)].get("step")))

    def _x(self, row: dict[str, Any], index: int) -> float:
        step = step_of(row.get("step"))
        return self.count + index + 1 if step is None else step

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
    if (opened := open_regular(path)) is not None:
        with opened as file:
            yield from (found for found, _ in pieces(file, LINE_BYTES))
