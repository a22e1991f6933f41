"""The figures of one run: what was trained, where, how fast, how well, and what it cost. `compare` and `show` print them.

The cloud and the price come from the ledger, the measurements from the worker's files, each value checked. What was not
measured is None, never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import catalog, traits
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.lease.run_spec import NO_TRAINING, TrainRecord
from orchestrator.report.files import device, timing_file
from orchestrator.report.files.artifact_files import count, measured, read_object, section, short_text
from orchestrator.report.files.device import TpuUse
from orchestrator.report.files.metrics import Metric
from orchestrator.report.files.metrics import read as read_metrics
from orchestrator.report.files.timing import Timing
from orchestrator.report.rows.whole_run import WholeRun

FUNCTION_ENTRY = "payload.functions.call:main"  # of a function of the Python API (api/functions)


@dataclass(frozen=True, slots=True)
class Measure:
    """Mean and sample standard deviation of `count` values: seconds of steps or epochs, or one value of each run of a group.

    `std`: None of a single value.
    """

    mean: float | None = None
    std: float | None = None
    count: int = 0


@dataclass(frozen=True, slots=True)
class EpochMeasure(Measure):
    """`estimated`: no epoch was free of warm-up, so each is extrapolated from its warm steps."""

    estimated: bool = False


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run's column of a comparison. `cost_usd` and `job_s` are of all attempts; `problems` are sentences.

    `images_per_s_per_chip`: of the TPU chips that trained. `data_wait_s`: the part of `total_s` in which it waited for data.
    `peak_device_bytes`: the most memory that was in use on one chip or GPU, of `device_bytes` there. `duty_cycle_percent`: the
    mean over the chips. `job_s`: seconds that the job ran. `metrics`: by name, what the job reported of itself
    (`report.files.metrics`).
    """

    run: str
    name: str
    title: str  # the name of the variant for a run of a sweep, else the job's
    job: str  # the name of the sweep for a run of one
    variant: str | None  # the name below `variants:`
    state: str
    exit_code: int | None
    restarts: int
    params: Mapping[str, Any]
    cloud: str
    emulated: bool
    accelerator_type: str | None
    model: str | None
    dataset: str | None
    synthetic: bool
    train_examples: int | None
    batch_size: int | None
    epochs: int | None
    precision: str | None
    timing: str | None
    device: str | None
    processes: int | None
    workers: int | None
    total_s: float | None
    step_s: Measure
    epoch_s: EpochMeasure
    warm_up_steps: int | None
    first_step_s: float | None
    compile_s: float | None
    eval_s: float | None
    job_s: float | None
    resumed: bool
    images_per_s: float | None
    test_accuracy: float | None
    train_loss: float | None
    images_per_s_per_chip: float | None
    data_wait_s: float | None
    peak_rss_bytes: int | None
    peak_device_bytes: int | None
    device_bytes: int | None
    duty_cycle_percent: float | None
    metrics: Mapping[str, Metric]
    cost_usd: float | None
    prices_as_of: str
    problems: tuple[str, ...]

    def value(self, name: str) -> float | None:
        """Return a figure as a number: of steps and epochs the mean."""
        found: Measure | float | None = getattr(self, name)
        return found.mean if isinstance(found, Measure) else found


def figures(run: RunRecord, attempt: Attempt, lease: Lease | None, whole: WholeRun) -> RunFigures:
    """Return the figures of a run, of which this is the last attempt."""
    directory = Path(run.directory)
    metrics = read_object(directory / "worker0" / "artifacts" / "metrics.json")
    read = timing_file.read_run(directory)
    timing = read if read and read.sessions else None  # without a header the file is of the job
    accelerator_type = lease.accelerator_type if lease else None
    return RunFigures(
        run=run.id, name=run.name, title=_title(run), job=run.spec.sweep.name or run.name, variant=_variant(run),
        state=str(attempt.state), exit_code=attempt.exit_code, restarts=whole.restarts, params=run.spec.params,
        cloud=run.cloud, emulated=traits.is_emulated(run.cloud), accelerator_type=accelerator_type,
        **_work(run, metrics, timing), **_times(metrics, timing), images_per_s=measured(metrics.get("images_per_s")),
        images_per_s_per_chip=_per_chip(run, measured(metrics.get("images_per_s")), accelerator_type),
        data_wait_s=timing.wait_s if timing else None, test_accuracy=_share(metrics.get("test_accuracy")),
        train_loss=_last_loss(metrics), peak_rss_bytes=count(metrics.get("peak_rss_bytes")),
        **_device(metrics, device.read_run(directory)), job_s=whole.job_s, metrics=read_metrics(directory),
        cost_usd=whole.cost_usd, prices_as_of=catalog.PRICES_AS_OF,
        problems=tuple(read.problems) if read else _no_timing(run),
    )  # fmt: skip


def _no_timing(run: RunRecord) -> tuple[str, ...]:
    """Return what is missing of a training with PyTorch: it writes that file, also with an `entry`."""
    return (f"it left no {timing_file.NAME}",) if (run.spec.train or NO_TRAINING).backend != "none" else ()


def _title(run: RunRecord) -> str:
    """Return the name of a named variant, else that of the run: the parameters of a variant are figures of their own."""
    variant = run.spec.sweep.variant
    return variant if variant and run.name.endswith(f"-{variant}") else run.name


def _variant(run: RunRecord) -> str | None:
    """Return the name of a named variant: what its label begins with (`job.sweep.labels`), before any value."""
    name, *_ = (run.spec.sweep.variant or "").split(maxsplit=1) or [""]
    return None if "=" in name else name.partition("#")[0] or None


def _work(run: RunRecord, metrics: dict[str, Any], timing: Timing | None) -> dict[str, Any]:
    """What was trained. What the payload measured is more certain than what was asked for."""
    asked = _asked(run.spec.train or NO_TRAINING)
    world, dataset = section(metrics, "world"), section(metrics, "dataset")
    epochs = metrics.get("epochs")
    return {
        "model": short_text(metrics.get("model")) or asked.model,
        "dataset": short_text(dataset.get("name")) or asked.dataset,
        "synthetic": dataset.get("synthetic") is True,
        "train_examples": count(dataset.get("train_examples")),
        "batch_size": count(metrics.get("batch_size")) or (timing.batch_size if timing else asked.batch_size),
        "epochs": len(epochs) if isinstance(epochs, list) else len(timing.epochs) if timing else None,
        "precision": short_text(metrics.get("precision")) or asked.precision,
        "timing": timing.mode if timing else None,
        "device": short_text(world.get("device")) or (timing.device if timing else None),
        "processes": count(world.get("processes")) or (timing.processes if timing else None),
        "workers": count(world.get("workers")),
    }


def _asked(train: TrainRecord) -> TrainRecord:
    """What the job file says about the training; an `entry` brings its own data, and a function of Python its name."""
    if train.entry is None:
        return train
    function = short_text(train.options.function) if train.entry == FUNCTION_ENTRY else None
    return TrainRecord(model=function or train.entry, precision=None if train.backend == "none" else train.precision)


def _times(metrics: dict[str, Any], timing: Timing | None) -> dict[str, Any]:
    seconds = section(metrics, "seconds")
    found = timing or Timing()
    epoch_s, estimated = found.epoch_s
    return {
        "total_s": found.train_s if timing else measured(seconds.get("train_s")),
        "step_s": Measure(found.step_mean_s, found.step_std_s, found.warm_steps),
        "epoch_s": EpochMeasure(epoch_s.mean if epoch_s.count else None, epoch_s.std, epoch_s.count, estimated),
        "warm_up_steps": found.warm_up_steps if timing else None,
        "first_step_s": found.first_step_s,
        "compile_s": found.spans.get("compile", 0.0) if timing else measured(seconds.get("compile_s")),
        "eval_s": found.spans.get("eval", measured(seconds.get("eval_s"))),
        "resumed": found.sessions > 1,
    }


def _per_chip(run: RunRecord, images_per_s: float | None, accelerator_type: str | None) -> float | None:
    """Return the throughput of one chip; None off a real TPU, and where it is not known how many whole chips trained.

    One core is a whole chip only of the generations that have one core a chip.
    """
    kind = catalog.lookup(accelerator_type) if accelerator_type else None
    asked = (run.spec.train or NO_TRAINING).cores
    if images_per_s is None or kind is None or traits.is_emulated(run.cloud):  # a few processes stand for all chips
        return None
    if asked == "all":
        return images_per_s / kind.chips
    return images_per_s if asked == 1 and kind.cores == kind.chips else None


def _device(metrics: dict[str, Any], use: TpuUse | None) -> dict[str, Any]:
    """The memory of the device: what the training measured of its own, or a sample where that has more."""
    found = use or TpuUse()
    own = count(metrics.get("peak_device_bytes"))
    return {
        "peak_device_bytes": max(filter(None, (own, found.hbm_peak_bytes)), default=None),
        "device_bytes": found.hbm_total_bytes,
        "duty_cycle_percent": found.duty_cycle_percent,
    }


def _share(value: Any) -> float | None:
    number = measured(value)
    return number if number is not None and number <= 1 else None


def _last_loss(metrics: dict[str, Any]) -> float | None:
    losses = metrics.get("train_loss")
    return measured(losses[-1]) if isinstance(losses, list) and losses else None
