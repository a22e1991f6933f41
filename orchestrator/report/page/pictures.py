"""What a page draws: the timeline, the phases and the histogram of steps as SVG, and curves as lists of numbers. Pure.

A bar is in percent of its picture, so that a picture fits any width.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from orchestrator.report.files.metrics import POINTS, Point, short
from orchestrator.report.files.timing import LEAST_S, Piece
from orchestrator.report.page import timeline
from orchestrator.report.page.html import took
from orchestrator.report.page.timeline import RunData
from orchestrator.text.parsing import less_is_better
from orchestrator.text.units import format_duration

MOST_ROWS = 60  # of a timeline
TICKS = 6  # at most
ROUND_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
QUANTILES = (("half of them below", 0.5), ("95 % below", 0.95), ("99 % below", 0.99))


def timeline_of(rows: Sequence[timeline.Row]) -> dict[str, Any] | None:
    """Return the picture of these rows; None where they have no time in them. `share`: percent of the width for a second."""
    spans = [span for row in rows for span in row.spans]
    begin, end = min((s.begin for s in spans), default=0.0), max((s.end for s in spans), default=0.0)
    if end <= begin:
        return None
    share, occur = 100 / (end - begin), {span.kind for span in spans}
    return {
        "rows": rows[:MOST_ROWS],
        "begin": begin,
        "share": share,
        "ticks": [(at * share, format_duration(at)) for at in _round_seconds(end - begin)],
        "kinds": [(kind, label) for kind, label in timeline.KINDS.items() if kind in occur],
        "left_out": max(len(rows) - MOST_ROWS, 0),
    }


def _round_seconds(whole_s: float) -> list[float]:
    """Return the times of the ticks: multiples of a round time, from 0 on."""
    step_s = next((each for each in ROUND_S if whole_s / each <= TICKS), 86_400 * math.ceil(whole_s / 86_400 / TICKS))
    return [number * step_s for number in range(int(whole_s / step_s) + 1)]


def phases(data: RunData, rows: Sequence[timeline.Row]) -> list[tuple[str, str, float, bool]]:
    """Return label, kind and seconds of each phase over all attempts, and below the job of its parts, if it told them."""
    found = []
    for kind, seconds in timeline.seconds_by_phase(rows).items():
        found.append((timeline.KINDS[kind], kind, seconds, False))
        if kind == "main":
            found += [(label, kind, part, True) for label, part in _parts(data)]
    return found


def _parts(data: RunData) -> list[tuple[str, float]]:
    timing = data.timing
    if timing is None:
        return []
    parts = [(name, seconds) for name, seconds in timing.spans.items() if seconds > 0]
    if timing.train_s:
        parts.append(("training, without compile", timing.train_s))
    if timing.wait_s:
        parts.append(("of that: waiting for data", timing.wait_s))
    return parts


def histogram(data: RunData) -> dict[str, Any] | None:
    """Return the histogram of the step times; None where they are not known."""
    bins = data.timing.steps.histogram() if data.timing is not None else []
    if data.timing is None or not bins:
        return None
    quantiles = [(label, took(data.timing.steps.quantile(share))) for label, share in QUANTILES]
    edges = [(number, each.low_s) for number, each in enumerate(bins) if each.low_s is not None]
    return {
        "bins": bins,
        "timing": data.timing,
        "most": max(each.steps for each in bins),
        "count": sum(each.steps for each in bins),
        "quantiles": quantiles,
        "ticks": [(100 / len(bins) * number, took(edge)) for number, edge in edges[:: max(len(edges) // 4, 1)]],
    }


MOST_POINTS = 16_000  # of all curves of a page: about 20 bytes each
LEAST_POINTS = 40
MOST_CHARTS = 24
MOST_CLOCK = 400
MOST_MARKS = 40
TABLE_ROWS, TABLE_CELLS = 20, 240  # of the table under a chart
DIGITS = 6


@dataclass(frozen=True, slots=True)
class Series:
    """The curve of one run; `run` counts from 0. The x of a point is a step; its number where values had none."""

    run: int
    points: Sequence[Point]
    stepped: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: a curve for each run that has it. `marks`: run, first and last step of a time that is to be seen as apart."""

    name: str
    series: tuple[Series, ...]
    marks: tuple[tuple[int, int, int], ...] = ()
    group: str = "metrics"  # or `speed`

    def as_json(self) -> dict[str, Any]:
        """Return what the script of the page draws."""
        return {
            "name": self.name,
            "series": [
                {
                    "run": each.run,
                    "stepped": each.stepped,
                    "x": [_plain(x) for x, _ in each.points],
                    "y": [_plain(y) for _, y in each.points],
                }
                for each in self.series
            ],
            "marks": self.marks,
        }

    def table(self) -> list[tuple[str, ...]]:
        """Return some rows: a step and the value of each run there, or the last one before it."""
        count = max(min(TABLE_ROWS, TABLE_CELLS // len(self.series)), 4)
        steps = sorted(set(chain.from_iterable((x for x, _ in each.points) for each in self.series)))
        chosen = sorted({steps[round(number * (len(steps) - 1) / (count - 1))] for number in range(count)})
        return [(f"{step:,.0f}", *(_value_at(each.points, step) for each in self.series)) for step in chosen]

    @property
    def x_name(self) -> str:
        """Return what a number of the x axis is."""
        known = {each.stepped for each in self.series}
        return "step or value" if len(known) > 1 else "step" if True in known else "value"

    @property
    def summary(self) -> str:
        """Return the chart in words."""
        parts = []
        for each in self.series[:6]:
            values = [value for _, value in each.points if value is not None]
            if values:
                parts.append(f"from {short(values[0])} to {short(values[-1])}")
        more = f", and {len(self.series) - 6} more" if len(self.series) > 6 else ""
        return f"{self.name} over {'values' if self.x_name == 'value' else 'steps'}: {'; '.join(parts)}{more}"


def charts(runs: Sequence[RunData]) -> tuple[list[Chart], list[str]]:
    """Return the charts, and the names of metrics that are not drawn: single values, and those beyond `MOST_CHARTS`."""
    names = list(dict.fromkeys(chain.from_iterable(run.curves for run in runs)))
    drawn = [name for name in names if any(name in run.curves and len(run.curves[name].points()) > 1 for run in runs)]
    drawn.sort(key=rank)
    shown = drawn[:MOST_CHARTS]
    curves = sum(name in run.curves for name in shown for run in runs) + 2 * sum(run.timing is not None for run in runs)
    most = max(min(POINTS, MOST_POINTS // max(curves, 1)), LEAST_POINTS)
    found = [Chart(name, tuple(_metric(runs, name, most))) for name in shown]
    found += [chart for chart in _speed(runs, most) if any(each.points for each in chart.series)]
    return found, [name for name in names if name not in shown]


def rank(name: str) -> tuple[bool, int]:
    """Return where a metric stands among others: losses first, then what can be better or worse."""
    return "loss" not in name.lower(), (True, False, None).index(less_is_better(name))


def _metric(runs: Sequence[RunData], name: str, most: int) -> Iterator[Series]:
    for number, run in enumerate(runs):
        if name in run.curves:
            yield Series(number, run.curves[name].points(most), run.curves[name].stepped)


def _speed(runs: Sequence[RunData], most: int) -> Iterator[Chart]:
    """Throughput and step times, where a training left `timing.jsonl`."""
    timed = [(number, run.timing) for number, run in enumerate(runs) if run.timing and run.timing.steps.pieces]
    batches = {timing.batch_size for _, timing in timed}
    by_batch = None not in batches
    rates, marks = [], []
    for number, timing in timed:
        size = (timing.batch_size or 1) if by_batch else 1
        rates.append(Series(number, [(step, size * rate) for step, rate in _rates(timing.steps.pieces, most // 2)]))
        marks += [(number, first, last) for first, last in _compiled(timing.steps.compiled)]
    if timed:
        name = "throughput (examples/s)" if by_batch else "throughput (steps/s)"
        yield Chart(name, tuple(rates), tuple(marks[:MOST_MARKS]), "speed")
    exact = [(number, timing) for number, timing in timed if timing.mode == "drained"]
    if exact:
        slow = tuple(Series(number, timing.steps.curve.points(most)) for number, timing in exact)
        yield Chart("seconds per step", slow, tuple(marks[:MOST_MARKS]), "speed")


def _rates(pieces: Sequence[Piece], most: int) -> Iterator[tuple[int, float]]:
    """Yield about `most` times a step and the steps a second up to there, each over about as many steps."""
    timed = [piece for piece in pieces if piece.seconds >= LEAST_S]
    width = max((piece.steps for piece in timed), default=0) * -(-len(timed) // max(most, 1))
    parts: list[list[Piece]] = [[]]
    for piece in timed:
        if sum(each.steps for each in parts[-1]) >= width:
            parts.append([])
        parts[-1].append(piece)
    if len(parts) > 1 and sum(each.steps for each in parts[-1]) < width / 2:
        parts[-2:] = [parts[-2] + parts[-1]]
    for part in filter(None, parts):
        yield part[-1].step, sum(each.steps for each in part) / sum(each.seconds for each in part)


def _compiled(steps: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of consecutive steps that compiled."""
    for _, group in groupby(enumerate(each.step for each in steps), lambda pair: pair[1] - pair[0]):
        numbers = [step for _, step in group]
        yield numbers[0], numbers[-1]


def clock(run: RunData) -> dict[str, list[float]] | None:
    """Return at which second of the job which step ended, to draw curves over time; None where that is not known.

    The seconds are those in which the job ran, in all attempts. A job that does not time its steps reported them some time.
    """
    known = run.timing.steps.clock() if run.timing else []
    if len(known) < 2:
        known = [(step, _second_of_job(run, at)) for step, at in run.arrivals]
    if len(known) < 2 or known[-1][1] <= known[0][1]:
        return None
    stride = -(-len(known) // MOST_CLOCK)
    kept = [*known[::stride], *([known[-1]] if (len(known) - 1) % stride else [])]
    return {"step": [step for step, _ in kept], "at_s": [round(at, 3) for _, at in kept]}


def _second_of_job(run: RunData, at: float) -> float:
    """Return for how many seconds the job had run by then."""
    ran = ((each.running_at, each.ended_at or run.now) for each in run.report.attempts if each.running_at is not None)
    return sum(min(max(at - began, 0.0), ended - began) for began, ended in ran)


def _value_at(points: Sequence[Point], step: float) -> str:
    index = bisect_right(points, step, key=lambda point: point[0])
    if index == 0:
        return ""
    value = points[index - 1][1]
    return "not a number" if value is None else short(value)


def _plain(value: float | None) -> float | None:
    if value is None:
        return None
    rounded = float(f"{value:.{DIGITS}g}") if value != int(value) or abs(value) >= 1e15 else int(value)
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded
