"""The figures of one run: what was trained, where, how fast, how well, and what it cost. `compare` and `show` print them.

From the ledger comes what is ours to know (the cloud, the price, whether it is emulated), from the worker's files what was
measured there, each value checked. What nobody measured is None, never zero.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator import catalog
from orchestrator.core.lease.attempt import Attempt, RunRecord
from orchestrator.core.lease.lease import Lease
from orchestrator.report import timing as timings
from orchestrator.report.artifact_files import count, figure, read_object, section, words
from orchestrator.report.timing import Timing


def figures(run: RunRecord, attempt: Attempt, lease: Lease | None, usd: float | None) -> dict[str, Any]:
    """One run's column of a comparison; the stable shape of `tpujob compare --json`. `usd`: all of it (`report.costs`)."""
    directory = Path(run.directory)
    metrics = read_object(directory / "worker0" / "artifacts" / "metrics.json")
    timing = timings.of_run(directory)
    return {
        "run": run.id,
        "name": run.name,
        "title": title(run),
        "state": str(attempt.state),
        "cloud": run.cloud,
        "emulated": run.cloud == "emulated",
        "accelerator_type": lease.accelerator_type if lease else None,
        **_work(run, metrics, timing),
        **_times(metrics, timing),
        "images_per_s": figure(metrics.get("images_per_s")),
        "test_accuracy": _share(metrics.get("test_accuracy")),
        "train_loss": _last_loss(metrics),
        "peak_rss_bytes": count(metrics.get("peak_rss_bytes")),
        "usd": usd,
        "prices_as_of": catalog.PRICES_AS_OF,
        "problems": _problems(timing),
    }


def title(run: RunRecord) -> str:
    """The name of the variant for a run that a bench started, else the job's."""
    bench = run.spec.get("bench")
    return str(bench["variant"]) if isinstance(bench, dict) and "variant" in bench else run.name


def _work(run: RunRecord, metrics: dict[str, Any], timing: Timing | None) -> dict[str, Any]:
    """What was trained. What the payload says of itself is nearer to the truth than what was asked for."""
    asked = section(run.spec, "train")
    world, dataset = section(metrics, "world"), section(metrics, "dataset")
    epochs = metrics.get("epochs")
    return {
        "model": words(metrics.get("model")) or asked.get("entry") or asked.get("model"),
        "dataset": words(dataset.get("name")) or asked.get("dataset"),
        "synthetic": dataset.get("synthetic") is True,
        "train_examples": count(dataset.get("train_examples")),
        "batch_size": count(metrics.get("batch_size")) or (timing.batch_size if timing else asked.get("batch_size")),
        "epochs": len(epochs) if isinstance(epochs, list) else len(timing.epochs) if timing else None,
        "precision": words(metrics.get("precision")) or asked.get("precision"),
        "timing": timing.mode if timing else None,
        "device": words(world.get("device")) or (timing.device if timing else None),
        "processes": count(world.get("processes")) or (timing.processes if timing else None),
        "workers": count(world.get("workers")),
    }


def _times(metrics: dict[str, Any], timing: Timing | None) -> dict[str, Any]:
    seconds = section(metrics, "seconds")
    epoch_s, estimated = timing.epoch_s if timing else (timings.Spread(), False)
    spans = timing.spans if timing else {}
    return {
        "total_s": timing.train_s if timing else figure(seconds.get("train_s")),
        "step_s": {
            "mean": timing.step_mean_s if timing else None,
            "std": timing.step_std_s if timing else None,
            "count": timing.warm_steps if timing else 0,
        },
        "epoch_s": {
            "mean": epoch_s.mean if epoch_s.count else None,
            "std": epoch_s.std,
            "count": epoch_s.count,
            "estimated": estimated,
        },
        "warm_up_steps": timing.warm_up_steps if timing else None,
        "first_step_s": timing.first_step_s if timing else None,
        "compile_s": spans.get("compile", 0.0) if timing else figure(seconds.get("compile_s")),
        "eval_s": spans.get("eval", figure(seconds.get("eval_s"))),
        "job_s": figure(seconds.get("total_s")),
        "resumed": timing is not None and timing.sessions > 1,
    }


def _share(value: Any) -> float | None:
    number = figure(value)
    return number if number is not None and number <= 1 else None


def _last_loss(metrics: dict[str, Any]) -> float | None:
    losses = metrics.get("train_loss")
    return figure(losses[-1]) if isinstance(losses, list) and losses else None


def _problems(timing: Timing | None) -> list[str]:
    if timing is None:
        return [f"it left no {timings.NAME}"]
    return timing.problems
