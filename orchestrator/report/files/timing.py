"""Read `timing.jsonl`: seconds per step and per epoch with their spread, without warm-up, and the spans between.

The file grows by a line a step and comes from a worker, so it is read in pieces, to a bounded size; lines that make no sense
are counted and dropped. Means come from the drained ends of epochs, which are exact; a spread is computed only where each step
was drained (`timing: drained`). payload/README.md describes the file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.report.files.artifact_files import MAX_MEASURED, count, measured, open_regular, short_text
from orchestrator.report.files.json_lines import pieces
from orchestrator.report.files.step_times import StepTimes

SCHEMA = 1
NAME = "timing.jsonl"
MAX_BYTES = 256 << 20
MAX_LINE_BYTES = 16 << 10
MAX_WORKERS = 1024
MAX_EPOCHS = 100_000
MAX_SPANS = 10_000
NUMBERS = frozenset((int, float))
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

    def add_all(self, values: Sequence[float]) -> None:
        """Add the values at once (the parallel form of the same)."""
        mean = math.fsum(values) / len(values)
        squares = math.fsum([(value - mean) ** 2 for value in values])
        apart, whole = mean - self.mean, self.count + len(values)
        self._squares += squares + apart * apart * self.count * len(values) / whole
        self.mean += apart * len(values) / whole
        self.count = whole

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
    wait_s: float | None = None  # of the seconds: waiting for data
    ended_s: float | None = None  # on the clock of the job

    @property
    def whole(self) -> bool:
        """True if no step was left out as warm-up, or done before the training was resumed."""
        return 0 < self.warm_steps == self.steps


@dataclass(frozen=True, slots=True)
class Span:
    name: str
    seconds: float
    ended_s: float  # on the clock of the job


@dataclass(slots=True)
class Timing:
    """`problems` are sentences: what was dropped, and why.

    The clock of the job counts the seconds of its sessions, one after the other; `began_s` is when each of them began.
    """

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
    steps: StepTimes = field(default_factory=StepTimes)
    all_spans: list[Span] = field(default_factory=list)  # in their order
    began_s: list[float] = field(default_factory=list)
    _step: int = 0  # of the whole training
    _clock_s: float = 0.0

    @property
    def wait_s(self) -> float | None:
        """Seconds of `train_s` in which the training waited for data; None where that was not measured."""
        known = [epoch.wait_s for epoch in self.epochs if epoch.wait_s is not None]
        return sum(known) if known else None

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
        path = worker / "artifacts" / NAME
        try:
            found = path.lstat()
        except OSError:
            continue
        if (timing := _read_file(path, found.st_size, found.st_mtime_ns)) is not None:
            return timing
    return None


@lru_cache(maxsize=8)
def _read_file(path: Path, size_bytes: int, mtime_ns: int) -> Timing | None:
    """A file that did not change is not read again."""
    file = open_regular(path)
    if file is None:
        return None
    with file:
        return read(file)


def read(file: BinaryIO, *, max_bytes: int = MAX_BYTES) -> Timing:
    """Return the timing in the file, whatever is in it; `problems` tells what was dropped."""
    timing, dropped = Timing(), 0
    for found, senseless in pieces(file, MAX_LINE_BYTES, max_bytes=max_bytes):
        if senseless < 0:
            timing.problems.append(f"{NAME} is larger than {max_bytes / 1e6:,.0f} MB: the rest was not read")
            break
        dropped += senseless + _add(timing, found)
        if timing.mode is None and timing.problems:
            break  # a header of another schema: what follows has another one, too
    if dropped:
        timing.problems.append(f"{dropped:,} lines of {NAME} make no sense and were left out")
    return timing


def _add(timing: Timing, lines: Sequence[Any]) -> int:
    """Add what the lines hold; return how many of them make no sense."""
    dropped, steps = 0, []
    for data in lines:
        if type(data) is not dict:
            dropped += 1
        elif "dt_s" in data and "schema" not in data and "span" not in data:
            steps.append(data)
        else:
            dropped += _add_steps(timing, steps)
            steps = []
            dropped += not _add_other(timing, data)
            if timing.mode is None and timing.problems:
                return dropped
    return dropped + _add_steps(timing, steps)


def _add_other(timing: Timing, data: dict[str, Any]) -> bool:
    """False: the line makes no sense."""
    if "schema" in data:
        return _header(timing, data)
    if timing.mode is None:
        return False
    return _span(timing, data) if "span" in data else _epoch(timing, data)


def _add_steps(timing: Timing, lines: Sequence[dict[str, Any]]) -> int:
    """Add steps, those between two that compiled at once; return how many lines make no sense."""
    if not lines or timing.mode is None:
        return len(lines)
    fine = _measured_steps(lines)
    if not fine:
        return len(lines)
    if timing.first_step_s is None:
        timing.first_step_s = float(fine[0]["t_s"])
    begin, start_s = 0, timing.began_s[-1]
    compiled = [index for index, each in enumerate(fine) if each.get("compile") is True]
    for index in (*compiled, len(fine)):
        warm = fine[begin:index]
        if warm:
            seconds = [each["dt_s"] for each in warm]
            timing.intervals.add_all(seconds)
            timing.steps.add(timing._step, seconds, [start_s + each["t_s"] for each in warm])
            timing._step += len(warm)
        if index < len(fine):
            timing._step += 1
            timing.warm_up_steps += 1
            timing.steps.add_compiled(timing._step, start_s + fine[index]["t_s"], fine[index]["dt_s"])
        begin = index + 1
    timing._clock_s = max(timing._clock_s, start_s + fine[-1]["t_s"])
    return len(lines) - len(fine)


def _measured_steps(lines: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return the steps whose two numbers can have been measured: nearly always all of them, which is quick to see."""
    try:
        numbers = [each["dt_s"] for each in lines] + [each["t_s"] for each in lines]
    except KeyError:
        numbers = []
    plain = numbers and NUMBERS.issuperset(map(type, numbers)) and math.isfinite(_sum(numbers))
    if plain and min(numbers) >= 0 and max(numbers) <= MAX_MEASURED:
        return lines
    return [each for each in lines if measured(each["dt_s"]) is not None and measured(each.get("t_s")) is not None]


def _sum(numbers: Sequence[float]) -> float:
    try:
        return float(sum(numbers))
    except OverflowError:
        return math.inf


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
    timing.began_s.append(timing._clock_s)
    resumed_after = count(data.get("resumed_after_step"))
    timing._step = timing._step if resumed_after is None else resumed_after
    return True


def _span(timing: Timing, data: dict[str, Any]) -> bool:
    name, seconds = data["span"], measured(data.get("s"))
    if name not in SPANS or seconds is None:
        return False
    timing.spans[name] = timing.spans.get(name, 0.0) + seconds
    if len(timing.all_spans) < MAX_SPANS:
        timing.all_spans.append(Span(name, seconds, _clock(timing, data) or timing._clock_s))
    return True


def _epoch(timing: Timing, data: dict[str, Any]) -> bool:
    number, warm_steps, steps = (count(data.get(key)) for key in ("epoch", "warm_steps", "steps"))
    seconds, compile_s = measured(data.get("s")), measured(data.get("compile_s", 0.0))
    if number is None or warm_steps is None or seconds is None or compile_s is None:
        return False
    if len(timing.epochs) < MAX_EPOCHS:
        wait_s, ended_s = measured(data.get("wait_s")), _clock(timing, data)
        timing.epochs.append(Epoch(number, seconds, warm_steps, steps or warm_steps, compile_s, wait_s, ended_s))
    return True


def _clock(timing: Timing, data: dict[str, Any]) -> float | None:
    """Return when the line's span or epoch ended, on the clock of the job; None where the line does not say it."""
    at = measured(data.get("t_s"))
    if at is None:
        return None
    timing._clock_s = max(timing._clock_s, timing.began_s[-1] + at)
    return timing.began_s[-1] + at
