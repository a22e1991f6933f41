"""Read `timing.jsonl`. It grows by a line a step and comes from a worker, so it is read in pieces, to a bounded size.

Lines that make no sense are counted and dropped. payload/README.md describes the file.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from orchestrator.report.files.artifact_files import MAX_MEASURED, count, measured, pieces, remembered, short_text
from orchestrator.report.files.timing import Epoch, Span, Timing

SCHEMA = 1
NAME = "timing.jsonl"
MAX_BYTES = 256 << 20
MAX_LINE_BYTES = 16 << 10
MAX_WORKERS = 1024
MAX_EPOCHS = 100_000
MAX_SPANS = 10_000
MAX_SESSIONS = 1_000
NUMBERS = frozenset((int, float))
MODES = ("stamped", "drained")
OTHER_MODE = "the training was resumed with another `timing:`: no spread is known"
SPANS = ("import", "data", "compile", "profile", "eval", "checkpoint")


def read_run(directory: Path) -> Timing | None:
    """Return the timing of the first worker that has the file (the payload writes it on worker 0); None: no worker has."""
    for index in range(MAX_WORKERS):
        worker = directory / f"worker{index}"
        if not worker.is_dir():
            return None
        if (timing := _read_file(worker / "artifacts" / NAME)) is not None:
            return timing
    return None


def read(file: BinaryIO, *, max_bytes: int = MAX_BYTES) -> Timing:
    """Return the timing in the file, whatever is in it; `problems` tells what was dropped."""
    reader, dropped = _Reader(), 0
    problems = reader.timing.problems
    for found, senseless in pieces(file, MAX_LINE_BYTES, max_bytes=max_bytes):
        if senseless < 0:
            problems.append(f"{NAME} is larger than {max_bytes / 1e6:,.0f} MB: the rest was not read")
            break
        dropped += senseless + reader.add(found)
        if reader.is_lost:
            break
    if dropped:
        problems.append(f"{dropped:,} lines of {NAME} make no sense and were left out")
    return reader.timing


_read_file = remembered(read)


class _Reader:
    """Adds lines to a timing. `step` counts over the whole training, and `clock_s` is how far the clock of the job is.

    `is_lost`: after a header of another schema, because what follows has another one, too.
    """

    def __init__(self) -> None:
        self.timing = Timing()
        self.step = 0
        self.clock_s = 0.0
        self.is_lost = False

    def add(self, lines: Sequence[Any]) -> int:
        """Add what the lines hold; return how many of them make no sense. All steps between two other lines at once."""
        objects = [each for each in lines if type(each) is dict]
        dropped, begin = len(lines) - len(objects), 0
        for index in [number for number, each in enumerate(objects) if "dt_s" not in each]:
            dropped += self._add_steps(objects[begin:index]) + (not self._add_other(objects[index]))
            begin = index + 1
            if self.is_lost:
                return dropped
        return dropped + self._add_steps(objects[begin:])

    def _add_other(self, data: dict[str, Any]) -> bool:
        """False: the line makes no sense."""
        if "schema" in data:
            return self._add_header(data)
        if self.timing.mode is None:
            return False
        return self._add_span(data) if "span" in data else self._add_epoch(data)

    def _add_steps(self, lines: Sequence[dict[str, Any]]) -> int:
        """Add steps, those between two that are kept apart at once; return how many lines make no sense."""
        timing = self.timing
        if not lines or timing.mode is None:
            return len(lines)
        steps, seconds, ends = _measured_steps(lines)
        if not steps:
            return len(lines)
        if timing.first_step_s is None:
            timing.first_step_s = float(ends[0])
        start_s, begin = timing.began_s[-1], 0
        ends = [start_s + end for end in ends] if start_s else ends
        marked = [index for index, each in enumerate(steps) if "compile" in each or "profile" in each]
        apart = [i for i in marked if steps[i].get("compile") is True or steps[i].get("profile") is True]
        for index in (*apart, len(steps)):
            if begin < index:
                timing.intervals.add(seconds[begin:index])
                timing.steps.add(self.step, seconds[begin:index], ends[begin:index])
                self.step += index - begin
            if index < len(steps):
                self.step += 1
                if steps[index].get("compile") is True:
                    timing.warm_up_steps += 1
                    timing.steps.add_compiled(self.step, ends[index], seconds[index])
                else:
                    timing.profiled_steps += 1
            begin = index + 1
        self.clock_s = max(self.clock_s, ends[-1])
        return len(lines) - len(steps)

    def _add_header(self, data: dict[str, Any]) -> bool:
        timing = self.timing
        if data["schema"] != SCHEMA:
            known = f"schema {SCHEMA} is what this tpujob reads"
            timing.problems.append(f"{NAME} has schema {str(data['schema'])[:20]!r}, and {known}")
            self.is_lost = True
            return True
        mode = short_text(data.get("timing"))
        if mode not in MODES or timing.sessions >= MAX_SESSIONS:
            return False
        if timing.mode is not None and mode != timing.mode:
            if OTHER_MODE not in timing.problems:
                timing.problems.append(OTHER_MODE)
            mode = "stamped"
        timing.mode, timing.device = mode, short_text(data.get("device"))
        timing.processes, timing.batch_size = count(data.get("processes")), count(data.get("batch_size"))
        timing.sessions += 1
        timing.began_s.append(self.clock_s)
        resumed_after = count(data.get("resumed_after_step"))
        self.step = self.step if resumed_after is None else resumed_after
        return True

    def _add_span(self, data: dict[str, Any]) -> bool:
        name, seconds = data["span"], measured(data.get("s"))
        if name not in SPANS or seconds is None:
            return False
        self.timing.spans[name] = self.timing.spans.get(name, 0.0) + seconds
        if len(self.timing.all_spans) < MAX_SPANS:
            self.timing.all_spans.append(Span(name, seconds, self._end_of(data) or self.clock_s))
        return True

    def _add_epoch(self, data: dict[str, Any]) -> bool:
        number, warm_steps, steps = (count(data.get(key)) for key in ("epoch", "warm_steps", "steps"))
        seconds, compile_s = measured(data.get("s")), measured(data.get("compile_s", 0.0))
        if number is None or warm_steps is None or seconds is None or compile_s is None:
            return False
        if len(self.timing.epochs) < MAX_EPOCHS:
            wait_s, ended_s = measured(data.get("wait_s")), self._end_of(data)
            self.timing.epochs.append(
                Epoch(number, seconds, warm_steps, steps or warm_steps, compile_s, wait_s, ended_s)
            )
        return True

    def _end_of(self, data: dict[str, Any]) -> float | None:
        """Return when the line's span or epoch ended, on the clock of the job; None where the line does not say it."""
        at = measured(data.get("t_s"))
        if at is None:
            return None
        self.clock_s = max(self.clock_s, self.timing.began_s[-1] + at)
        return self.timing.began_s[-1] + at


def _measured_steps(lines: Sequence[dict[str, Any]]) -> tuple[Sequence[dict[str, Any]], list[float], list[float]]:
    """Return the steps whose two numbers can have been measured, their seconds and their ends: nearly always all of them."""
    if all("t_s" in each for each in lines):
        seconds, ends = [each["dt_s"] for each in lines], [each["t_s"] for each in lines]
        if _are_measured(seconds) and _are_measured(ends):
            return lines, seconds, ends
    fine = [each for each in lines if measured(each["dt_s"]) is not None and measured(each.get("t_s")) is not None]
    return fine, [each["dt_s"] for each in fine], [each["t_s"] for each in fine]


def _are_measured(numbers: Sequence[Any]) -> bool:
    """Return what `measured` says of all of these, as quickly as it can be seen."""
    if not NUMBERS.issuperset(map(type, numbers)) or min(numbers) < 0 or max(numbers) > MAX_MEASURED:
        return False
    return math.isfinite(sum(numbers))  # of NaN, `min` and `max` say nothing
