"""The output of a job: one log file per worker, and log events; secrets in neither."""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Literal

from orchestrator import private_files
from orchestrator.client.events import Bar, Reporter
from orchestrator.client.jobs.metrics import RunMetrics
from orchestrator.client.jobs.paced import Paced
from orchestrator.core.text.redaction import RedactedStream
from orchestrator.errors import ConfigError
from orchestrator.remote.shipping.ignore import mark_run
from orchestrator.report.files.log_files import log_directory

BAR_S = 1.0  # between two states of a progress bar


def make_directory(path: Path) -> None:
    """Create the directory of a run, for this user only. Raises ConfigError."""
    try:
        private_files.make_directory(path, exist_ok=False)
        mark_run(path)
    except OSError as error:
        hint = "`runs_dir:` in the settings names another place"
        raise ConfigError(f"{error.filename} cannot be created: {error.strerror}", hint=hint) from error


class JobOutput:
    """The sink of the job's output, called from any thread. Writes `logs/worker<i>.log` and reports lines, without secrets.

    `anew`: the output comes from its first byte again, so the files are written anew too. `patterns` find metrics in the lines,
    and in the states of a progress bar; `metrics` is the sink of worker 0's metrics.jsonl.
    """

    def __init__(
        self, directory: Path, reporter: Reporter, *, anew: bool = False, patterns: Mapping[str, str] | None = None
    ) -> None:
        from orchestrator.core.text.terminal import LineSplitter

        self._directory = log_directory(directory)
        self._new_splitter = LineSplitter
        self._reporter = reporter
        self._mode: Literal["ab", "wb"] = "wb" if anew else "ab"
        self._lock = threading.Lock()
        self._files: dict[int, IO[bytes]] = {}
        self._splitters: dict[int, LineSplitter] = {}
        self._streams: dict[int, RedactedStream] = {}
        self._bars = Paced(BAR_S, self._show_bar, self._lock)
        self._shown_bars: dict[int, str] = {}
        self._full = False
        self.metrics = RunMetrics(directory, reporter, patterns, anew=anew)

    def __call__(self, worker: int, data: bytes) -> None:
        with self._lock:
            stream = self._streams.setdefault(worker, RedactedStream(self._reporter.secrets))
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
        """Write to the log file. A full disk is reported and ends the file, not the job."""
        try:
            if not self._full:
                self._file(worker).write(data)
        except OSError as error:
            self._full = True
            self._reporter.notice(
                "warning",
                f"{self._directory} cannot be written: {error.strerror}; what follows of the logs is in no file",
            )
        if worker not in self._splitters:
            self._splitters[worker] = self._new_splitter()
        self._show(worker, self._splitters[worker].feed(data))
        if self._splitters[worker].is_bar:
            self._bars.change(worker)

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

    def _file(self, worker: int) -> IO[bytes]:
        if worker not in self._files:
            private_files.make_directory(self._directory)
            path = self._directory / f"worker{worker}.log"
            self._files[worker] = private_files.open_file(path, self._mode, buffering=0)
        return self._files[worker]
