"""The times of a training: seconds per step and per epoch with their spread, without warm-up, and the spans between. Pure.

Means come from the drained ends of epochs, which are exact; a spread is known only where each step was drained
(`timing: drained`). `timing_file` reads them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul

from orchestrator.report.files.step_times import StepTimes


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
        from_mean = [value - mean for value in values]
        squares = math.fsum(map(mul, from_mean, from_mean))
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
    profiled_steps: int = 0  # that a profiler traced
    first_step_s: float | None = None  # from the start of the command to the end of its first step
    epochs: list[Epoch] = field(default_factory=list)
    spans: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    steps: StepTimes = field(default_factory=StepTimes)
    all_spans: list[Span] = field(default_factory=list)  # in their order
    began_s: list[float] = field(default_factory=list)

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
