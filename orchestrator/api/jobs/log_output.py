"""The output of a job: one log file per worker, with its beginning and its end, and log events; secrets in neither."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.api.jobs.metrics import Paced, RunMetrics
from orchestrator.api.session.events import Bar
from orchestrator.api.session.reporter import Reporter
from orchestrator.errors import ConfigError
from orchestrator.hosts.shipping.ignore import mark_run
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.report.files.artifact_files import log_directory
from orchestrator.system import private_files
from orchestrator.text.redaction import RedactedStream
from orchestrator.text.terminal import LeftOut, LineSplitter, gap_line

if TYPE_CHECKING:
    from orchestrator.job.job_spec import JobSpec


LINE_BYTES = 1 << 16  # in which the end of a line is looked for
PIECE_BYTES = 1 << 20


class LogFile:
    """A file that grows to `most_bytes`; then its middle goes, so that half is the beginning and a quarter the end.

    Raises OSError, as every method. `anew`: what is written comes from the first byte again. What is there already stays as far
    as it is the same: others read along, and this process may be killed before it has fetched it all.
    """

    def __init__(self, path: Path, most_bytes: int | None, *, anew: bool) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._file = private_files.open_file(path, "a+b", buffering=0)
        # What is behind this was there before, and may come again.
        self._size = 0 if anew else os.fstat(self._file.fileno()).st_size
        self._beginning: int | None = None  # its size, once something is left out
        self._end_at = self._left_out_bytes = 0  # where the end begins

    def write(self, data: bytes) -> None:
        if not data.startswith(there := os.pread(self._file.fileno(), len(data), self._size)):
            self._file.truncate(self._size)
            there = b""
        self._size += len(there) + self._file.write(data[len(there) :])
        if self._most_bytes is not None and self._size > self._most_bytes:
            self._leave_out(self._size - self._most_bytes // 4)

    def skip(self, size_bytes: int) -> None:
        """Leave out what does not come, and what came since the beginning: a file has one gap."""
        self._left_out_bytes += size_bytes
        self._leave_out(self._size)

    def close(self) -> None:
        self._file.close()

    def _leave_out(self, end_at: int) -> None:
        """Leave out what is between the beginning and `end_at`, to the end of a line."""
        self._file.truncate(self._size)
        with self._path.open("r+b", buffering=0) as opened:
            file, size = opened.fileno(), self._size
            if self._beginning is None:
                self._beginning = self._end_at = min(end_at, (self._most_bytes or 2 * end_at) // 2)
            end_at += os.pread(file, LINE_BYTES, end_at).find(b"\n") + 1
            self._left_out_bytes += end_at - self._end_at
            said = f"{gap_line(self._left_out_bytes)}\n".encode()
            if os.pread(file, 1, max(self._beginning - 1, 0)) not in (b"\n", b""):
                said = b"\n" + said
            self._end_at = at = self._beginning + os.pwrite(file, said, self._beginning)
            while piece := os.pread(file, min(PIECE_BYTES, size - end_at), end_at):
                written = os.pwrite(file, piece, at)
                at, end_at = at + written, end_at + written
            self._size = opened.truncate(at)


NO_SPEC = RunSpec()
BAR_S = 1.0  # between two states of a progress bar


def make_directory(path: Path, hint: str = "`runs_dir:` in the settings names another place") -> None:
    """Create a directory for results, for this user only, that neither git nor a job takes along. Raises ConfigError."""
    try:
        private_files.make_directory(path, exist_ok=False)
        mark_run(path)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be created: {error.strerror}", hint=hint) from error


class JobOutput:
    """The sink of the job's output, called from any thread. Writes `logs/worker<i>.log` and reports lines, without secrets.

    `spec` bounds the files (`limits.max_log`), and has patterns that find metrics in the lines and in the states of a progress
    bar; `metrics` is the sink of worker 0's metrics.jsonl. `anew`: the output comes from its first byte again; see LogFile.
    """

    def __init__(
        self, directory: Path, reporter: Reporter, spec: JobSpec | RunSpec = NO_SPEC, *, anew: bool = False
    ) -> None:
        self._directory = log_directory(directory)
        self._reporter = reporter
        self._most_bytes, self._anew = spec.limits.max_log, anew
        self._lock = threading.Lock()
        self._files: dict[int, LogFile] = {}
        self._splitters: dict[int, LineSplitter] = {}
        self._streams: dict[int, RedactedStream] = {}
        self._bars = Paced(BAR_S, self._show_bar, self._lock)
        self._shown_bars: dict[int, str] = {}
        self._full = False
        self.metrics = RunMetrics(directory, reporter, spec.metrics, anew=anew)

    def __call__(self, worker: int, data: bytes) -> None:
        with self._lock:
            stream = self._streams.setdefault(worker, RedactedStream(self._reporter.secrets))
            if isinstance(data, LeftOut):
                stream.skip()
                self._leave_out(worker, data.size_bytes)
            self._keep(worker, stream.feed(data))

    def close(self) -> None:
        with self._lock:
            self._bars.close()
            for worker, stream in self._streams.items():
                self._keep(worker, stream.flush())
                self._show(worker, self._splitters[worker].flush())
            for file in self._files.values():
                file.close()
            self.metrics.close()

    def _keep(self, worker: int, data: bytes) -> None:
        """Write to the log file, and show."""
        self._store(worker, lambda file: file.write(data))
        splitter = self._splitters.setdefault(worker, LineSplitter())
        self._show(worker, splitter.feed(data))
        if splitter.is_bar:
            self._bars.change(worker)

    def _leave_out(self, worker: int, size_bytes: int) -> None:
        """Say, in the log file and on screen, that the worker leaves out so much."""
        self._store(worker, lambda file: file.skip(size_bytes))
        if worker in self._splitters:
            self._show(worker, self._splitters[worker].flush())
        self._reporter.log(worker, (gap_line(size_bytes),))

    def _store(self, worker: int, change: Callable[[LogFile], None]) -> None:
        """Change the log file. A full disk is reported and ends the file, not the job."""
        try:
            if not self._full:
                change(self._file(worker))
        except OSError as error:
            self._full = True
            self._reporter.notice(
                "warning",
                f"{self._directory} cannot be written: {error.strerror}; what follows of the logs is in no file",
            )

    def _show(self, worker: int, lines: list[str]) -> None:
        if lines:
            self._reporter.log(worker, tuple(lines))
            is_known = self._shown_bars.pop(worker, None) == lines[0]
            self.metrics.search(worker, lines[is_known:])

    def _show_bar(self, worker: int) -> None:
        splitter = self._splitters[worker]
        if splitter.is_bar and (line := splitter.bar()) != self._shown_bars.get(worker):
            self._shown_bars[worker] = line
            self._reporter.emit(Bar(worker, line))
            self.metrics.search(worker, [line])

    def _file(self, worker: int) -> LogFile:
        if worker not in self._files:
            private_files.make_directory(self._directory)
            path = self._directory / f"worker{worker}.log"
            self._files[worker] = LogFile(path, self._most_bytes, anew=self._anew)
        return self._files[worker]
