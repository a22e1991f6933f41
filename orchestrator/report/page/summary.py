"""What a page says first: how a run ended, on what it ran, its main figures, and what its device did. Pure.

What was not measured is named with the reason, so that its absence is not taken for a zero.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from orchestrator import catalog, traits
from orchestrator.check.record import checked_text
from orchestrator.promise.lease import guest_reports
from orchestrator.promise.lease.run_and_attempt import AttemptState, end_text
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.report.comparison.compare import device_memory
from orchestrator.report.comparison.figures import RunFigures
from orchestrator.report.files import device
from orchestrator.report.files.artifact_files import count, section
from orchestrator.report.files.metrics import Metric, ranked, short
from orchestrator.report.page import timeline
from orchestrator.report.page.timeline import RunData
from orchestrator.report.results import RunReport
from orchestrator.report.rows import costs
from orchestrator.report.rows.layout import format_cost
from orchestrator.text.terminal import printable
from orchestrator.text.units import format_duration

EMULATED = (
    "This TPU was emulated on a CPU: its seconds are not those of a real TPU, and nothing was billed. "
    f"Dollars are what the same time would cost by the {catalog.PRICES_AS_OF}."
)
TRAINED_WITH = ("model", "dataset", "epochs", "batch_size", "lr", "momentum", "optimizer", "precision", "seed")
TRACEBACK, TRACEBACK_LINES = "Traceback (most recent call last)", 12
MOST_METRICS = 2  # among the first figures


class Tile(NamedTuple):
    """One of the first figures."""

    label: str
    value: str
    remark: str = ""


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
    how = end_text(report.state, report.detail).removeprefix(f"{report.state}: ")
    return f"{how[:1].upper()}{how[1:]}, after {took}."


def hyperparameters(report: RunReport) -> dict[str, Any]:
    """Return the parameters of the job, after what it sets of the built-in training."""
    train = section(report.spec, "train")
    own = {} if train.get("entry") else {key: train[key] for key in TRAINED_WITH if train.get(key) is not None}
    return own | report.params


def last_words(data: RunData) -> tuple[int, list[str]] | None:
    """Return the worker that failed first, and the end of its last traceback, else its last line; None: it said nothing.

    A function of Python leaves its traceback as a file, the job of a command in its log.
    """
    if data.report.state != AttemptState.FAILED or not data.logs:
        return None
    log = data.logs[0]
    lines = data.traceback or log.lines
    begin = max((number for number, line in enumerate(lines) if TRACEBACK in line), default=None)
    if begin is None:
        return next(((log.worker, [line]) for line in reversed(lines) if line.strip()), None)
    end = next((n for n, line in enumerate(lines) if n > begin and line.strip() and not line[0].isspace()), len(lines))
    return log.worker, list(lines[begin : end + 1][-TRACEBACK_LINES:])


def place(data: RunData) -> str:
    """Return on what the run was: accelerator, zone, provisioning."""
    report, lease = data.report, data.report.lease
    if not traits.traits_of(report.cloud).tpus:
        return "on this machine, without a TPU"
    if lease is None:
        return "no slice was had"
    kind = f"{lease.accelerator_type}, emulated" if lease.emulated else lease.accelerator_type
    return f"{kind} · {lease.zone} · {report.attempts[-1].provisioning or 'on-demand'}"


def tiles(data: RunData) -> list[Tile]:
    """Return the figures that people look for first."""
    report, figures = data.report, data.report.figures
    found = []
    if figures.test_accuracy is not None:
        found.append(Tile("Test accuracy", f"{100 * figures.test_accuracy:.2f} %"))
    for name, metric in main_metrics(figures)[: MOST_METRICS - len(found)]:
        best = f"best {short(metric.best)}" if metric.best not in (None, metric.last) else "last value"
        if metric.diverged is not None:
            best = "; ".join(filter(None, [str(metric.diverged).partition(" ")[2], best]))
        found.append(Tile(name, metric.diverged.value if metric.diverged else short(metric.last), best))
    if figures.images_per_s is not None:
        per_chip = figures.images_per_s_per_chip
        remark = "images/s" if per_chip is None else f"images/s, {per_chip:,.0f} per chip"
        found.append(Tile("Throughput", f"{figures.images_per_s:,.0f}", remark))
    if figures.job_s is not None:
        found.append(Tile("Job ran", format_duration(figures.job_s), _whole_time(report)))
    if lost := timeline.losses(data):
        found.append(Tile("Lost slices", str(len(lost)), _lost_time(lost)))
    return [*found, cost_tile([report])]


def main_metrics(figures: RunFigures) -> list[tuple[str, Metric]]:
    """Return the metrics: those that can be better or worse first, and of these those of an evaluation."""
    own = {"images_per_s", "test_accuracy"} if figures.images_per_s is not None else set()
    return [(name, figures.metrics[name]) for name in ranked(figures.metrics) if name not in own]


def cost_tile(reports: Sequence[RunReport]) -> Tile:
    """Return the cost of whole runs of one cloud, over all of their attempts."""
    paid = [report for report in reports if traits.traits_of(report.cloud).billed]
    if not paid:
        return Tile("Cost", "none", "on this machine")
    total = costs.total([report.cost_usd for report in paid])
    amount, _, remark = format_cost(total, paid[0].cloud).partition(" ")
    count, what = (len(reports), "runs") if len(reports) > 1 else (len(reports[0].attempts), "attempts")
    over = f"over all {count} {what}" if count > 1 else ""
    return Tile("Cost", amount, ", ".join(filter(None, (remark, over))))


def _whole_time(report: RunReport) -> str:
    return "" if report.ended_at is None else f"of {format_duration(report.ended_at - report.started_at)}"


def _lost_time(lost: Sequence[timeline.Loss]) -> str:
    """Return for how long the losses set the job back, as far as that is known."""
    known = [each.behind_s if each.behind_s is not None else each.gap_s for each in lost]
    seconds = sum(each for each in known if each is not None)
    return f"set the job back by {format_duration(seconds)}" if seconds else ""


@dataclass(frozen=True, slots=True)
class DeviceFact:
    """One figure. `command`: what to type, if there is something. `is_absent`: `text` is the reason."""

    label: str
    text: str
    command: str = ""
    is_absent: bool = False


def device_facts(data: RunData) -> list[DeviceFact]:
    """Return the figures of a run that had a slice, or that trained; [] for any other."""
    figures = data.report.figures
    if data.report.lease is None and figures.images_per_s is None:
        return []
    return [
        *_checked(data),
        *_use(data),
        *_throughput(data),
        *_wait(data),
        *_memory(data),
        *_duty_cycle(data),
        *_profile(data),
    ]


def _checked(data: RunData) -> Iterator[DeviceFact]:
    if data.check:
        yield DeviceFact("Checked before", checked_text(data.check))


def _use(data: RunData) -> Iterator[DeviceFact]:
    """What the workers said while the job did not use the TPU, if they did."""
    if (use := data.tpu_use) is not None:
        cost = format_cost(data.report.cost_usd, data.report.cloud)
        for line in guest_reports.lines(use.chips_said).values():
            yield DeviceFact("TPU use", f"{line}; the run: {cost}")


def _throughput(data: RunData) -> Iterator[DeviceFact]:
    figures = data.report.figures
    if figures.images_per_s_per_chip is not None:
        text = f"{figures.images_per_s_per_chip:,.0f} of {figures.images_per_s:,.0f} images/s, on {figures.accelerator_type}"
        yield DeviceFact("Throughput per chip", text)
    elif figures.emulated and figures.images_per_s is not None:
        yield DeviceFact(
            "Throughput per chip", _why_not(data, "processes on the CPU stand for the chips"), is_absent=True
        )


def _wait(data: RunData) -> Iterator[DeviceFact]:
    figures = data.report.figures
    if figures.data_wait_s is not None and figures.total_s:
        share = 100 * figures.data_wait_s / figures.total_s
        yield DeviceFact("Waited for data", f"{figures.data_wait_s:,.1f} s, {share:.1f} % of the training")


def _memory(data: RunData) -> Iterator[DeviceFact]:
    figures, on_tpu = data.report.figures, traits.traits_of(data.report.cloud).tpus
    label = "HBM" if on_tpu else "Device memory"
    if text := device_memory(figures):
        whole = figures.device_bytes
        share = f" ({100 * (figures.peak_device_bytes or 0) / whole:.0f} %)" if whole else ""
        yield DeviceFact(label, f"peak {text} GB{share}{', of one chip' if on_tpu else ''}")
    else:
        yield DeviceFact(label, _why_not(data, "XLA:CPU has no HBM"), is_absent=True)


def _duty_cycle(data: RunData) -> Iterator[DeviceFact]:
    percent, use = data.report.figures.duty_cycle_percent, data.tpu_use
    if percent is not None and use is not None:
        chips = f"{use.chips} chip{'s' if use.chips != 1 else ''}"
        yield DeviceFact("Duty cycle", f"mean {percent:.1f} %, of {chips} in {use.samples:,} samples")
    else:
        yield DeviceFact("Duty cycle", _why_not(data, "a CPU has none"), is_absent=True)


def _why_not(data: RunData, emulated: str) -> str:
    report, use = data.report, data.tpu_use
    if not traits.traits_of(report.cloud).tpus:
        return "no TPU"
    if report.figures.emulated:
        return f"emulated ({emulated})"
    if not RunSpec.of(report.spec).tpu_metrics:
        return "turned off by tpu_metrics: false"
    if use is None:
        return "no tpu-metrics.jsonl came from the workers"
    return use.absent or "libtpu reported nothing: no program was loaded, or for less than 10 s"


def _profile(data: RunData) -> Iterator[DeviceFact]:
    report = data.report
    own = section(report.metrics, "profile")
    paths = [file.path for file in report.files]
    directories, traces = device.log_directories(paths), device.trace_events(paths)
    first, last = count(own.get("first_step")), count(own.get("last_step"))
    which = f"steps {first:,} to {last:,}; " if first and last else ""
    if directories:
        text = f"{which}open it with XProf (pip install xprof): "
        yield DeviceFact("Profile", text, device.command(report.directory, directories[0]))
    elif traces:
        yield DeviceFact("Profile", f"{which}{traces[0]} opens in Perfetto")
    else:
        problem = own.get("problem")
        text = printable(problem)[:200] if isinstance(problem, str) and problem else "train.profile asks for none"
        yield DeviceFact("Profile", text, is_absent=True)
