"""Read `timing.jsonl`: seconds per step and per epoch with their spread, without warm-up, and the spans between.

The file grows by a line a step and comes from a worker, so it is read as a stream of bounded size; lines that make no sense
are counted and dropped. Means come from the drained ends of epochs, which are exact; a spread is computed only where each step
was drained (`timing: drained`). payload/README.md describes the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.report.files.artifact_files import count, measured, open_regular, parse_object, short_text

SCHEMA = 1
NAME = "timing.jsonl"
MAX_BYTES = 256 << 20
MAX_LINE_BYTES = 16 << 10
MAX_WORKERS = 1024
MAX_EPOCHS = 100_000
MODES = ("stamped", "drained")
SPANS = ("import", "data", "compile", "eval", "checkpoint")


@dataclass(slots=True)
class Spread:
    """Mean and standard deviation of what was added so far, in one pass (Welford)."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        before = value - self.mean
        self.mean += before / self.count
        self._squares += before * (value - self.mean)

    @property
    def std(self) -> float | None:
        """Of a sample; None for a single value."""
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else None


@dataclass(frozen=True, slots=True)
class Epoch:
    number: int
    seconds: float  # drained to drained, without its warm-up steps
    warm_steps: int
    steps: int
    compile_s: float

    @property
    def whole(self) -> bool:
        """True if no step was left out as warm-up, or done before the training was resumed."""
        return 0 < self.warm_steps == self.steps


@dataclass(slots=True)
class Timing:
    """`problems` are sentences: what was dropped, and why."""

    mode: str | None = None
    device: str | None = None
    processes: int | None = None
    batch_size: int | None = None
    sessions: int = 0  # headers: one more for each time that the training was resumed
    intervals: Spread = field(default_factory=Spread)  # between stamps; in drained mode, the steps themselves
    warm_up_steps: int = 0  # that compiled
    first_step_s: float | None = None  # from the start of the command to the end of its first step
    epochs: list[Epoch] = field(default_factory=list)
    spans: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def train_s(self) -> float | None:
        """Seconds of all epochs without warm-up; None before the first epoch has ended."""
        return sum(epoch.seconds for epoch in self.epochs) if self.epochs else None

    @property
    def warm_steps(self) -> int:
        return sum(epoch.warm_steps for epoch in self.epochs) or self.intervals.count

    @property
    def step_mean_s(self) -> float | None:
        steps = sum(epoch.warm_steps for epoch in self.epochs)
        if steps:
            return (self.train_s or 0.0) / steps
        return self.intervals.mean if self.intervals.count else None  # no epoch has ended yet

    @property
    def step_std_s(self) -> float | None:
        """None unless every step was drained: the spread of dispatches is not that of the steps."""
        return self.intervals.std if self.mode == "drained" else None

    @property
    def epoch_s(self) -> tuple[Spread, bool]:
        """The spread of whole epochs. Where there is none, that of all, extrapolated from their warm steps: then True."""
        spread = Spread()
        for epoch in self.epochs:
            if epoch.whole:
                spread.add(epoch.seconds)
        if spread.count:
            return spread, False
        for epoch in self.epochs:
            if epoch.warm_steps:
                spread.add(epoch.seconds / epoch.warm_steps * epoch.steps)
        return spread, spread.count > 0


def read_run(directory: Path) -> Timing | None:
    """Return the timing of the first worker that has the file (the payload writes it on worker 0); None: no worker has."""
    for index in range(MAX_WORKERS):
        worker = directory / f"worker{index}"
        if not worker.is_dir():
            return None
        file = open_regular(worker / "artifacts" / NAME)
        if file is not None:
            with file:
                return read(file)
    return None


def read(file: BinaryIO, *, max_bytes: int = MAX_BYTES) -> Timing:
    """Return the timing in the file, whatever is in it; `problems` tells what was dropped."""
    timing, dropped = Timing(), 0
    for line in _lines(file, max_bytes, timing.problems):
        data = parse_object(line)
        if data is None or not _add(timing, data):
            dropped += 1
        elif timing.mode is None:
            break  # a header of another schema: what follows has another one, too
    if dropped:
        timing.problems.append(f"{dropped:,} lines of {NAME} make no sense and were left out")
    return timing


def _lines(file: BinaryIO, max_bytes: int, problems: list[str]) -> Iterator[bytes]:
    """Yield whole lines. What follows the last line end is still being written, or was cut."""
    size = 0
    while line := file.readline(MAX_LINE_BYTES):
        size += len(line)
        if size > max_bytes:
            problems.append(f"{NAME} is larger than {max_bytes / 1e6:,.0f} MB: the rest was not read")
            return
        if line.endswith(b"\n"):
            yield line
        elif len(line) == MAX_LINE_BYTES:
            yield b""  # too long to make sense, and so is its rest


def _add(timing: Timing, data: dict[str, Any]) -> bool:
    """False: the line makes no sense."""
    if "schema" in data:
        return _header(timing, data)
    if timing.mode is None:
        return False
    if "span" in data:
        return _span(timing, data)
    return _step(timing, data) if "dt_s" in data else _epoch(timing, data)


def _header(timing: Timing, data: dict[str, Any]) -> bool:
    if data["schema"] != SCHEMA:
        known = f"schema {SCHEMA} is what this tpujob reads"
        timing.problems.append(f"{NAME} has schema {str(data['schema'])[:20]!r}, and {known}")
        return True
    mode = short_text(data.get("timing"))
    if mode not in MODES:
        return False
    if timing.mode is not None and mode != timing.mode:
        timing.problems.append("the training was resumed with another `timing:`: no spread is known")
        mode = "stamped"
    timing.mode, timing.device = mode, short_text(data.get("device"))
    timing.processes, timing.batch_size = count(data.get("processes")), count(data.get("batch_size"))
    timing.sessions += 1
    return True


def _span(timing: Timing, data: dict[str, Any]) -> bool:
    name, seconds = data["span"], measured(data.get("s"))
    if name not in SPANS or seconds is None:
        return False
    timing.spans[name] = timing.spans.get(name, 0.0) + seconds
    return True


def _step(timing: Timing, data: dict[str, Any]) -> bool:
    seconds, at = measured(data["dt_s"]), measured(data.get("t_s"))
    if seconds is None or at is None:
        return False
    if timing.first_step_s is None:
        timing.first_step_s = at
    if data.get("compile") is True:
        timing.warm_up_steps += 1
    else:
        timing.intervals.add(seconds)
    return True


def _epoch(timing: Timing, data: dict[str, Any]) -> bool:
    number, warm_steps, steps = (count(data.get(key)) for key in ("epoch", "warm_steps", "steps"))
    seconds, compile_s = measured(data.get("s")), measured(data.get("compile_s", 0.0))
    if number is None or warm_steps is None or seconds is None or compile_s is None:
        return False
    if len(timing.epochs) < MAX_EPOCHS:
        timing.epochs.append(Epoch(number, seconds, warm_steps, steps or warm_steps, compile_s))
    return True
