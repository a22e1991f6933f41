"""The metrics that a run left, however many lines: each in a few numbers (last, best, lowest, highest) and as a curve.

Pieces grow as values come, so that one pass is enough and a bounded number of points is held. The first value, the last one and
the extremes of every piece stay; where a value was no finite number, the curve has a hole.

Lines are added from a file, or as a job writes them. They come from the job, so nothing of them is relied on. Pure.

They come from worker 0's `metrics.jsonl`, and from what the patterns of the job found in its log. Nothing is kept of a line but
what `MetricSums` makes of it. A run that is attached follows the file while the job writes it.
"""

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from orchestrator.report.files.artifact_files import (
    last_objects,
    loads,
    measured,
    open_regular,
    pieces,
    read_object,
    remembered,
)
from orchestrator.text.parsing import LINE_BYTES, NAMES, NotFinite, is_metric, less_is_better, number, spelled, step_of

Point = tuple[float, float | None]  # x and value; None: it was no finite number

POINTS = 2_000  # of a curve that is complete


class Curve:
    """A curve so far. `add` takes the next values, in their order. `stepped`: the x of its values are steps."""

    __slots__ = ("_first", "_last", "_most", "_open", "_open_count", "_points", "_width", "stepped")

    def __init__(self, points: int = POINTS, *, stepped: bool = True) -> None:
        self.stepped = stepped
        self._most = max(2 * points, 16)
        self._width = 1  # values of a piece
        self._points: list[Point] = []  # of complete pieces
        self._open: list[Point] = []  # of the piece that is not complete, which has so many values
        self._open_count = 0
        self._first: Point | None = None
        self._last: Point | None = None

    def add(self, values: Sequence[float], x_of: Callable[[int], float]) -> None:
        """Add finite values. `x_of` returns the x of the one at this index; it is asked for few of them."""
        if not values:
            return
        begin = 0
        while begin < len(values):
            part = values[begin : begin + self._width - self._open_count]
            low, high = min(part), max(part)
            at = sorted({part.index(low), part.index(high)})
            self._extend([(x_of(begin + index), float(part[index])) for index in at], len(part))
            begin += len(part)
        last = len(values) - 1
        self._mark((x_of(0), float(values[0])), (x_of(last), float(values[last])))

    def add_hole(self, x: float) -> None:
        """Add a value that is no finite number."""
        self._extend([(x, None)], 1)
        self._mark((x, None), (x, None))

    def _extend(self, points: list[Point], count: int) -> None:
        """Add the points that stand for so many values of the open piece."""
        self._open = _extremes([*self._open, *points], 8) if self._open else points
        self._open_count += count
        if self._open_count < self._width:
            return
        self._points += self._open
        self._open, self._open_count = [], 0
        while len(self._points) > self._most:
            self._points = _extremes(self._points, 4)
            self._width *= 4 if self._width == 1 else 2

    def points(self, most: int = POINTS) -> list[Point]:
        """Return the points by x, `most` of them or a few more. Of a job that repeats steps, several have the same x."""
        every = [*self._points, *self._open]
        kept, width = every, 1
        while len(kept) > most:
            width *= 2
            kept = _extremes(every, 2 * width)
        ends = [point for point in (self._first, self._last) if point is not None]
        by_x = sorted([*ends[:1], *kept, *ends[1:]], key=lambda point: point[0])
        return [point for number, point in enumerate(by_x) if number == 0 or point != by_x[number - 1]]

    def _mark(self, first: Point, last: Point) -> None:
        self._first = self._first or first
        self._last = last


def _extremes(points: Sequence[Point], size: int) -> list[Point]:
    """Return the lowest and the highest point of each `size` points in their order, and one of its holes."""
    kept: list[Point] = []
    for begin in range(0, len(points), size):
        piece = points[begin : begin + size]
        finite = [(value, number) for number, (_, value) in enumerate(piece) if value is not None]
        numbers = {min(finite)[1], max(finite)[1]} if finite else set()
        numbers |= {next(n for n, point in enumerate(piece) if point[1] is None)} if len(finite) < len(piece) else set()
        kept += [piece[number] for number in sorted(numbers)]
    return kept


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
        self.curve = Curve(stepped=False)  # until a value has a step

    def add(self, values: Sequence[float], rows: _Rows) -> None:
        """Add the values, one from each row."""
        self.curve.stepped = self.curve.stepped or any(_step(row) is not None for row in rows)
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


# In the directory of a run: worker 0's file once it is collected, the same as far as it came while the job ran, what the
# `metrics:` patterns found, when which step was reported here, and the hashes of names that hold a secret of the job, with
# what is shown instead.
COLLECTED, LIVE, FOUND = "worker0/artifacts/metrics.jsonl", "logs/worker0.metrics.jsonl", "metrics.jsonl"
STEPS, HIDDEN_NAMES = "logs/steps.jsonl", "logs/names.json"
EVALUATION = re.compile(r"(?<![a-z])(val|valid|validation|eval|evaluation|test)(?![a-z])", re.I)
SPEED = re.compile(r"(per_|/)s(ec)?\b|_(s|ms)$|time|latency|throughput", re.I)
ACCURACY, RATE, NO_FIGURES = "test_accuracy", "images_per_s", ("data_wait_s",)  # of the built-in training
_T = TypeVar("_T")


def name_hash(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()


def _shown(directory: Path, found: Mapping[str, _T]) -> dict[str, _T]:
    """Return what was found under these names, without secrets: a command that comes later does not know them."""
    names = read_object(directory / HIDDEN_NAMES)
    return {str(names.get(name_hash(name), name)) if names else name: each for name, each in found.items()}


def arrivals(directory: Path) -> list[tuple[int, float]]:
    """Return when which step was first reported here, in unix seconds of this machine, by step; empty where that is unknown.

    A job that repeats steps after the loss of its slice reports them once more; that does not count.
    """
    found: list[tuple[int, float]] = []
    file = open_regular(directory / STEPS)
    if file is None:
        return found
    with file:
        for row in chain.from_iterable(_rows(file)):
            step = step_of(row.get("step")) if isinstance(row, dict) else None
            at = measured(row.get("at")) if step is not None else None
            if step is not None and at is not None and (not found or (step > found[-1][0] and at >= found[-1][1])):
                found.append((step, at))
    return found


def read(directory: Path) -> dict[str, Metric]:
    """Return the metrics of the run in this directory, by name; empty where it has none."""
    return _shown(directory, {name: metric for path in _paths(directory) for name, metric in summarize(path).items()})


def newest(directory: Path) -> dict[str, float | None]:
    """Return the last value of each metric in the last lines of the files: quickly, however large they are.

    `step` is that of the last line that has one; of a job that began again it may be lower than before.
    """
    found: dict[str, float | None] = {}
    for path in _paths(directory):
        last: dict[str, Any] = {}
        for row in reversed(last_objects(path, LINE_BYTES)):
            last |= {name: row[name] for name in row.keys() - last.keys() if is_metric(name, row[name])}
        found |= {name: number(value) for name, value in last.items()}
    return _shown(directory, dict(sorted(found.items())))


def ranked(names: Iterable[str]) -> list[str]:
    """Return the names: those that can be better or worse first, and of these those of an evaluation."""
    return sorted(names, key=lambda name: (less_is_better(name) is None, not EVALUATION.search(name)))


def main_figure(values: Mapping[str, Any]) -> tuple[str, float | None] | None:
    """Return the name and the value of the metric that says most of a run; None without one that can be better or worse.

    It is the test accuracy, else one of an evaluation, else a loss; a speed comes last. A value that is no finite number is
    None. `values`: the last ones, and what is in metrics.json.
    """
    judged = [name for name in values if name not in NO_FIGURES and less_is_better(name) is not None]
    # No test was made: then metrics.json has no accuracy.
    names = [name for name in judged if is_metric(name, values[name]) or (values[name] is None and name != ACCURACY)]
    name = min(names, key=_weight, default=None)
    return None if name is None else (name, None if values[name] is None else number(values[name]))


def _weight(name: str) -> tuple[bool, ...]:
    is_speed, is_evaluated = SPEED.search(name) is not None, EVALUATION.search(name) is not None
    return name != ACCURACY, is_speed, not is_evaluated, "loss" not in name.lower()


def curves(directory: Path) -> dict[str, Curve]:
    """Return the same metrics as curves. The x of a value is its step, or its number where the job names no step."""
    return _shown(
        directory, {name: curve for path in _paths(directory) for name, curve in _of_file(path).curves().items()}
    )


def _paths(directory: Path) -> tuple[Path, Path]:
    """Return the files of a run; of a name that is in both, the second one counts."""
    collected = directory / COLLECTED
    return directory / FOUND, collected if collected.exists() else directory / LIVE


def short(value: float | None) -> str:
    """Return a value with four digits: `0.4123`, `1,234`, `1.2e-05`; `-` for None."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def figure_text(name: str, value: float | None) -> str:
    """Return a figure with its name: `test accuracy 97.4 %`, `1,234 images/s`, `loss 0.4123`."""
    if value is None:
        return f"{name} is not finite"
    if name == RATE:
        return f"{value:,.0f} images/s"
    return f"test accuracy {100 * value:.1f} %" if name == ACCURACY else f"{name} {short(value)}"


def last_text(metric: Metric) -> str:
    """Return the last value: `0.4123`, or `NaN since step 1,200`."""
    return short(metric.last) if metric.diverged is None else str(metric.diverged)


def summarize(path: Path) -> Mapping[str, Metric]:
    """Return the metrics of one file; empty if it cannot be read."""
    return _of_file(path).metrics()


class Followed:
    """The metrics of worker 0's file while a job writes it: what came of it so far, from its first byte on."""

    def __init__(self) -> None:
        self.sums = MetricSums()
        self.rest = b""  # the beginning of the next line; of one that is too long, so much that this is seen

    def feed(self, data: bytes) -> list[Any]:
        """Take the next bytes, and return what the lines hold that they complete."""
        *lines, rest = (self.rest + data).split(b"\n")
        self.rest = rest[: LINE_BYTES + 1]
        found = loads(lines, LINE_BYTES)
        self.sums.add(found)
        return found


@remembered
def _read_file(file: BinaryIO) -> MetricSums:
    found = MetricSums()
    for rows in _rows(file):
        found.add(rows)
    return found


def _of_file(path: Path) -> MetricSums:
    return _read_file(path) or MetricSums()


def _rows(file: BinaryIO) -> Iterator[list[Any]]:
    """Yield what the complete lines hold, some at a time; as far as the file can be read."""
    with suppress(OSError):
        yield from (found for found, _ in pieces(file, LINE_BYTES))
