"""Times of steps, epochs and phases on an asynchronous device, written to timing.jsonl.

A step is timed when it is dispatched, so the time between two readings is the interval between dispatches, not the duration
of a step. The device is drained at both ends of an epoch, which makes the epoch's time exact. A step that compiled a program
is recognised by the compile counter, drained, and counted separately, and so are the steps that a profiler traced.
`timing: drained` drains after each step: then the time of each step is exact, at the cost of waiting.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

SCHEMA = 1
FLUSH_S = 1.0  # the longest delay of a line in the file, for readers that follow it

Item = TypeVar("Item")

FIELDS = {
    "t_s": "seconds from the start of the command to the end of what the line describes",
    "dt_s": "seconds since the previous step; stamped: between two dispatches, drained: the step itself",
    "s": "seconds, without compiling",
    "compile_s": "seconds of the steps that compiled, left out of s",
    "compile": "this step compiled a program: warm-up",
    "profile": "a profiler traced this step, which slows it: left out of s, as the start and the end of the profiler are",
    "wait_s": "seconds of s in which the program waited for its next batch",
    "step_std_s": "standard deviation of dt_s, steps that compiled left out",
    "images_per_s": "images of the steps that did not compile, over s",
}


@dataclass(frozen=True)
class EpochTime:
    seconds: float  # drained to drained, without the steps that compiled
    warm_steps: int
    compile_s: float
    wait_s: float = 0.0  # for data
    step_std_s: float | None = None  # of the steps' `dt_s`, whose meaning depends on the timing mode

    def described(self) -> dict[str, Any]:
        """Return the fields of an epoch in metrics.json, in seconds."""
        return {**asdict(self), "step_mean_s": self.seconds / self.warm_steps if self.warm_steps else None}


class Clock:
    """The times of one process. Writes timing.jsonl if it has a `path`. All times are seconds of `monotonic`."""

    def __init__(
        self,
        started: float,
        *,
        path: Path | None = None,
        append: bool = False,  # keep the lines in the file: the training is resumed
        header: dict[str, Any] | None = None,
        compiles: Callable[[], int] = lambda: 0,
        drain: Callable[[], None] = lambda: None,
        drained: bool = False,
        say: Callable[[str], None] = lambda line: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spans: defaultdict[str, float] = defaultdict(float)
        self.data_wait_s = 0.0
        self._started, self._monotonic, self._say = started, monotonic, say
        self._compiles, self._drain, self._drained = compiles, drain, drained
        self._file = _open(path, append) if path else None
        self._compiled = compiles()
        self._last = self._flushed = self._reported = monotonic()
        self._compiling_s = 0.0  # of the current series of compiling steps
        self._profiling = False
        self._profile_began, self._profile_but_s = 0.0, 0.0  # within an epoch; what is counted elsewhere
        self._epoch_began, self._compile_before, self._warm_steps = self._last, 0.0, 0
        self._apart_s = self._wait_s = self._wait_before_s = self._sum = self._squares = 0.0
        self._write({"schema": SCHEMA, **(header or {}), "fields": FIELDS})

    def total_s(self) -> float:
        """Return the seconds since the start of the command."""
        return self._monotonic() - self._started

    def add(self, name: str, began: float, ended: float, *, but_s: float = 0.0) -> None:
        """Record a span between two readings of the monotonic clock, less `but_s` seconds."""
        seconds = ended - began - but_s
        self.spans[name] += seconds
        self._write({"span": name, "t_s": self._t(ended), "s": round(seconds, 4)})

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record the seconds of a block, less those of compiling in it. Drains the device at both ends."""
        self._drain()
        self._last = began = self._monotonic()
        self._compiled = self._compiles()
        compiled_before = self.spans["compile"]
        yield
        self._drain()
        self._end_compiling()
        self._last = self._monotonic()
        compiled_s = self.spans["compile"] - compiled_before
        self._apart_s += self._last - began - compiled_s  # an epoch around it does not count it
        self._profile_but_s += self._last - began - compiled_s  # nor does a profile
        self.add(name, began, self._last, but_s=compiled_s)

    def begin_epoch(self) -> None:
        """Drain the device and start the time of an epoch."""
        self._drain()
        self._epoch_began = self._last = self._monotonic()
        self._compiled = self._compiles()  # programs compiled between two epochs belong to no step
        self._compile_before, self._warm_steps = self.spans["compile"], 0
        self._apart_s = self._wait_s = self._wait_before_s = self._sum = self._squares = 0.0
        self._profile_began, self._profile_but_s = self._last, 0.0

    def profile(self, on: bool) -> None:
        """Count the steps as traced from here on, or no longer. Drains the device. Call it before the profiler starts, and
        after it has written its trace."""
        if not on:
            self._end_profile()
        self._drain()
        self._end_compiling()
        self._profile_began = self._last = self._monotonic()
        self._profile_but_s, self._profiling = 0.0, on
        self._wait_before_s = self._wait_s
        self._compiled = self._compiles()

    def waits(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield `batches` and add the time spent in `next()` to `wait_s`."""
        iterator = iter(batches)
        while True:
            began = self._monotonic()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                self._wait_s += self._monotonic() - began
            yield batch

    def step(self, epoch: int, step: int) -> bool:
        """Record a step, and return whether it compiled a program. Call after each `Backend.sync`."""
        seconds, compiled = self.lap()
        if self._file is not None:
            kind = ',"compile":true' if compiled else ',"profile":true' if self._profiling else ""
            times = f'"t_s":{self._t(self._last):.5f},"dt_s":{seconds:.6f}'
            self._file.write(f'{{"epoch":{epoch},"step":{step},{times}{kind}}}\n')
            if self._last - self._flushed > FLUSH_S:
                self._file.flush()
                self._flushed = self._last
        return compiled

    def lap(self) -> tuple[float, bool]:
        """Return the seconds since the previous lap, and whether a program was compiled in between."""
        compiled = self._compiles()
        if warm_up := compiled != self._compiled:
            self._compiled = compiled
        if warm_up or self._drained:
            self._drain()
        now = self._monotonic()
        seconds, self._last = now - self._last, now
        if warm_up or self._profiling:
            self._wait_s = self._wait_before_s  # not of the time that counts
        self._wait_before_s = self._wait_s
        if warm_up:
            self.spans["compile"] += seconds
            self._compiling_s += seconds
            self._profile_but_s += seconds
        else:
            if not self._profiling:
                self._warm_steps += 1
                self._sum += seconds
                self._squares += seconds * seconds
            self._end_compiling()
        return seconds, warm_up

    def end_epoch(self) -> EpochTime:
        """Drain the device and return the times of the epoch."""
        self._end_profile()
        self._drain()
        self._end_compiling()
        self._last = self._monotonic()
        compile_s = self.spans["compile"] - self._compile_before
        seconds = self._last - self._epoch_began - compile_s - self._apart_s
        self.spans["train"] += seconds
        self.data_wait_s += self._wait_s
        return EpochTime(seconds, self._warm_steps, compile_s, self._wait_s, self._spread())

    def _spread(self) -> float | None:
        count = self._warm_steps
        return max(0.0, (self._squares - self._sum**2 / count) / (count - 1)) ** 0.5 if count > 1 else None

    def epoch_line(self, epoch: int, took: EpochTime, **facts: Any) -> None:
        """Write the line of an epoch: `took` and `facts`."""
        warm = {"s": round(took.seconds, 4), "compile_s": round(took.compile_s, 4), "warm_steps": took.warm_steps}
        more = {"wait_s": round(took.wait_s, 4), "step_std_s": took.step_std_s and round(took.step_std_s, 6)}
        self._write({"epoch": epoch, "t_s": self._t(self._last), **warm, **more, **facts})

    def every(self, period_s: float) -> bool:
        """Return True once in each period, for progress lines within an epoch; False while steps compile."""
        if self._compiling_s or self._last - self._reported < period_s:
            return False
        self._reported = self._last
        return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _end_profile(self) -> None:
        """Record the traced part of an epoch, if there is one, less what was counted elsewhere in it."""
        if not self._profiling:
            return
        self._drain()
        self._end_compiling()
        now = self._monotonic()
        seconds = now - self._profile_began - self._profile_but_s
        self._apart_s += seconds
        self.add("profile", self._profile_began, now, but_s=self._profile_but_s)
        self._profile_began, self._profile_but_s = now, 0.0

    def _end_compiling(self) -> None:
        if self._compiling_s:
            self._say(f"compile {self._compiling_s:.1f} s (not included in the times below)")
            self._write({"span": "compile", "t_s": self._t(self._last), "s": round(self._compiling_s, 4)})
            self._compiling_s = 0.0

    def _t(self, at: float) -> float:
        return round(at - self._started, 5)

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._file.flush()


def _open(path: Path, append: bool) -> Any:
    """Open `path` for writing. To append, first cut off the incomplete line of a killed process."""
    if append and path.exists():
        with path.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)
            os.fsync(file.fileno())
    return path.open("a" if append else "w", encoding="utf-8")
