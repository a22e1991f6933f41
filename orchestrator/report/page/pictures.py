"""The pictures that the template draws as SVG: the timeline, the seconds of the phases, the histogram of step times. Pure.

A bar is in percent of its picture, so that a picture fits any width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.text.durations import format_duration
from orchestrator.report.page import timeline
from orchestrator.report.page.run_data import RunData

MOST_ROWS = 60  # of a timeline
TICKS = 6  # at most
ROUND_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
LEAST_WIDTH = 0.25  # percent of the timeline: shorter spans would not be seen
QUANTILES = (("half of them below", 0.5), ("95 % below", 0.95), ("99 % below", 0.99))


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a picture, in percent of its width."""

    kind: str
    left: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class TimelineRow:
    label: str
    note: str
    bars: tuple[Bar, ...]
    minor: bool

    @property
    def words(self) -> str:
        return f"{self.label}: {', '.join(bar.title for bar in self.bars) or 'nothing'}; {self.note}"


@dataclass(frozen=True, slots=True)
class Timeline:
    """`ticks`: left in percent, and the time there. `kinds`: those that occur, for the legend."""

    rows: tuple[TimelineRow, ...]
    ticks: tuple[tuple[float, str], ...]
    kinds: tuple[tuple[str, str], ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Seconds of a phase, or of a part of the job; `percent` of the longest."""

    label: str
    kind: str
    seconds: float
    percent: float
    part: bool = False


def timeline_of(rows: Sequence[timeline.Row]) -> Timeline | None:
    """Return the picture of these rows; None where they have no time in them."""
    spans = [span for row in rows for span in row.spans]
    begin, end = min((s.begin for s in spans), default=0.0), max((s.end for s in spans), default=0.0)
    if end <= begin:
        return None
    share = 100 / (end - begin)
    shown = tuple(
        TimelineRow(
            row.label,
            row.note,
            tuple(
                Bar(s.kind, (s.begin - begin) * share, max(s.seconds * share, LEAST_WIDTH), s.title) for s in row.spans
            ),
            row.minor,
        )
        for row in rows[:MOST_ROWS]
    )
    ticks = tuple((at * share, format_duration(at)) for at in _round_seconds(end - begin))
    occur = {span.kind for span in spans}
    kinds = tuple((kind, label) for kind, label in timeline.KINDS.items() if kind in occur)
    return Timeline(shown, ticks, kinds, max(len(rows) - MOST_ROWS, 0))


def _round_seconds(whole_s: float) -> list[float]:
    """Return the times of the ticks: multiples of a round time, from 0 on."""
    step_s = next((each for each in ROUND_S if whole_s / each <= TICKS), 86_400 * math.ceil(whole_s / 86_400 / TICKS))
    return [number * step_s for number in range(int(whole_s / step_s) + 1)]


def phases(data: RunData, rows: Sequence[timeline.Row]) -> list[PhaseRow]:
    """Return the seconds of each phase over all attempts, and below the job those of its parts, as far as it told them."""
    sums = timeline.seconds_by_phase(rows)
    most = max(sums.values(), default=0.0) or 1.0
    found = []
    for kind, seconds in sums.items():
        found.append(PhaseRow(timeline.KINDS[kind], kind, seconds, 100 * seconds / most))
        if kind == "main":
            parts = _parts(data)
            found += [PhaseRow(label, kind, part, min(100 * part / most, 100), part=True) for label, part in parts]
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
    timing = data.timing
    bins = timing.steps.histogram() if timing is not None else []
    if timing is None or not bins:
        return None
    most = max(each.steps for each in bins)
    width = 100 / len(bins)
    bars = [
        Bar(
            "slow" if each.high_s is None else "step",
            width * number,
            100 * each.steps / most,  # its height
            f"{_range(each.low_s, each.high_s)}: {each.steps:,} steps",
        )
        for number, each in enumerate(bins)
    ]
    quantiles = [(label, _seconds(timing.steps.quantile(share))) for label, share in QUANTILES]
    edges = [each.low_s for each in bins if each.low_s is not None]
    ticks = [(width * number, _seconds(edges[number])) for number in range(0, len(edges), max(len(edges) // 4, 1))]
    return {
        "bars": bars,
        "width": width,
        "ticks": ticks,
        "most": f"{most:,}",
        "low": _seconds(bins[0].low_s),
        "high": f"over {_seconds(bins[-1].low_s)}" if bins[-1].high_s is None else _seconds(bins[-1].high_s),
        "count": sum(each.steps for each in bins),
        "quantiles": quantiles,
        "compiled": [(each.step, _seconds(each.seconds)) for each in timing.steps.compiled[:8]],
        "compiled_count": timing.warm_up_steps,
        "profiled": timing.profiled_steps,
        "stamped": timing.mode != "drained",
    }


def _range(low_s: float | None, high_s: float | None) -> str:
    return f"over {_seconds(low_s)}" if high_s is None else f"{_seconds(low_s)} to {_seconds(high_s)}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"
