"""The output of the commands: stage lines on stderr, data on stdout, progress that does not scroll on a terminal.

All output passes through here, without secrets (`Console.secrets` hides them) and without control characters: messages
quote files, workers and web servers, which may send anything.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from orchestrator.client.events import Alert, Event, Failure, LogLines, Notice, Progress, Reporter, RunResult, relative
from orchestrator.core.text.durations import format_duration

if TYPE_CHECKING:
    from rich.status import Status

PROGRESS_EVERY_S = 10.0  # without a terminal, progress is a plain line this often
BOLD_RED, RESET = "\x1b[1;31m", "\x1b[0m"


class Console:
    """Renders the client's events. One per process, called from any thread."""

    def __init__(self) -> None:
        self.reporter = Reporter(self.show)
        self.secrets = self.reporter.secrets
        self._lock = threading.RLock()
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._color = self._live and not os.environ.get("NO_COLOR")
        self._status: Status | None = None
        self._progress_stage = ""
        self._progress_at = 0.0
        self._streams_json = False
        self._log_is_data = True

    def stream_json(self) -> None:
        """Print every event from now on as a JSON object on a line of stdout, and nothing else there."""
        self._streams_json = True

    def print_only_ids(self) -> None:
        """Print on stdout only the lines of a run that goes on; the log so far and the lines of any other end go to stderr."""
        self._log_is_data = False

    def show(self, event: Event) -> None:
        """Render one event. Called by `reporter`, from any thread."""
        with self._lock:
            if self._streams_json:
                _print(self.json_text(event.as_json()))
            match event:
                case Progress():
                    with contextlib.suppress(OSError, ValueError):
                        self._progress(event.stage, event.text)
                case Notice():
                    self.notice(event.stage, event.text)
                case Alert():
                    self.alert(event.text)
                case Failure():
                    self._fail(event.message, event.hint)
                case LogLines() if not self._streams_json:
                    self._show_lines(["\n".join(f"worker{event.worker} | {line}" for line in event.lines)])
                case RunResult():
                    self._show_result(event)

    def _show_result(self, result: RunResult) -> None:
        self.quiet()
        if not self._streams_json:
            self._show_lines(result.lines, data=result.detached)
        if result.ended_at is not None:
            took = format_duration(result.ended_at - result.started_at)
            self.notice("run", f"{result.run} · {took} · {relative(result.directory)} · tpujob show {result.run}")

    def _show_lines(self, lines: Iterable[str], *, data: bool = False) -> None:
        if data or self._log_is_data:
            emit_lines(lines)
        else:
            self._write("\n".join(lines))

    def notice(self, stage: str, text: str) -> None:
        self.quiet()
        self._write(f"{stage:<8} {text}")
        self._progress_stage, self._progress_at = "", time.monotonic()

    def alert(self, text: str) -> None:
        """Write what must not be overlooked, in red on a terminal."""
        self.quiet()
        self._write(text, color=BOLD_RED if self._color else "")

    def _fail(self, message: str, hint: str) -> None:
        self.quiet()
        self._write(message)
        if hint:
            self._write(f"hint: {hint}")

    def quiet(self) -> None:
        """Remove the progress line, before anything else is written."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            status, self._status = self._status, None
            if status is not None:
                status.stop()

    def _progress(self, stage: str, text: str) -> None:
        if self._live:
            self._spin(self.fit(f"{stage:<8} {text}"))
        elif stage != self._progress_stage:
            self._progress_stage, self._progress_at = stage, time.monotonic()  # worth a line only if it lasts
        elif time.monotonic() - self._progress_at >= PROGRESS_EVERY_S:
            self.notice(stage, text)
            self._progress_stage = stage

    def _spin(self, text: str) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.status import Status

        if self._status is None:
            self._status = Status(escape(text), console=Console(stderr=True, highlight=False), spinner="dots")
            self._status.start()
        else:
            self._status.update(escape(text))

    def fit(self, text: str) -> str:
        """Return the text, of one line or several, without control characters and secrets."""
        if not text.isprintable():
            from orchestrator.core.text.terminal import harmless

            text = "\n".join(harmless(line) for line in text.split("\n"))
        return self.secrets.hide(text)

    def json_text(self, data: Any, indent: int | None = None) -> str:
        """Return the data as JSON without secrets, escaped where a character cannot be printed."""
        # Secrets are hidden in values, not in the text: a number that looks like one must not make the JSON invalid.
        plain = self.secrets.hide_all(_plain(data))
        text = json.dumps(plain, indent=indent, ensure_ascii=False)
        return text if text.replace("\n", "").isprintable() else json.dumps(plain, indent=indent)

    def _write(self, text: str, color: str = "") -> None:
        text = self.fit(text)
        with contextlib.suppress(OSError, ValueError):  # a reader that left must not stop a teardown
            print(f"{color}{text}{RESET}" if color else text, file=sys.stderr, flush=True)


@functools.cache
def console() -> Console:
    """Return the console of this process."""
    return Console()


def emit(text: str = "") -> None:
    """Print a line of data on stdout. A reader that left is no error; a full disk is one warning, and the command goes on."""
    _print(console().fit(text))


def _print(text: str) -> None:
    console().quiet()
    try:
        print(text, flush=True)
    except (OSError, ValueError) as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the process ends
        if not isinstance(error, BrokenPipeError):
            console().notice("warning", f"stdout cannot be written: {error}")


def emit_drawn(text: str) -> None:
    """Print text on stdout that was drawn from clean cells: what it holds of escapes is color."""
    _print(text)


def emit_lines(lines: Iterable[str]) -> None:
    """Print lines of data on stdout."""
    for line in lines:
        emit(line)


def emit_result(shape: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the result of a command: its shape as JSON, or its lines."""
    if as_json:
        emit_json(shape)
    else:
        emit_lines(lines)


def emit_json(data: Any) -> None:
    """Print JSON on stdout, without secrets. Values of other types become text."""
    _print(console().json_text(data, indent=2))


def _plain(data: Any) -> Any:
    """Return the data as JSON values: other types as text, NaN and infinities, which JSON lacks, as null."""
    return json.loads(json.dumps(data, default=str), parse_constant=lambda _: None)
