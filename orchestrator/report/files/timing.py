"""The times of a training in a bounded number of figures: its steps and epochs with their spread, the spans between. Pure.

A step has a number, counted over the whole training, and a time: seconds of all sessions of the job, one after the other.

Means come from the drained ends of epochs, which are exact; a spread is known only where each step was drained
(`timing: drained`). `timing_file` reads them.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import NamedTuple

from orchestrator.report.files.metrics import Curve

PIECES = 500  # in which the rates are kept; up to twice as many
BINS_PER_E = 500.0  # of the logarithm of a step's time: two values in one bin differ by 0.2 %
MOST_COMPILED = 500
LEAST_S = 1e-9  # of a step that took any time: a rate is a number


class Piece(NamedTuple):
    """Steps that compiled nothing, one after the other; others may be between them. `step`, `at_s`: of the last of them."""

    step: int
    began_s: float
    at_s: float
    steps: int
    seconds: float  # of these steps


class CompiledStep(NamedTuple):
    step: int
    at_s: float  # its end
    seconds: float


class Bin(NamedTuple):
    """How many steps took from `low_s` up to `high_s`. None: there is no such end."""

    low_s: float | None
    high_s: float | None
    steps: int


@dataclass(slots=True)
class StepTimes:
    """What is known of the steps so far."""

    pieces: list[Piece] = field(default_factory=list)
    compiled: list[CompiledStep] = field(default_factory=list)
    curve: Curve = field(default_factory=lambda: Curve(1_000))  # seconds by step
    _width: int = 1
    _bins: Counter[int] = field(default_factory=Counter)

    def add(self, before: int, seconds: Sequence[float], at_s: Sequence[float]) -> None:
        """Add steps that compiled nothing; `before` is how many steps the training had before the first of them."""
        for begin in range(0, len(seconds), self._width):
            part = seconds[begin : begin + self._width]
            end = begin + len(part)
            began_s = max(at_s[begin] - part[0], 0.0)
            self.pieces.append(Piece(before + end, began_s, at_s[end - 1], len(part), sum(part)))
        while len(self.pieces) > 2 * PIECES:
            self.pieces = [_joined(self.pieces[index : index + 2]) for index in range(0, len(self.pieces), 2)]
            self._width *= 2
        positive = seconds if min(seconds) >= LEAST_S else [value for value in seconds if value >= LEAST_S]
        self._bins.update(map(math.floor, map(BINS_PER_E.__mul__, map(math.log, positive))))
        self.curve.add(seconds, lambda index: before + index + 1)

    def add_compiled(self, step: int, at_s: float, seconds: float) -> None:
        """Add a step that compiled a program."""
        if len(self.compiled) < MOST_COMPILED:
            self.compiled.append(CompiledStep(step, at_s, seconds))

    def clock(self) -> list[tuple[int, float]]:
        """Return at which second which step ended, by step, for some of the steps."""
        return sorted([*((p.step, p.at_s) for p in self.pieces), *((c.step, c.at_s) for c in self.compiled)])

    def quantile(self, share: float) -> float | None:
        """Return the seconds below which this share of the steps is, within 0.2 %; None without steps."""
        total, below = self._bins.total(), 0
        for number in sorted(self._bins):
            below += self._bins[number]
            if below >= share * total:
                return math.exp((number + 0.5) / BINS_PER_E)
        return None

    def histogram(self, most: int = 30) -> list[Bin]:
        """Return bins of equal width from the fastest step to the 99th percentile, and one for what is slower."""
        if not self._bins:
            return []
        low, high = math.exp(min(self._bins) / BINS_PER_E), math.exp((max(self._bins) + 1) / BINS_PER_E)
        top = (self.quantile(0.99) or high) * math.exp(0.5 / BINS_PER_E)  # the upper end of its bin
        top = high if high <= low + 1.3 * (top - low) else top
        width = (top - low) / most
        counts = [0] * (most + 1)
        for number, count in self._bins.items():
            counts[min(int((math.exp((number + 0.5) / BINS_PER_E) - low) / width), most)] += count
        found = [Bin(low + width * index, low + width * (index + 1), counts[index]) for index in range(most)]
        return [*found, Bin(top, None, counts[most])] if counts[most] else found


def _joined(pieces: Sequence[Piece]) -> Piece:
    first, last = pieces[0], pieces[-1]
    return Piece(last.step, first.began_s, last.at_s, sum(p.steps for p in pieces), sum(p.seconds for p in pieces))


@dataclass(slots=True)
class Spread:
    """Mean and standard deviation of what was added so far, in one pass."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, values: Sequence[float]) -> None:
        """Add values, at least one (the parallel form of Welford's)."""
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

    def sessions_at(self, ran: Sequence[float]) -> list[tuple[float, float]]:
        """Return when each session began: on the clock of the job, and when its attempt ran, of `ran` in their order."""
        count = len(self.began_s)
        begun = [*ran[max(len(ran) - count, 0) :]]
        begun = (begun[:1] or [0.0]) * (count - len(begun)) + begun
        return list(zip(self.began_s, begun, strict=True))

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
        spread, whole = Spread(), [epoch.seconds for epoch in self.epochs if epoch.whole]
        warm = [epoch for epoch in self.epochs if epoch.warm_steps]
        if seconds := whole or [epoch.seconds / epoch.warm_steps * epoch.steps for epoch in warm]:
            spread.add(seconds)
        return spread, bool(seconds) and not whole
