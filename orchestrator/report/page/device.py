"""What a page says of the device: throughput per chip, waiting for data, memory, duty cycle, and the trace of a profiler. Pure.

What was not measured is named with the reason, so that its absence is not taken for a zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator import places
from orchestrator.core.lease import chip_report
from orchestrator.core.lease.run_spec import RunSpec
from orchestrator.core.text.terminal import printable
from orchestrator.report.comparison.compare import device_memory
from orchestrator.report.files import profiles
from orchestrator.report.files.artifact_files import count, section
from orchestrator.report.layout import format_cost
from orchestrator.report.page.run_data import RunData


@dataclass(frozen=True, slots=True)
class DeviceFact:
    """One figure. `command`: what to type, if there is something. `is_absent`: `text` is the reason."""

    label: str
    text: str
    command: str = ""
    is_absent: bool = False


def facts(data: RunData) -> list[DeviceFact]:
    """Return the figures of a run that had a slice, or that trained; [] for any other."""
    figures = data.report.figures
    if data.report.lease is None and figures.images_per_s is None:
        return []
    return [*_use(data), *_throughput(data), *_wait(data), *_memory(data), *_duty_cycle(data), *_profile(data)]


def _use(data: RunData) -> Iterator[DeviceFact]:
    """What the workers said while the job did not use the TPU, if they did."""
    if (use := data.tpu_use) is not None:
        cost = format_cost(data.report.cost_usd, data.report.cloud)
        for line in chip_report.lines(use.chips_said).values():
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
    figures, on_tpu = data.report.figures, places.traits_of(data.report.cloud).tpus
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
    if not places.traits_of(report.cloud).tpus:
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
    directories, traces = profiles.log_directories(paths), profiles.trace_events(paths)
    first, last = count(own.get("first_step")), count(own.get("last_step"))
    which = f"steps {first:,} to {last:,}; " if first and last else ""
    if directories:
        text = f"{which}open it with XProf (pip install xprof): "
        yield DeviceFact("Profile", text, profiles.command(report.directory, directories[0]))
    elif traces:
        yield DeviceFact("Profile", f"{which}{traces[0]} opens in Perfetto")
    else:
        problem = own.get("problem")
        text = printable(problem)[:200] if isinstance(problem, str) and problem else "train.profile asks for none"
        yield DeviceFact("Profile", text, is_absent=True)
