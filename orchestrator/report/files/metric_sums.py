"""The metrics of a job in a bounded number of figures, however many lines it writes: a summary and a curve for each name.

Lines are added from a file, or as a job writes them. They come from the job, so nothing of them is relied on. Pure.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from orchestrator.core.text.metric_lines import NAMES, NotFinite, is_metric, less_is_better, number, spelled, step_of
from orchestrator.report.files.curve import Curve

NUMBERS = frozenset((int, float))
_Point = tuple[float | None, int | None]  # a value and its step
_Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a run. `last`: None if it was not a finite number; then `diverged` says what it is, and since when.

    `best`: the lowest or the highest, by its name; None where the name does not tell.
    """

    last: float | None
    last_step: int | None
    best: float | None
    best_step: int | None
    low: float | None
    high: float | None
    count: int
    diverged: NotFinite | None = None


class MetricSums:
    """The metrics of the lines so far."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}

    def add(self, found: Sequence[Any]) -> None:
        """Add what some lines hold, one metric after the other."""
        for name, values, rows in _columns([each for each in found if type(each) is dict]):
            if name == "step" or (name not in self._sums and len(self._sums) >= NAMES):
                continue
            if NUMBERS.issuperset(map(type, values)) and is_metric(name, values[0]):
                self._sums.setdefault(name, _Sum()).add(values, rows)
            elif fine := [row for row in rows if is_metric(name, row[name])]:
                self._sums.setdefault(name, _Sum()).add([row[name] for row in fine], fine)

    @property
    def names(self) -> Set[str]:
        return self._sums.keys()

    def metrics(self) -> dict[str, Metric]:
        """Return the summary of each metric, by name."""
        return {name: total.metric(less_is_better(name)) for name, total in self._sums.items()}

    def diverged(self) -> dict[str, NotFinite]:
        """Return what each metric is whose last value was not finite, by name."""
        return {name: total.diverged for name, total in self._sums.items() if total.diverged is not None}

    def curves(self) -> dict[str, Curve]:
        """Return the curve of each metric, by name. The x of a value is its step, or its number where it has none."""
        return {name: total.curve for name, total in self._sums.items()}


class _Sum:
    """A metric so far."""

    __slots__ = ("count", "curve", "diverged", "high", "last", "low")

    def __init__(self) -> None:
        self.count = 0
        self.last: _Point = (None, None)
        self.diverged: NotFinite | None = None
        self.low: tuple[float, int | None] | None = None
        self.high: tuple[float, int | None] | None = None
        self.curve = Curve()

    def add(self, values: Sequence[float], rows: _Rows) -> None:
        """Add the values, one from each row."""
        if _all_finite(values):
            self._add_finite(values, rows)
            return
        for finite, group in groupby(range(len(values)), lambda index: number(values[index]) is not None):
            numbers = list(group)
            part = slice(numbers[0], numbers[-1] + 1)
            (self._add_finite if finite else self._add_holes)(values[part], rows[part])

    def _add_finite(self, values: Sequence[float], rows: _Rows) -> None:
        self.curve.add(values, lambda index: self._x(rows[index], index))
        low, high = min(values), max(values)
        if self.low is None or low < self.low[0]:
            self.low = (float(low), _step(rows[values.index(low)]))
        if self.high is None or high > self.high[0]:
            self.high = (float(high), _step(rows[values.index(high)]))
        self.count += len(values)
        self.last, self.diverged = (float(values[-1]), _step(rows[-1])), None

    def _add_holes(self, values: Sequence[float], rows: _Rows) -> None:
        for index, (value, row) in enumerate(zip(values, rows, strict=True)):
            self.curve.add_hole(self._x(row, index))
            if self.diverged is None or self.diverged.value != spelled(value):
                self.diverged = NotFinite(spelled(value), _step(row))
        self.count += len(values)
        self.last = (None, _step(rows[-1]))

    def _x(self, row: dict[str, Any], index: int) -> float:
        step = _step(row)
        return self.count + index + 1 if step is None else step

    def metric(self, less: bool | None) -> Metric:
        """Return the summary. `less`: whether the best value is the lowest; None: no value is."""
        low: _Point = self.low or (None, None)
        high: _Point = self.high or (None, None)
        (last, last_step), (best, best_step) = self.last, (None, None) if less is None else low if less else high
        return Metric(last, last_step, best, best_step, low[0], high[0], self.count, self.diverged)


def _columns(rows: _Rows) -> Iterator[tuple[str, list[Any], _Rows]]:
    """Yield each name with its values and the rows that they are from. Nearly always all rows have the same names."""
    names = tuple(rows[0]) if rows else ()
    if sum(map(len, rows)) == len(names) * len(rows):
        with suppress(KeyError):
            yield from [(name, [row[name] for row in rows], rows) for name in names]
            return
    columns: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)  # in one pass: a job may name each line anew
    for row in rows:
        for name in row:
            columns[name].append(row)
    for name, having in columns.items():
        yield name, [row[name] for row in having], having


def _step(row: dict[str, Any]) -> int | None:
    return step_of(row.get("step"))


def _all_finite(values: Sequence[float]) -> bool:
    try:  # the ends, too: two integers that no float can hold may add up to 0
        return math.isfinite(sum(values)) and math.isfinite(min(values)) and math.isfinite(max(values))
    except OverflowError:
        return False
