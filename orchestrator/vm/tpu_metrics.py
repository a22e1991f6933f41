"""Samples HBM use and duty cycle of this worker's TPU chips while a job runs, into `artifacts/tpu-metrics.jsonl`.

The script of a job runs this verb with the job's own `python3`, beside the job (core/text/scripts.py). It asks libtpu's
monitoring library, which is a client of the metrics service that libtpu runs in the training process (localhost:8431): the
library opens no chip, and what fails or hangs here fails in this process alone. While nothing is loaded on the chips, it writes
no line, never 0. docs/reports.md describes the file.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import signal
import time
from typing import Any

NAME = "tpu-metrics.jsonl"
SCHEMA = 1
SLOWER_AFTER = 360  # samples: an hour, then half as often, and so on: a week has 3,000 lines
MOST_CHIPS = 1024
NAMES = {  # by their names in libtpu
    "hbm_capacity_usage": "hbm_used_bytes",
    "hbm_capacity_total": "hbm_total_bytes",
    "duty_cycle_pct": "duty_cycle_percent",
}
# libtpu asks the metadata server of the VM thirty times for what only a training needs, and writes logs of its own.
QUIET = {"TPU_SKIP_MDS_QUERY": "1", "TPU_MIN_LOG_LEVEL": "3", "TPU_STDERR_LOG_LEVEL": "3", "TPU_LOG_DIR": "disabled"}


def sample(monitoring: Any, known: set[str]) -> dict[str, list[float]]:
    """Return what libtpu reports now, a value for each chip or core; {} for nothing. Raises nothing of libtpu's.

    `known`: the metrics that this libtpu has. An older one ends the process when it is asked for another.
    """
    found: dict[str, list[float]] = {}
    for name, key in NAMES.items():
        if name in known:
            try:
                values = numbers(monitoring.get_metric(name).data())
            except Exception:  # noqa: S112 - whatever the library raises: unknown
                continue
            if values:
                found[key] = values
    if len(found.get("hbm_used_bytes", ())) != len(found.get("hbm_total_bytes", ())):
        found.pop("hbm_used_bytes", None)  # one without the other has no meaning
        found.pop("hbm_total_bytes", None)
    return found


def numbers(data: Any) -> list[float]:
    """Return the numbers in a list of texts; [] if one of them is none that can have been measured."""
    try:
        values = [float(each) for each in list(data)[:MOST_CHIPS]]
    except (TypeError, ValueError):
        return []
    if any(not math.isfinite(value) or value < 0 for value in values):
        return []
    return [int(value) if value == int(value) else value for value in values]


def write(path: str, line: dict[str, Any]) -> None:
    with open(path, "a") as file:  # noqa: PTH123
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def tpu_metrics(directory: str, every: str = "10") -> None:
    """Sample every so many seconds, later less often, until the job has ended and its supervisor ends this process too."""
    every_s = float(every)
    os.umask(0o022)  # as that of the job
    path = os.path.join(directory, NAME)  # noqa: PTH118
    os.environ.update(QUIET)
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        tpumonitoring = importlib.import_module("libtpu.sdk").tpumonitoring  # of the job's Python, if it has one
        known = set(tpumonitoring.list_supported_metrics())
    except Exception as error:
        write(path, {"absent": "the job's python3 has no libtpu.sdk: " + f"{type(error).__name__}: {error}"[:200]})
        return
    write(path, {"schema": SCHEMA})
    looks = 0
    while True:
        looks += 1
        every_s *= 2 if looks % SLOWER_AFTER == 0 else 1
        time.sleep(every_s)
        found = sample(tpumonitoring, known)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # libtpu's own handler prints a stack first
        if found:
            write(path, {"at": round(time.time(), 1), "every_s": every_s, **found})
