"""Which workers' logs a person sees while a job runs: all of a few workers, worker 0 of many, or those that are asked for.

Events and log files have every line. Of a hidden worker that fails the last lines are kept, since they say why.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.api.session.events import Bar, LogLines, WorkerEnded, Workers, relative
from orchestrator.errors import UserError
from orchestrator.text.terminal import masked, worker_names

ALL_BELOW = 8  # so many workers are too many to read all of their lines
TAIL_LINES, TAIL_CHARS = 20, 1000  # kept of a hidden worker, and of each of its lines

Choice = Literal["all"] | tuple[int, ...] | None  # None: by the number of workers


@dataclass(frozen=True, slots=True)
class Others:
    """The workers whose logs are hidden: how many there are, how many ended and failed, and seconds since the last output."""

    count: int
    ended: int
    failed: int
    quiet_s: float | None  # None: none of them has printed anything yet


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of the log of a hidden worker that failed. `heading` names the worker, its exit code and its log file."""

    worker: int
    heading: str
    lines: tuple[str, ...]


def choice(option: str, text: str | None) -> Choice:
    """Return what the value of an option asks for: `all`, or indexes such as `0` or `0,3`. Raises UserError."""
    if text is None or text == "all":
        return text  # type: ignore[return-value]
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise UserError(f"{option} {text}: expected `all`, or workers by their indexes such as 0 or 0,3")
    return tuple(sorted({int(word) for word in words}))


def check(option: str, chosen: Choice, count: int) -> None:
    """Raise UserError for a worker that a job on so many workers does not have."""
    missing = [worker for worker in chosen if worker >= count] if isinstance(chosen, tuple) else []
    if missing:
        there = "the only one is worker0" if count == 1 else f"there are {worker_names(range(count))}"
        raise UserError(f"{option}: there is no {worker_names(missing).replace(' and ', ' or ')}; {there}")


def is_shown(chosen: Choice, worker: int, count: int | None) -> bool:
    """Return whether the log of this worker is shown. `count`: of all workers; None: not known yet."""
    if chosen is None:
        return count is None or count < ALL_BELOW or worker == 0
    return chosen == "all" or worker in chosen


def announcement(chosen: Choice, count: int, logs: Path, option: str = "") -> str:
    """Return what is shown, where the rest is, and which option shows it; empty if everything is shown."""
    shown = [worker for worker in range(count) if is_shown(chosen, worker, count)]
    if len(shown) == count:
        return ""
    hidden = (
        f"the logs of the other {count - len(shown)} are" if count - len(shown) > 1 else "the log of the other one is"
    )
    more = f"; {option} all shows {'them' if count - len(shown) > 1 else 'it'}" if option else ""
    return f"showing {worker_names(shown) or 'no worker'}; {hidden} in {relative(logs)}{more}"


class ShownLogs:
    """Follows one job by its events. `option` is named as what shows more; `now`: seconds of a steady clock."""

    def __init__(self, chosen: Choice = None, option: str = "", now: Callable[[], float] = time.monotonic) -> None:
        self._chosen, self._option, self._now = chosen, option, now
        self._workers: Workers | None = None
        self._told = self._to_tell = ""
        self._tails: dict[int, deque[str]] = {}
        self._printed_at: float | None = None  # by a hidden worker
        self._phase = ""
        self._ends: dict[int, WorkerEnded] = {}  # in this phase, in the order in which they came
        self._explained = False  # why the phase failed

    def begin(self, event: Workers) -> None:
        """The job gets its workers; after the loss of a slice, others."""
        self._workers = event
        text = announcement(self._chosen, event.count, event.logs, self._option)
        self._to_tell = text if text != self._told else ""
        self._tails.clear()
        self._begin_phase("")

    def announce(self) -> str:
        """Return what is shown, the first time that there is something to show; else an empty text."""
        text, self._to_tell = self._to_tell, ""
        self._told = text or self._told
        return text

    def takes(self, event: LogLines | Bar) -> bool:
        """Return whether to show these lines. The last ones of every worker are kept."""
        kept = self._tails.setdefault(event.worker, deque(maxlen=TAIL_LINES))
        if isinstance(event, LogLines):
            kept.extend(line[:TAIL_CHARS] for line in event.lines[-TAIL_LINES:])
        if self._is_shown(event.worker):
            return True
        self._printed_at = self._now()
        return False

    def end(self, event: WorkerEnded) -> None:
        """A phase has ended on a worker."""
        if event.phase != self._phase:
            self._begin_phase(event.phase)
        self._ends[event.worker] = event

    def explanation(self) -> Tail | None:
        """Return, once, the end of the log of the first worker that failed, unless what is shown says the same already."""
        failed = [] if self._explained else [end for end in self._ends.values() if _has_failed(end)]
        if not failed or self._workers is None:
            return None
        self._explained = True
        said = {self._likeness(end) for end in failed if self._is_shown(end.worker)}
        hidden = [end for end in failed if not self._is_shown(end.worker) and self._likeness(end) not in said]
        return self._tail(hidden[0], self._workers.logs) if hidden else None

    def others(self) -> Others | None:
        """Return what the hidden workers do; None if there are none."""
        hidden = (
            [] if self._workers is None else [each for each in range(self._workers.count) if not self._is_shown(each)]
        )
        ends = [self._ends[worker] for worker in hidden if worker in self._ends]
        failed = sum(map(_has_failed, ends))
        quiet_s = None if self._printed_at is None else self._now() - self._printed_at
        return Others(len(hidden), len(ends) - failed, failed, quiet_s) if hidden else None

    def _begin_phase(self, phase: str) -> None:
        self._phase, self._explained = phase, False
        self._ends.clear()

    def _is_shown(self, worker: int) -> bool:
        return is_shown(self._chosen, worker, None if self._workers is None else self._workers.count)

    def _likeness(self, end: WorkerEnded) -> tuple[int | None, str]:
        return end.exit_code, masked(next(filter(str.strip, reversed(self._tails.get(end.worker, ()))), ""))

    def _tail(self, end: WorkerEnded, logs: Path) -> Tail:
        lines = tuple(self._tails.get(end.worker, ()))
        how = f"worker{end.worker} " + ("was lost" if end.exit_code is None else f"ended with {end.exit_code}")
        path = relative(logs / f"worker{end.worker}.log")
        heading = f"{how}; the end of its log ({path}):" if lines else f"{how} and printed nothing"
        return Tail(end.worker, heading, lines)


def _has_failed(end: WorkerEnded) -> bool:
    return end.exit_code != 0 and not end.stopped
