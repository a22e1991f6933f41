"""The newest that the files of a run say, while it goes on or after it: its step, how fast it is, its chips and its host.

Only the end of each file is read, so that many runs can be looked at every second. They come from a worker: what makes no sense
is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.promise.lease import guest_reports
from orchestrator.report.files import device, metrics
from orchestrator.report.files.artifact_files import last_objects, measured
from orchestrator.text.parsing import LINE_BYTES, step_of

RATE_S = 60.0  # the speed is that of the last minute
PER_S = "_per_s"  # how the names of rates end


@dataclass(frozen=True, slots=True)
class Copied:
    """A file beside the metrics: where worker 0's is once it is collected, and where its copy is until then."""

    collected: str
    live: str

    def last(self, directory: Path) -> list[dict[str, Any]]:
        """Return the objects in its last lines, oldest first; of a run that goes on, those of the copy."""
        return last_objects(directory / self.live, LINE_BYTES) or last_objects(directory / self.collected, LINE_BYTES)


BESIDE = {
    "chips": Copied(f"worker0/artifacts/{device.NAME}", f"logs/worker0.{device.NAME}"),
    "host": Copied("worker0/artifacts/host.jsonl", "logs/worker0.host.jsonl"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Newest:
    """Each is None where it is not known. Percents are from 0 to 100; of the chips, those of the busiest or fullest one."""

    step: int | None = None
    rate: float | None = None  #: in a second
    rate_of: str | None = None  #: images, tokens and so on, or steps
    hbm_percent: float | None = None
    duty_percent: float | None = None
    cpu_percent: float | None = None
    memory_percent: float | None = None
    seen_at: float | None = None  #: when the step came, in unix seconds of this machine
    remark: str = ""  #: of chips that the job does not use


def read(directory: Path, values: Mapping[str, Any]) -> Newest:
    """Return the newest of the run in this directory. `values`: its newest metrics."""
    steps = [
        (step, at)
        for row in last_objects(directory / metrics.STEPS, LINE_BYTES)
        if (step := step_of(row.get("step"))) is not None and (at := measured(row.get("at"))) is not None
    ]
    chips, host = BESIDE["chips"].last(directory), (BESIDE["host"].last(directory) or [{}])[-1]
    said = next((row["chips"] for row in reversed(chips) if "chips" in row), None)
    return Newest(
        step=step_of(values.get("step")),
        seen_at=steps[-1][1] if steps else None,
        remark="; ".join(guest_reports.lines([said]).values()),
        cpu_percent=_percent(host.get("cpu_percent"), 100.0),
        memory_percent=_percent(host.get("memory_used_bytes"), host.get("memory_total_bytes")),
        **_rate(values, steps),
        **_chips(next((row for row in reversed(chips) if {"hbm_used_bytes", "duty_cycle_percent"} & row.keys()), {})),
    )


def _chips(row: Mapping[str, Any]) -> dict[str, Any]:
    used, total, duty = map(row.get, ("hbm_used_bytes", "hbm_total_bytes", "duty_cycle_percent"))
    pairs = zip(used, total, strict=False) if isinstance(used, list) and isinstance(total, list) else ()
    full = [each for pair in pairs if (each := _percent(*pair)) is not None]
    busy = [each for value in (duty if isinstance(duty, list) else ()) if (each := _percent(value, 100.0)) is not None]
    return {"hbm_percent": max(full, default=None), "duty_percent": max(busy, default=None)}


def _rate(values: Mapping[str, Any], steps: list[tuple[int, float]]) -> dict[str, Any]:
    """Return the rate that the job reports, else that of its steps."""
    reported = [(name, value) for name, each in values.items() if name.endswith(PER_S) and (value := measured(each))]
    if reported:
        name, value = reported[0]
        return {"rate": value, "rate_of": name.removesuffix(PER_S)}
    recent = [(step, at) for step, at in steps if at >= steps[-1][1] - RATE_S]
    recent = recent if len(recent) > 1 else steps[-2:]  # of a long run, few steps are written down
    if len(recent) > 1 and recent[-1][1] > recent[0][1] and recent[-1][0] > recent[0][0]:
        (first, began), (last, ended) = recent[0], recent[-1]
        return {"rate": (last - first) / (ended - began), "rate_of": "steps"}
    return {}


def _percent(part: Any, whole: Any) -> float | None:
    of, part = measured(whole), measured(part)
    return None if not of or part is None or part > of else round(100 * part / of, 1)
