"""The parts of a page as values and text, ready for the template: facts, timeline, phases, histogram, files, job. Pure."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from orchestrator import catalog
from orchestrator.core.lease.run_and_attempt import LOCAL, AttemptState, end_text
from orchestrator.core.text.durations import format_duration
from orchestrator.report.files.metrics import short
from orchestrator.report.layout import clock, day_clock, format_cost
from orchestrator.report.page import timeline
from orchestrator.report.page.run_data import RunData
from orchestrator.report.results import RunReport

MOST_FILES = 200
MOST_ROWS = 60  # of a timeline
TICKS = 4
LEAST_WIDTH = 0.25  # percent of the timeline: shorter spans would not be seen
OWN_FILES = ("report.html", "trace.json")
NO_KEYS = ("sweep", "secret_sources")  # of a job as recorded: not of its file

EMULATED = (
    "This TPU was emulated on a CPU: its seconds are not those of a real TPU, and nothing was billed. "
    f"Dollars are what the same time would cost by the {catalog.PRICES_AS_OF}."
)


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


@dataclass(frozen=True, slots=True)
class FileLink:
    path: str
    href: str
    size: str


def state_of(report: RunReport) -> str:
    """Return how the page shows the state: `good`, `bad` or `open`."""
    if report.state == AttemptState.SUCCEEDED:
        return "good"
    return "bad" if AttemptState(report.state).ended else "open"


def sentence(data: RunData) -> str:
    """Return in words how the run ended, or how far it was."""
    report = data.report
    if report.ended_at is None:
        ago = format_duration(max(data.now - report.started_at, 0.0))
        return f"Not ended: {report.state}, {ago} after its start, when this page was written."
    took = format_duration(report.ended_at - report.started_at)
    if report.state == AttemptState.SUCCEEDED:
        again = f", in attempt {len(report.attempts)}" if len(report.attempts) > 1 else ""
        return f"Succeeded after {took}{again}."
    how = end_text(report.state, report.detail)
    return f"{how[:1].upper()}{how[1:]}, after {took}."


def facts(data: RunData) -> list[tuple[str, str]]:
    """Return what the run was, where, how long and for how much."""
    report, figures, lease = data.report, data.report.figures, data.report.lease
    found = []
    if report.cloud == LOCAL:
        found.append(("Ran on", "this machine, without a TPU slice"))
    elif lease is None:
        found.append(("Accelerator", "no slice was had"))
    else:
        emulated = ", EMULATED" if lease.emulated else ""
        found += [
            ("Accelerator", f"{lease.accelerator_type}{emulated}"),
            ("Zone", f"{lease.zone} · {report.attempts[-1].provisioning or 'on-demand'}"),
        ]
    found.append(("Cost", cost_text(report)))
    if figures.job_s is not None:
        found.append(("Job ran", format_duration(figures.job_s)))
    found.append(("Started", day_clock(report.started_at)))
    if report.ended_at is not None:
        found.append(("Ended", day_clock(report.ended_at)))
    if report.exit_code:
        found.append(("Exit code", str(report.exit_code)))
    if report.sweep:
        found.append(("Sweep", f"{report.sweep} · {report.variant}"))
    found += [(name, str(value)) for name, value in report.params.items()]
    return [*found, ("Run", report.run)]


def cost_text(report: RunReport) -> str:
    """Return the cost of the whole run, over all of its attempts."""
    text = format_cost(report.cost_usd, report.cloud)
    return f"{text}, over all {len(report.attempts)} attempts" if len(report.attempts) > 1 else text


def tiles(data: RunData) -> list[tuple[str, str, str]]:
    """Return the figures that people look for first: label, value, remark."""
    report, figures = data.report, data.report.figures
    found = []
    if figures.test_accuracy is not None:
        found.append(("Test accuracy", f"{100 * figures.test_accuracy:.2f} %", ""))
    shown = {"images_per_s", "test_accuracy"}
    for name, metric in list(figures.metrics.items())[:20]:
        if len(found) < 2 and name not in shown and metric.last is not None:
            best = f"best {short(metric.best)}" if metric.best != metric.last else ""
            found.append((name, short(metric.last), best))
    if figures.images_per_s is not None:
        found.append(("Throughput", f"{figures.images_per_s:,.0f}", "images/s"))
    took = None if report.ended_at is None else report.ended_at - report.started_at
    if took is not None:
        found.append(("From start to end", format_duration(took), ""))
    amount, _, remark = format_cost(report.cost_usd, report.cloud).partition(" ")
    return [*found, ("Cost", amount, remark)]


# -- time ----------------------------------------------------------------------------------------------------------


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
    ticks = tuple((100 * n / TICKS, format_duration((end - begin) * n / TICKS)) for n in range(TICKS + 1))
    occur = {span.kind for span in spans}
    kinds = tuple((kind, label) for kind, label in timeline.KINDS.items() if kind in occur)
    return Timeline(shown, ticks, kinds, max(len(rows) - MOST_ROWS, 0))


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
    return {
        "bars": bars,
        "width": width,
        "low": _seconds(bins[0].low_s),
        "high": f"over {_seconds(bins[-1].low_s)}" if bins[-1].high_s is None else _seconds(bins[-1].high_s),
        "count": sum(each.steps for each in bins),
        "quantiles": quantiles,
        "compiled": [(each.step, _seconds(each.seconds)) for each in timing.steps.compiled[:8]],
        "compiled_count": timing.warm_up_steps,
        "stamped": timing.mode != "drained",
    }


QUANTILES = (("half of them below", 0.5), ("95 % below", 0.95), ("99 % below", 0.99))


def _range(low_s: float | None, high_s: float | None) -> str:
    return f"over {_seconds(low_s)}" if high_s is None else f"{_seconds(low_s)} to {_seconds(high_s)}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def losses(data: RunData) -> list[tuple[str, ...]]:
    """Return a row for each lost slice: what was lost, why, when, and what that cost."""
    return [
        (
            str(each.attempt),
            each.cause,
            clock(each.at),
            "none ran" if each.gap_s is None else format_duration(each.gap_s),
            "unknown" if each.redone_s is None else format_duration(each.redone_s),
            format_cost(each.usd, data.report.cloud),
        )
        for each in timeline.losses(data)
    ]


def attempts(data: RunData, rows: Sequence[timeline.Row]) -> list[tuple[str, ...]]:
    """Return a row for each attempt. `rows`: those of the timeline."""
    found: list[tuple[str, ...]] = []
    ran_of = [row for row in rows if not row.minor]
    for number, each in enumerate(data.report.attempts, 1):
        lease = data.leases.get(data.attempts[number - 1].lease_id or "")
        spans = ran_of[number - 1].spans
        ran = None if each.running_at is None else sum(span.seconds for span in spans if span.kind == "main")
        waited = None if each.ready_at is None else max(each.ready_at - each.began_at, 0.0)
        found.append(
            (
                str(number),
                lease.accelerator_type if lease else "none",
                f"{each.zone} {each.provisioning}" if each.zone else "no slice",
                "" if waited is None else format_duration(waited),
                "never" if ran is None else format_duration(ran),
                each.cause or each.state,
                each.continued or "",
                format_cost(each.usd, data.report.cloud),
            )
        )
    return found


def tried(data: RunData) -> list[tuple[str, str, str]]:
    """Return which places gave no slice: when, where, why."""
    return [(clock(t.at), t.where, t.why) for each in data.report.attempts for t in each.tried]


# -- files, job, environment ---------------------------------------------------------------------------------------


def metric_rows(data: RunData) -> list[tuple[str, ...]]:
    """Return a row for each metric: name, last, best, lowest, highest, how many values."""
    return [
        (
            name,
            short(m.last) if m.last is not None else "not a number",
            f"{short(m.best)}{'' if m.best_step is None else f' at step {m.best_step:,}'}",
            short(m.low),
            short(m.high),
            f"{m.count:,}",
        )
        for name, m in data.report.figures.metrics.items()
    ]


def files(report: RunReport, link: str) -> tuple[list[FileLink], int]:
    """Return the files of the run, and how many are left out. `link`: the run's directory as seen from the page."""
    every = [file for file in report.files if file.path not in OWN_FILES]
    # The first part of a link is never from a job, so that no file name is read as the scheme of an address.
    found = [
        FileLink(file.path, f"{link}/{urllib.parse.quote(os.fsencode(file.path))}", _size(file.size_bytes))
        for file in every[:MOST_FILES]
    ]
    return found, max(len(every) - MOST_FILES, 0)


def _size(size_bytes: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes} bytes"


def job_text(spec: Mapping[str, Any]) -> str:
    """Return the job as it was run, as YAML: what was resolved, without what is empty and without values of variables."""
    return yaml.safe_dump(_filled({k: v for k, v in spec.items() if k not in NO_KEYS}), sort_keys=False, width=100)


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: kept for key, inner in value.items() if (kept := _filled(inner)) not in (None, {}, [], "")}
    return [_filled(each) for each in value] if isinstance(value, list | tuple) else value


def environment(provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the run was made with, from `provenance.json` of its first worker."""
    found = []
    for key in ("device", "hardware", "processes", "seed", "written_at"):
        if (value := provenance.get(key)) is not None and not isinstance(value, dict | list):
            found.append((key.replace("_", " "), str(value)))
    for key in ("versions", "host", "dataset"):
        inner = provenance.get(key)
        if isinstance(inner, dict):
            plain = {name: value for name, value in inner.items() if isinstance(value, str | int | float)}
            found += [(f"{key}: {name}", str(value)) for name, value in list(plain.items())[:20]]
    return [(name[:80], value[:300]) for name, value in found]
