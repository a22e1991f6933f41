"""The processors and the memory of this worker while a job runs: samples in `artifacts/host.jsonl`.

The script of a job runs it beside the job (text/scripts.py). docs/reports.md describes the file.
"""

# Paths are text: pathlib takes 5 ms to import, on each of many workers.
# ruff: noqa: PTH108, PTH118, PTH123
from __future__ import annotations

import json
import os
import re
import time
from typing import Any

from ..files.phases import text as _text

NAME = "host.jsonl"
HEAD = b'{"schema": 1}\n'
FIRST_S = 1.0  # so that a short job has a sample
SLOWER_AFTER = 360  # samples: half an hour, then half as often, and so on: a week has 3,000 lines


def host_metrics(directory: str, every: str = "5") -> None:
    """Sample every so many seconds, later less often, until the job has ended and its supervisor ends this process too."""
    every_s = float(every)
    os.umask(0o022)  # as that of the job
    os.nice(19)
    path, looks, before = os.path.join(directory, NAME), 0, ticks()
    if before is None:
        return
    while True:
        pause_s = min(every_s, FIRST_S) if looks == 0 else every_s
        time.sleep(pause_s)
        now, memory = ticks(), memory_bytes()
        if now is not None and memory is not None and now[1] > before[1]:
            busy, whole = now[0] - before[0], now[1] - before[1]
            percent = round(100.0 * min(max(busy, 0), whole) / whole, 1)
            line = {"at": round(time.time(), 1), "every_s": pause_s, "cpu_percent": percent, "cpus": now[2]}
            _write(path, dict(line, memory_used_bytes=memory[0], memory_total_bytes=memory[1]))
            before = now
        looks += 1
        every_s *= 2 if looks % SLOWER_AFTER == 0 else 1


def ticks() -> tuple[int, int, int] | None:
    """Return the busy ticks of all processors, all ticks, and how many processors; None where the kernel does not say."""
    rows = [row.split() for row in _text("/proc/stat").splitlines() if row.startswith("cpu")]
    if not rows or len(rows[0]) < 6:
        return None
    # Guest time is in user time already. Of a virtual machine, stolen ticks are no work of this one, but passed.
    user, nice, system, idle, iowait, *more = (int(word) for word in rows[0][1:9])
    rest = sum(more)
    steal = more[2] if len(more) > 2 else 0
    return user + nice + system + rest - steal, user + nice + system + idle + iowait + rest, max(len(rows) - 1, 1)


def memory_bytes() -> tuple[int, int] | None:
    """Return the memory that is used, without what the kernel can free at once, and all of it; None where it is not said."""
    found = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", _text("/proc/meminfo"), re.M))
    if len(found) != 2:
        return None
    total, available = int(found["MemTotal"]) << 10, int(found["MemAvailable"]) << 10
    return max(total - available, 0), total


def _write(path: str, line: dict[str, Any]) -> None:
    """Append a line to the file, unless the job made it; a disk that is full has no more of them."""
    try:
        if not os.path.lexists(path):
            with open(path, "xb", buffering=0) as file:
                try:
                    file.write(HEAD)
                except OSError:
                    os.unlink(path)  # an empty one would be the job's
                    raise
        with open(path, "r+b") as file:
            if file.read(len(HEAD)) == HEAD:
                file.seek(0, os.SEEK_END)
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    except OSError:
        pass
