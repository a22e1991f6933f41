"""What the processors and the memory of the workers did: `host.jsonl`, sampled beside the job by `vm/agent/host.py`.

It comes from a worker, so it is read in pieces, to a bounded size, and a line that makes no sense is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.report.files.artifact_files import count, measured, pieces, remembered
from orchestrator.text.units import format_size

NAME = "host.jsonl"
HEAD = b'{"schema": 1}\n'
MAX_BYTES = 4 << 20
MAX_LINE_BYTES = 4 << 10
MAX_WORKERS = 16
MOST_POINTS = 300  # of a curve


@dataclass(frozen=True, slots=True)
class HostUse:
    """What the hosts of the first workers reported, one number of each the largest among them but for the mean.

    `cpu_percent`: the mean of all processors over the time, `cpu_peak_percent`: of the busiest sample.
    """

    workers: int
    samples: int
    cpus: int
    cpu_percent: float
    cpu_peak_percent: float
    memory_peak_bytes: int
    memory_total_bytes: int  #: of the host with that peak


@dataclass(slots=True)
class _Samples:
    """Of one worker: unix seconds, for how many seconds, percent of all processors, bytes used and in all."""

    rows: list[tuple[float, float, float, int, int]] = field(default_factory=list)
    cpus: int = 0

    def add(self, line: dict[str, Any]) -> None:
        at, every_s, percent = (measured(line.get(key)) for key in ("at", "every_s", "cpu_percent"))
        used, total = count(line.get("memory_used_bytes")), count(line.get("memory_total_bytes"))
        if at is None or not every_s or percent is None or percent > 100 or used is None or not total or used > total:
            return
        self.cpus = max(self.cpus, count(line.get("cpus")) or 0)
        self.rows.append((at, every_s, percent, used, total))


def read_run(directory: Path) -> HostUse | None:
    """Return what the workers' files say; None where no worker has a sample."""
    every = [found for index in range(MAX_WORKERS) if (found := _of_worker(directory, index)) and found.rows]
    rows = [row for found in every for row in found.rows]
    if not rows:
        return None
    fullest = max(rows, key=lambda row: row[3])
    return HostUse(
        len(every), len(rows), max(found.cpus for found in every),
        sum(row[1] * row[2] for row in rows) / sum(row[1] for row in rows), max(row[2] for row in rows), fullest[3],
        fullest[4],
    )  # fmt: skip


def curves(directory: Path) -> list[tuple[float, float, float]]:
    """Return the seconds sampled so far, percent of the processors and percent of the memory, of worker 0, over time."""
    found = _of_worker(directory, 0)
    rows = found.rows if found is not None else []
    stride = -(-len(rows) // MOST_POINTS) or 1
    over = accumulate(row[1] for row in rows)  # the clock of a worker may be set meanwhile
    points = [(at, row[2], 100 * row[3] / row[4]) for at, row in zip(over, rows, strict=True)]
    return [max(points[at : at + stride], key=lambda point: point[1]) for at in range(0, len(points), stride)]


def line(use: HostUse, *, emulated: bool) -> str:
    """Return it in one line."""
    cpus = f" of {use.cpus} CPUs" if use.cpus else ""
    memory = f"memory peak {format_size(use.memory_peak_bytes)} of {format_size(use.memory_total_bytes)}"
    where = "this machine, which runs the emulated workers" if emulated else ""
    several = f"{use.workers} workers" if use.workers > 1 else ""
    cpu = f"mean {use.cpu_percent:.0f} %{cpus}, peak {use.cpu_peak_percent:.0f} %"
    return " · ".join(filter(None, (cpu, memory, several, where)))


def _of_worker(directory: Path, index: int) -> _Samples | None:
    collected, live = directory / f"worker{index}/artifacts/{NAME}", directory / f"logs/worker{index}.{NAME}"
    return _read_file(collected) or _read_file(live)


@remembered
def _read_file(file: BinaryIO) -> _Samples:
    found = _Samples()
    if file.readline(len(HEAD)) != HEAD:
        return found  # a file of the job
    for every, _ in pieces(file, MAX_LINE_BYTES, max_bytes=MAX_BYTES):
        for each in every:
            if type(each) is dict:
                found.add(each)
    return found
