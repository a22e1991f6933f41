"""The metrics of a run while it goes on: from worker 0's `metrics.jsonl`, and from log lines that `metrics:` patterns match.

What the patterns find goes to `metrics.jsonl` of the run's directory. The followed file is kept beside the logs until its
artifact is collected. `report.files.metrics` reads both; the newest values are reported as events, a few times a second.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import IO, Any

import regex  # not `re`: its search can be given a time limit, and lets other threads run meanwhile

from orchestrator.api.session.events import Metrics
from orchestrator.api.session.reporter import Reporter
from orchestrator.hosts.fleet.follow import Beside
from orchestrator.report.files.metrics import (
    COLLECTED,
    FOUND,
    HIDDEN_NAMES,
    LIVE,
    STEPS,
    Followed,
    MetricSums,
    name_hash,
    summarize,
)
from orchestrator.report.files.newest import BESIDE
from orchestrator.system import private_files, whole_file
from orchestrator.text.parsing import MetricLine, line_of, step_of
from orchestrator.text.redaction import RedactedStream


class Paced:
    """Calls `show` for what changed: for each of several things once in `every_s` at most, and also if nothing follows.

    `lock` is held by the caller of each method, and by the timer while it calls `show`.
    """

    def __init__(self, every_s: float, show: Callable[[int], None], lock: threading.Lock) -> None:
        self._every_s, self._show, self._lock = every_s, show, lock
        self._not_before: dict[int, float] = {}
        self._waiting: set[int] = set()
        self._timer: threading.Timer | None = None
        self._closed = False

    def change(self, key: int) -> None:
        """This one has changed. After `close` that is not shown."""
        if self._closed:
            return
        now = time.monotonic()
        if (wait_s := self._not_before.get(key, now) - now) <= 0:
            self._not_before[key] = now + self._every_s
            self._show(key)
            return
        self._waiting.add(key)
        if self._timer is None:
            self._timer = threading.Timer(wait_s, self._ring)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Show what is left."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting, self._closed = self._waiting, set(), True  # the timer may wait for the lock already
        for key in sorted(waiting):
            self._show(key)

    def _ring(self) -> None:
        with self._lock:
            self._timer = None
            waiting, self._waiting = self._waiting, set()
            for key in waiting:
                self.change(key)


LEAST_S = 0.5  # between two lines
SHARE = 0.002  # of the time so far: a day has some thousand lines


class StepTimes:
    """Writes a line now and then: a step that is higher than all before, and when it came. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STEPS
        self._file: IO[bytes] | None = None
        self._broken = False
        self._began = self._not_before = time.monotonic()
        self._highest = self._written = -1
        self._came_at = 0.0  # the highest one, in unix seconds

    def note(self, step: int | None, *, now: bool = False) -> None:
        """Take the step that the job is at; None is no step. `now`: write it, however soon after the last one."""
        if step is not None and step > self._highest:
            self._highest, self._came_at = step, time.time()
        at = time.monotonic()
        if self._highest > self._written and (now or at >= self._not_before):
            self._written = self._highest
            self._not_before = at + max(LEAST_S, SHARE * (at - self._began))
            # When it came, not now: the next attempt, which is not as far yet, may be what is noted now.
            self._write({"at": round(self._came_at, 3), "step": self._highest})

    def close(self) -> None:
        """Write the last step, and close the file."""
        self.note(None, now=True)
        if self._file is not None:
            self._file.close()

    def _write(self, line: dict[str, float]) -> None:
        if self._file is None and not self._broken:
            self._file = _opened(self._path, "ab")
            self._broken = self._file is None
        _write(self._file, json.dumps(line).encode() + b"\n")


EVERY_S = 0.25  # between two events
LINE_CHARS = 2000  # of a log line are searched
MATCH_S = 0.05  # a pattern that takes longer on so many lines is not used any more: on one, the machine may be busy
SLOW_LINES = 3


class RunMetrics:
    """The sink of worker 0's metrics.jsonl, and of the log lines for the patterns. Called from any thread."""

    def __init__(
        self, directory: Path, reporter: Reporter, patterns: Mapping[str, str] | None = None, *, anew: bool = False
    ) -> None:
        self._directory, self._reporter, self._anew = directory, reporter, anew
        self._patterns = _compiled(patterns or {})
        self._slow = dict.fromkeys(self._patterns, 0)  # lines on which each pattern took too long
        self._lock = threading.Lock()
        self._live: IO[bytes] | None = None
        self._found: IO[bytes] | None = None
        self._beside: dict[str, tuple[IO[bytes] | None, RedactedStream]] = {}  # copies of files beside it, by kind
        self._found_by: int | None = (
            None  # the lowest worker whose lines had metrics: those of the others would repeat them
        )
        self._followed, self._sums = Followed(), MetricSums()  # of the file, and of what the patterns found
        self._stream = RedactedStream(reporter.secrets)  # of the copy of that file
        self._names: dict[str, str] = {}  # as they are shown: without secrets
        self._latest: Metrics | None = None
        self._step: int | None = None
        self._values: dict[str, float | None] = {}
        self._times = StepTimes(directory)
        self._paced = Paced(EVERY_S, self._report, self._lock)

    def __call__(self, worker: int, data: bytes) -> None:
        """Take the next bytes of the file, or of one beside it; b"" says that it begins anew."""
        with self._lock:
            if isinstance(data, Beside):
                self._copy(data)
            elif not data:
                self._close_live()
                self._live, self._followed = _opened(self._directory / LIVE, "wb"), Followed()
                self._stream.flush()
            else:
                _write(self._live, self._stream.feed(data))
                found = self._followed.feed(data)
                self._learn_names(self._followed.sums.names)
                self._note_all(worker, found)

    def _copy(self, piece: Beside) -> None:
        if not piece:
            file, _ = self._beside.get(piece.kind, (None, None))
            if file is not None:
                file.close()
            opened = _opened(self._directory / BESIDE[piece.kind].live, "wb")
            self._beside[piece.kind] = opened, RedactedStream(self._reporter.secrets)
        elif piece.kind in self._beside:
            file, stream = self._beside[piece.kind]
            _write(file, stream.feed(piece))

    def search(self, worker: int, lines: Iterable[str]) -> None:
        """Search printed lines with the patterns of the job. Of several workers that print metrics, the lowest counts."""
        if not self._patterns:
            return
        with self._lock:
            if self._found_by is not None and worker > self._found_by:
                return
            rows = [row for text in lines if (row := self._match(text[:LINE_CHARS])).keys() - {"step"}]
            if rows:
                self._found_by = worker
                self._sums.add(rows)
                self._keep(rows)
            self._note(worker, list(filter(None, map(line_of, rows))))

    def close(self) -> None:
        """Report the last values, and drop the followed copy of a file that was collected."""
        with self._lock:
            self._paced.close()
            self._times.close()
            _write(self._live, self._stream.flush())
            self._close_live()
            if self._found is not None:
                self._found.close()
            for file, stream in self._beside.values():
                _write(file, stream.flush())
                if file is not None:
                    file.close()
            for each in BESIDE.values():  # also one that another process copied
                if (self._directory / each.collected).exists():
                    (self._directory / each.live).unlink(missing_ok=True)
            if (self._directory / COLLECTED).exists():
                (self._directory / LIVE).unlink(missing_ok=True)
                self._learn_names(summarize(self._directory / COLLECTED).keys())  # also those that were not followed

    def _learn_names(self, names: Set[str]) -> None:
        """Find the names that hold a secret, and write them down for commands that do not know it."""
        new = names - self._names.keys()
        self._names |= {name: self._reporter.secrets.hide(name) for name in new}
        if any(self._names[name] != name for name in new):
            hidden = {name_hash(name): shown for name, shown in self._names.items() if shown != name}
            with contextlib.suppress(OSError):
                whole_file.replace(self._directory / HIDDEN_NAMES, json.dumps(hidden))

    def _note_all(self, worker: int, found: Sequence[Any]) -> None:
        """Note what the lines of a piece hold: the highest of their steps, and the values of the last one."""
        steps = [row["step"] for row in found if type(row) is dict and "step" in row]
        self._times.note(max(filter(None, map(step_of, steps)), default=None))
        newest: list[MetricLine] = []
        for line in filter(None, map(line_of, reversed(found))):
            newest.append(line)
            if line.step is None or line.step != newest[0].step:
                break
        self._note(worker, newest[::-1])

    def _note(self, worker: int, lines: Sequence[MetricLine]) -> None:
        """Values of one step belong together, on however many lines they are."""
        for line in lines:
            if line.step is None or line.step != self._step:
                self._values = {}
            self._step = line.step
            self._times.note(line.step)
            self._values |= {self._names.get(name, name): value for name, value in line.values.items()}
        if lines:
            followed = self._followed.sums.diverged().items()
            found = self._sums.diverged() | {self._names.get(name, name): each for name, each in followed}
            diverged = {name: each for name, each in found.items() if self._values.get(name, 0.0) is None}
            self._latest = Metrics(worker, self._step, dict(self._values), diverged)
            self._paced.change(0)

    def _report(self, _: int) -> None:
        if self._latest is not None:
            self._reporter.emit(self._latest)

    def _match(self, text: str) -> dict[str, float]:
        row: dict[str, float] = {}
        for name, pattern in list(self._patterns.items()):
            try:
                found = pattern.search(text, timeout=MATCH_S, concurrent=True)
            except TimeoutError:
                self._slow[name] += 1
                if self._slow[name] == SLOW_LINES:
                    del self._patterns[name]
                    slow = f"the pattern took more than {MATCH_S * 1000:.0f} ms on each of {SLOW_LINES} lines"
                    self._reporter.notice("warning", f"metrics.{name}: {slow}, and is not used any more")
                continue
            value = _float(found[1]) if found and found[1] else None
            if name == "step" and value is not None:
                value = step_of(value)
            if value is not None:
                row[name] = value
        return row

    def _keep(self, rows: Sequence[Mapping[str, float]]) -> None:
        if self._found is None:
            self._found = _opened(self._directory / FOUND, "wb" if self._anew else "ab")
        _write(self._found, "".join(f"{json.dumps(row)}\n" for row in rows).encode())

    def _close_live(self) -> None:
        if self._live is not None:
            self._live.close()


def _compiled(patterns: Mapping[str, str]) -> dict[str, Any]:
    return {name: regex.compile(pattern) for name, pattern in patterns.items()}


def _float(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _opened(path: Path, mode: str) -> IO[bytes] | None:
    """A disk that takes no file costs the file, not the job: the log output reports it."""
    try:
        private_files.make_directory(path.parent)
        return private_files.open_file(path, mode, buffering=0)
    except OSError:
        return None


def _write(file: IO[bytes] | None, data: bytes) -> None:
    if file is not None:
        with contextlib.suppress(OSError, ValueError):
            file.write(data)
