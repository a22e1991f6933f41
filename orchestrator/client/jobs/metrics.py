"""The metrics of a run while it goes on: from worker 0's `metrics.jsonl`, and from log lines that `metrics:` patterns match.

What the patterns find goes to `metrics.jsonl` of the run's directory. The followed file is kept beside the logs until its
artifact is collected, which is then not read again as a whole. `report.files.metrics` reads both; the newest values are
reported as events, a few times a second.
"""

import contextlib
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from orchestrator import private_files, whole_file
from orchestrator.client.events import Metrics, Reporter
from orchestrator.client.jobs.paced import Paced
from orchestrator.client.jobs.step_times import StepTimes
from orchestrator.core.text.metric_lines import MetricLine, line_of, step_of
from orchestrator.core.text.redaction import RedactedStream
from orchestrator.report.files.metric_sums import MetricSums
from orchestrator.report.files.metrics import Followed, collected_path, found_path, live_path, name_hash, names_path

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
        """Take the next bytes of the file; b"" says that it begins anew."""
        with self._lock:
            if not data:
                self._close_live()
                self._live, self._followed = _opened(live_path(self._directory), "wb"), Followed()
                self._stream.flush()
                return
            _write(self._live, self._stream.feed(data))
            found = self._followed.feed(data)
            self._learn_names()
            self._note_all(worker, found)

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
            if collected_path(self._directory).exists():
                live_path(self._directory).unlink(missing_ok=True)
                self._followed.read_on(self._directory)
                self._learn_names()

    def _learn_names(self) -> None:
        """Find the names that hold a secret, and write them down for commands that do not know it."""
        new = self._followed.sums.names - self._names.keys()
        self._names |= {name: self._reporter.secrets.hide(name) for name in new}
        if any(self._names[name] != name for name in new):
            hidden = {name_hash(name): shown for name, shown in self._names.items() if shown != name}
            with contextlib.suppress(OSError):
                whole_file.replace(names_path(self._directory), json.dumps(hidden))

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
            self._found = _opened(found_path(self._directory), "wb" if self._anew else "ab")
        _write(self._found, "".join(f"{json.dumps(row)}\n" for row in rows).encode())

    def _close_live(self) -> None:
        if self._live is not None:
            self._live.close()


def _compiled(patterns: Mapping[str, str]) -> dict[str, Any]:
    if not patterns:
        return {}
    import regex  # not `re`: its search can be given a time limit, and lets other threads run meanwhile

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
