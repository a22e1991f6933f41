"""How tpujob talks to a person: stage lines on stderr, data on stdout, progress that does not scroll on a terminal.

Nothing leaves this process but through here, and nothing leaves with a secret in it (`Talk.secrets` knows them) or with
characters that steer a terminal: messages quote what files, workers and web servers said.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from orchestrator.client.events import Alert, Event, Failure, LogLines, Notice, Progress, Reporter, RunResult, relative
from orchestrator.core.text.durations import format_duration
from orchestrator.errors import TpujobError

if TYPE_CHECKING:
    from rich.status import Status

PASSING_EVERY_S = 10.0  # without a terminal, progress is a plain line now and then
BOLD_RED, RESET = "\x1b[1;31m", "\x1b[0m"


class Console:
    """One per process, called from any thread. `tell` takes the engine's lines; `say` writes our own."""

    def __init__(self) -> None:
        self.reporter = Reporter(self.show)
        self.secrets = self.reporter.secrets
        self._lock = threading.RLock()
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._color = self._live and not os.environ.get("NO_COLOR")
        self._status: Status | None = None
        self._passing = ""
        self._passed_at = 0.0
        self._streams_json = False

    def stream_json(self) -> None:
        """Print every event from now on as a JSON object on a line of stdout, and nothing else there."""
        self._streams_json = True

    def show(self, event: Event) -> None:
        """Render one event. Called by `reporter`, from any thread."""
        with self._lock:
            if self._streams_json:
                self._stream(event)
            match event:
                case Progress():
                    with contextlib.suppress(OSError, ValueError):
                        self._pass(event.stage, event.text)
                case Notice():
                    self.say(event.stage, event.text)
                case Alert():
                    self.loud(event.text)
                case Failure():
                    self._fail(event.message, event.hint)
                case LogLines() if not self._streams_json:
                    emit("\n".join(f"worker{event.worker} | {line}" for line in event.lines))
                case RunResult():
                    self._show_result(event)

    def _show_result(self, result: RunResult) -> None:
        self.quiet()
        if not self._streams_json:
            for line in result.lines:
                emit(line)
        if not result.detached:
            took = format_duration(result.ended_at - result.started_at)
            self.say("run", f"{result.run} · {took} · {relative(result.directory)} · tpujob show {result.run}")

    def _stream(self, event: Event) -> None:
        shape = json.loads(json.dumps(event.as_json(), default=str))
        text = json.dumps(self.secrets.hide_all(shape), ensure_ascii=False)
        _print(text if text.isprintable() else json.dumps(json.loads(text)))

    def say(self, stage: str, text: str) -> None:
        self.quiet()
        self._write(f"{stage:<8} {text}")
        self._passing, self._passed_at = "", time.monotonic()

    def loud(self, text: str) -> None:
        """What must not be overlooked."""
        self.quiet()
        self._write(text, color=BOLD_RED if self._color else "")

    def fail(self, error: TpujobError) -> None:
        self.reporter.fail(error)

    def _fail(self, message: str, hint: str) -> None:
        self.quiet()
        self._write(message)
        if hint:
            self._write(f"hint: {hint}")

    def quiet(self) -> None:
        """Take the progress line away (before anything else is written)."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            status, self._status = self._status, None
            if status is not None:
                status.stop()

    def _pass(self, stage: str, text: str) -> None:
        if self._live:
            self._spin(self.fit(f"{stage:<8} {text}"))
        elif stage != self._passing:
            self._passing, self._passed_at = stage, time.monotonic()  # news only if it lasts
        elif time.monotonic() - self._passed_at >= PASSING_EVERY_S:
            self.say(stage, text)
            self._passing = stage

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
        """As it may be shown: one line or several."""
        if not text.isprintable():
            from orchestrator.remote.ssh.terminal import harmless

            text = "\n".join(harmless(line) for line in text.split("\n"))
        return self.secrets.hide(text)

    def _write(self, text: str, color: str = "") -> None:
        text = self.fit(text)
        with contextlib.suppress(OSError, ValueError):  # nobody listens any more; that must not stop a teardown
            print(f"{color}{text}{RESET}" if color else text, file=sys.stderr, flush=True)


@functools.cache
def console() -> Console:
    """The one voice of this process."""
    return Console()


def emit(text: str = "") -> None:
    """One line of data on stdout. A reader that left is no error; a disk that is full is said, once, and the work goes on."""
    _print(console().fit(text))


def _print(text: str) -> None:
    console().quiet()
    try:
        print(text, flush=True)
    except (OSError, ValueError) as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - stays open until we end
        if not isinstance(error, BrokenPipeError):
            console().say("warning", f"stdout cannot be written: {error}")


def emit_json(data: Any) -> None:
    # Values, not the text: a number that looks like a secret must not end what is well-formed.
    plain = json.loads(json.dumps(data, default=str))
    text = json.dumps(console().secrets.hide_all(plain), indent=2, ensure_ascii=False)
    _print(text if text.replace("\n", "").isprintable() else json.dumps(json.loads(text), indent=2))
