"""Processes with a stopwatch: wall time, and the processor time of a process and of all that it waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Spent:
    wall_s: float
    cpu_s: float
    peak_mb: float  # of the largest process, as the kernel counts resident memory
    stdout: str


def timed(argv: Sequence[str], environment: dict[str, str], directory: Path) -> Spent:
    """Run to the end. Any exit code but 0 is an error: a failure's time means nothing."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd=directory
        )
        bound = threading.Timer(TIMEOUT_S, process.kill)
        bound.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        bound.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)} ended with {process.returncode}: {err.read().decode()[-2000:]}")
        peak_mb = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6
        return Spent(wall_s, usage.ru_utime + usage.ru_stime, peak_mb, out.read().decode())


def cpu_s(pid: int) -> float:
    """Processor time of a living process and of the children that it has waited for; what detached itself is not in it."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)
