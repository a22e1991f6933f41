"""The steps of a training in a bounded number of figures: rates along it, how their times are spread, which of them compiled.

A step has a number, counted over the whole training, and a time: seconds of all sessions of the job, one after the other. Pure.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.report.files.curve import Curve

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
