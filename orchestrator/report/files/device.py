"""What the files of a run say of its device: memory and duty cycle of its chips, and the traces of profilers.

`tpu-metrics.jsonl` of every worker is sampled by `vm/agent/chips.py`. It comes from a worker, so it is read in pieces, to a
bounded size, and a line that makes no sense is left out.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from orchestrator.report.files.artifact_files import MAX_MEASURED, measured, pieces, remembered
from orchestrator.text.terminal import printable

NAME = "tpu-metrics.jsonl"
MAX_BYTES = 4 << 20
MAX_LINE_BYTES = 64 << 10
MAX_WORKERS = 16  # their chips do the same; the files of a thousand workers would take seconds
MAX_CHIPS = 1024


@dataclass(slots=True)
class TpuUse:
    """What the chips of a run reported, of its first workers. `samples`: lines with a figure; 0: `absent` may tell why.

    `hbm_peak_bytes`: the most that a sample had of one chip, `hbm_total_bytes`: of how much there.
    """

    samples: int = 0
    chips: int = 0
    hbm_peak_bytes: int | None = None
    hbm_total_bytes: int | None = None
    absent: str | None = None
    duty_sum: float = 0.0  # percent, times the seconds that a sample stands for
    duty_s: float = 0.0
    chips_said: list[Any] = field(default_factory=list)  # last by `vm.agent.chips`: what chip_report.py reads

    @property
    def duty_cycle_percent(self) -> float | None:
        """The mean over the time of all chips; None without a sample."""
        return self.duty_sum / self.duty_s if self.duty_s else None

    def add(self, line: dict[str, Any]) -> None:
        """Add a line; what makes no sense in it is left out."""
        if isinstance(line.get("absent"), str):
            self.absent = printable(line["absent"])[:200]
        if "chips" in line:
            self.chips_said = [line["chips"]]
        used, total = _numbers(line.get("hbm_used_bytes")), _numbers(line.get("hbm_total_bytes"))
        fits = bool(used) and len(used) == len(total) and all(u <= t > 0 for u, t in zip(used, total, strict=True))
        duty = [value for value in _numbers(line.get("duty_cycle_percent")) if value <= 100]
        if fits:
            self._add_peak(*max(zip(used, total, strict=True)))
        every_s = measured(line.get("every_s")) or 1.0
        self.duty_sum += sum(duty) * every_s
        self.duty_s += len(duty) * every_s
        self.chips = max(self.chips, len(used) if fits else len(duty))
        self.samples += fits or bool(duty)

    def merge(self, other: TpuUse) -> None:
        """Add what the chips of another worker reported."""
        self.samples, self.chips = self.samples + other.samples, self.chips + other.chips
        self.duty_sum, self.duty_s = self.duty_sum + other.duty_sum, self.duty_s + other.duty_s
        self.absent = self.absent or other.absent
        self.chips_said += other.chips_said
        if other.hbm_peak_bytes is not None and other.hbm_total_bytes is not None:
            self._add_peak(other.hbm_peak_bytes, other.hbm_total_bytes)

    def _add_peak(self, used_bytes: float, total_bytes: float) -> None:
        if self.hbm_peak_bytes is None or used_bytes > self.hbm_peak_bytes:
            self.hbm_peak_bytes, self.hbm_total_bytes = int(used_bytes), int(total_bytes)


def read_run(directory: Path) -> TpuUse | None:
    """Return what the workers' files say; None where no worker has the file."""
    paths = [directory / f"worker{index}" / "artifacts" / NAME for index in range(MAX_WORKERS)]
    found = [use for path in paths if (use := _read_file(path)) is not None]
    if not found:
        return None
    every = TpuUse()
    for use in found:
        every.merge(use)
    return every


@remembered
def _read_file(file: BinaryIO) -> TpuUse:
    use = TpuUse()
    for lines, _ in pieces(file, MAX_LINE_BYTES, max_bytes=MAX_BYTES):
        for line in lines:
            if type(line) is dict:
                use.add(line)
    return use


def _numbers(value: Any) -> list[float]:
    """Return the numbers of a list; [] if it is none, or has anything else than what can have been measured."""
    if not isinstance(value, list) or len(value) > MAX_CHIPS:
        return []
    fine = all(type(each) in (int, float) and 0 <= each <= MAX_MEASURED for each in value)
    return value if fine else []


LAYOUT = "/plugins/profile/"  # where XProf and TensorBoard look for `<time>/<host>.xplane.pb` below a directory
XPLANE, TRACE_EVENTS = ".xplane.pb", (".trace.json.gz", ".trace.json")


def log_directories(paths: Iterable[str]) -> list[str]:
    """Return the directories that XProf opens, below which these files of a run are."""
    found = (path.rpartition(LAYOUT)[0] for path in paths if path.endswith(XPLANE) and LAYOUT in path)
    return list(dict.fromkeys(found))


def trace_events(paths: Iterable[str]) -> list[str]:
    """Return the files that Perfetto opens."""
    return [path for path in paths if path.endswith(TRACE_EVENTS)]


def command(directory: str, below: str) -> str:
    """Return the command that opens a directory of `log_directories`. `directory`: that of the run."""
    return f"xprof --logdir {shlex.quote(str(PurePosixPath(directory) / below))}"


def how_to_open(directory: str, paths: Iterable[str]) -> list[str]:
    """Return a line for each trace: a command for those that XProf opens; if there is none, those for Perfetto."""
    found = list(paths)
    commands = [command(directory, below) for below in log_directories(found)]
    return commands or [f"{path} opens in ui.perfetto.dev" for path in trace_events(found)]
