"""Renders the client's events: stage lines on stderr, data on stdout, and on a terminal one live line below both.

All output of the commands passes through a Console, without secrets (`Console.secrets` hides them) and without control
characters: messages quote files, workers and web servers, which may send anything.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from orchestrator.api.session.reporter import Reporter
from orchestrator.errors import ConfigError
from orchestrator.system.lazy import Later
from orchestrator.text.terminal import harmless
from orchestrator.text.units import format_duration

if TYPE_CHECKING:
    import shutil

    from orchestrator.api.session import events, job_line, shown_logs
    from orchestrator.cli.console import live_view
else:  # many a command has no events, no job and no terminal
    events = Later("orchestrator.api.session.events")
    job_line = Later("orchestrator.api.session.job_line")
    live_view = Later("orchestrator.cli.console.live_view")
    shown_logs = Later("orchestrator.api.session.shown_logs")
    shutil = Later("shutil")


GOOD = {"succeeded", "READY", "ACTIVE", "live", "billing"}
BAD = {"failed", "error", "unproven", "down", "not", "unknown", "PREEMPTED", "SUSPENDED", "FAILED", "TERMINATED"}
ESCAPES = {"green": "\x1b[32m", "red": "\x1b[31m", "yellow": "\x1b[33m", "": ""}
BOLD, RESET = "\x1b[1m", "\x1b[0m"
HANG = 9  # columns: a long line goes on below its text, not below its stage


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_color(stream: TextIO) -> bool:
    """Whether text on the stream may be colored."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def color_of(state: str) -> str:
    """Return green for what is as it should be, red for what failed or is not proven, yellow for what waits or goes on."""
    word = state.partition(" ")[0].rstrip(":")
    return "green" if word in GOOD else "red" if word in BAD else "yellow" if word else ""


def wrapped(text: str, stream: TextIO, indent: int = HANG) -> str:
    """Return the text with its lines wrapped at the width of a terminal, between words; unchanged elsewhere.

    What is in backticks, such as a command to copy, stays on one line, if need be on one that is too long.
    """
    return "\n".join(wrapped_to(text, shutil.get_terminal_size().columns, indent)) if stream.isatty() else text


def wrapped_to(text: str, width: int, indent: int = HANG) -> list[str]:
    """Return the lines of the text, wrapped at this width; see `wrapped`."""
    if all(len(line.expandtabs()) <= width for line in text.split("\n")):
        return text.split("\n")

    fill = functools.partial(textwrap.wrap, width=width, subsequent_indent=" " * indent, break_long_words=False)
    whole = re.sub("`[^`\n]*`", lambda found: found[0].replace(" ", "\0"), text)
    lines = (fill(line, break_on_hyphens=False) or [""] for line in whole.split("\n"))
    return [part.replace("\0", " ") for parts in lines for part in parts]


CALL_LOG = "tpujob.api"  # the logger of the calls to the API
ACTION = {"warning", "limit", "clock", "hint", "lost", "stop", "recover", "note", "held", "failed", "alive", "status", "end",
    "left", "saved", "missing", "renamed", "results", "collect", "run"}  # printed with --quiet, too  # fmt: skip
BOLD_RED = "\x1b[1;31m"


class Console:
    """Renders the client's events. One per process, called from any thread."""

    def __init__(self) -> None:
        self.reporter = Reporter(self.show)
        self.secrets = self.reporter.secrets
        self._lock = threading.RLock()
        self._live_view: live_view.LiveView | None = None  # made for the first progress
        self.streams_json = False  # every event as a JSON object on a line of stdout, and nothing else there
        # Off: on stdout are only the lines of a run that goes on; the log and the lines of any other end go to stderr.
        self.log_is_data = True
        self._chosen_logs: shown_logs.Choice = None
        self._logs_option = ""
        self._logs: dict[str, shown_logs.ShownLogs] = {}  # by the variant of a sweep; a job of its own is ""
        self.is_quiet = self._verbose = self._timestamps = False  # quiet: only results, and what needs action
        self.only_reads = False  # the command changes nothing, and is there for its output
        self.is_unread = False  # the reader of stdout has left
        self.is_cut = False  # for another reason stdout has not all of the output

    def be_quiet(self) -> None:
        """Print results from now on, and what needs action; nothing else."""
        self.is_quiet = True

    def be_verbose(self) -> None:
        """Print every step and every call to the API from now on."""
        import logging  # only with --verbose

        self._verbose = True
        handler = logging.Handler()
        handler.emit = lambda record: self.notice("api", record.getMessage())  # type: ignore[method-assign]
        calls = logging.getLogger(CALL_LOG)
        calls.setLevel(logging.DEBUG)
        calls.addHandler(handler)

    def print_times(self) -> None:
        """Print the local time before each line on stderr and of a job's log from now on."""
        self._timestamps = True

    def choose_logs(self, chosen: shown_logs.Choice) -> None:
        """Show the logs of these workers from now on, which the option `--logs` of the command names."""
        self._logs_option, self._chosen_logs = "--logs", chosen

    def show(self, event: events.Event) -> None:
        """Render one event. Called by `reporter`, from any thread."""
        with self._lock:
            if self.streams_json:
                self.out(self.json_text(event.as_json()))
            self._explain_failure(event)
            match event:
                case events.Progress():
                    self._progress(event)
                case events.Running() if not self.is_quiet:
                    self._announce_logs(event)
                    self._live().job_runs(event)
                case events.Workers():
                    self._logs_of(event).begin(event)
                case events.WorkerEnded():
                    self._logs_of(event).end(event)
                case events.Metrics() if not self.is_quiet:
                    self._live().job_reports(event)
                case events.Notice():
                    self.notice(event.stage, event.text, event.variant)
                case events.Alert():
                    self.alert(event.text)
                case events.Failure():
                    self._fail(event)
                case events.LogLines() | events.Bar() if not self.streams_json and not self.is_quiet:
                    self._announce_logs(event)
                    if self._logs_of(event).takes(event):
                        self._show_log(event)
                case events.RunResult():
                    self._show_result(event)
                case events.SweepResult():
                    self._show_sweep(event)

    def _logs_of(self, event: events.Event) -> shown_logs.ShownLogs:
        if event.variant not in self._logs:
            self._logs[event.variant] = shown_logs.ShownLogs(self._chosen_logs, self._logs_option)
        return self._logs[event.variant]

    def _announce_logs(self, event: events.Event) -> None:
        """Before the first output, say whose log is shown and where the others are."""
        if not self.streams_json and (text := self._logs_of(event).announce()):
            self.notice("logs", text, event.variant)

    def _explain_failure(self, event: events.Event) -> None:
        """Before the next step after a failure, show why a worker failed whose log is hidden."""
        if event.variant not in self._logs or not isinstance(
            event, events.Progress | events.Notice | events.Failure | events.RunResult
        ):
            return
        tail = self._logs[event.variant].explanation()
        if tail is not None and not self.streams_json and not self.is_quiet:
            self.notice("failed", tail.heading, event.variant)
            self._show_log(events.LogLines(tail.worker, tail.lines, variant=event.variant))

    def _show_log(self, event: events.LogLines | events.Bar) -> None:
        """Show lines of a log, which are clean and without secrets, or one below it that is redrawn."""
        begin = f"{_whose(event)}worker{event.worker} | "
        if isinstance(event, events.Bar):
            self._live().bar(begin, event.line)
            return
        self.bar_ended(begin)
        begin = f"{self._time()}{begin}"
        text = begin + f"\n{begin}".join(event.lines)
        text = wrapped(text, sys.stdout if self.log_is_data else sys.stderr, len(begin))
        self.out(text) if self.log_is_data else self._write(text)

    def bar_ended(self, begin: str) -> None:
        """Remove the progress bar whose line begins so, if there is one: the line has ended."""
        with self._lock:
            if self._live_view is not None:
                self._live_view.bar(begin, "")

    def _others(self, width: int) -> str:
        """Return what the workers do whose logs are hidden, in this width; empty if there are none."""
        others = self._logs[""].others() if "" in self._logs else None
        return live_view.others_text(others, width) if others else ""

    def _show_result(self, result: events.RunResult) -> None:
        if self._live_view is not None:
            self._live_view.job_ends(result.variant)
        if result.variant:  # one of several: the table says the rest
            self.notice("result", result.in_short, result.variant)
            return
        if not self.streams_json:
            if result.detached or self.log_is_data:
                self.out_stages(result.lines, state=result.state)
            else:
                self._write("\n".join(result.lines))
        if result.ended_at is not None:
            took = format_duration(result.ended_at - result.started_at)
            where = events.relative(result.report or result.directory)
            self.notice("run", f"{result.run} · {took} · {where} · tpujob show {result.run}")

    def _show_sweep(self, result: events.SweepResult) -> None:
        if result.report is not None:
            self.notice("report", str(events.relative(result.report)))
        if result.stopped:
            left = sum(not each.succeeded for each in result.variants)
            advice = "the same command goes on with them, without `--again`"
            self.notice("sweep", f"stopped; {left} of {len(result.variants)} are left; {advice}")

    def notice(self, stage: str, text: str, variant: str = "") -> None:
        """Write a line of a stage on stderr; with --quiet only if it needs action. `variant`: of one job of a sweep."""
        if self._live_view is not None:
            self._live_view.step_done()
            if stage in job_line.JOB_ENDS:
                self._live_view.job_ends(variant)
        if not self.is_quiet or stage in ACTION:
            begin = f"{variant} " if variant else ""
            self._write(f"{begin}{stage:<8} {text}", color=ESCAPES["yellow"] if stage == "warning" else "", wrap=True)

    def error_line(self, text: str) -> None:
        """Write a line of data on stderr."""
        self._write(text)

    def alert(self, text: str) -> None:
        """Write what must not be overlooked, in red on a terminal."""
        self._write(text, color=BOLD_RED)

    def _fail(self, event: events.Failure) -> None:
        if not event.variant:
            self.quiet()
        elif self._live_view is not None:  # the other jobs of the sweep go on
            self._live_view.job_ends(event.variant)
        self._write(f"{_whose(event)}{event.message}", color=ESCAPES["red"], wrap=True)
        if event.hint:
            self._write(f"hint: {event.hint}", wrap=True)

    def quiet(self) -> None:
        """Remove the live line for good, before another program or a question has the terminal."""
        with self._lock:
            if self._live_view is not None:
                self._live_view.forget()

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Something is written in this block: the live line is removed, and comes back if it still holds."""
        with self._lock:
            if self._live_view is not None:
                self._live_view.erase()
            yield

    def _progress(self, event: events.Progress) -> None:
        if self._verbose:
            self.notice(event.stage, event.text, event.variant)
        elif not self.is_quiet:
            self._live().progress(event)

    def _live(self) -> live_view.LiveView:
        if self._live_view is None:
            plain = functools.partial(self._write, wrap=True)
            self._live_view = live_view.LiveView(
                self._lock, self.fit, plain, on_terminal=is_terminal(sys.stderr), others=self._others
            )
        return self._live_view

    def _time(self) -> str:
        return f"{datetime.now().astimezone().isoformat(timespec='seconds')} " if self._timestamps else ""

    def fit(self, text: str) -> str:
        """Return the text, of one line or several, without control characters and secrets."""
        if not text.isprintable():
            text = "\n".join(harmless(line) for line in text.split("\n"))
        return self.secrets.hide(text)

    def json_text(self, data: Any, indent: int | None = None) -> str:
        """Return the data as JSON without secrets, escaped where a character cannot be printed."""
        # Secrets are hidden in values, not in the text: a number that looks like one must not make the JSON invalid.
        plain = self.secrets.hide_all(_plain(data))
        text = json.dumps(plain, indent=indent, ensure_ascii=False)
        return text if text.replace("\n", "").isprintable() else json.dumps(plain, indent=indent)

    def _write(self, text: str, color: str = "", *, wrap: bool = False) -> None:
        """Write lines on stderr. `wrap`: a line of a stage, wrapped at the width of a terminal."""
        text = self.fit(text)
        if time := self._time():
            text = "\n".join(f"{time}{line}" for line in text.split("\n"))
        if wrap:
            text = wrapped(text, sys.stderr, HANG + len(time))
        with self.writing(), contextlib.suppress(OSError, ValueError):  # a reader that left must not stop a teardown
            print(f"{color}{text}{RESET}" if color and has_color(sys.stderr) else text, file=sys.stderr, flush=True)

    def out(self, text: str) -> None:
        """Print clean text on stdout. A reader that left is no error; a full disk is one warning, and the command goes on.

        Of a command that only reads, a full disk is a failure.
        """
        try:
            with self.writing():
                print(text, flush=True)
        except (OSError, ValueError) as error:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the process ends
            self.is_unread = isinstance(error, BrokenPipeError)
            self.is_cut = not self.is_unread
            if self.is_cut:
                self._say_cut(error)

    def _say_cut(self, error: Exception) -> None:
        why = f"stdout cannot be written: {getattr(error, 'strerror', None) or error}"
        if self.only_reads:
            self.reporter.fail(ConfigError(why, hint="what it has got is not complete; free some space, and try again"))
        else:
            self.notice("warning", why)

    def out_stages(self, lines: Iterable[str], *, state: str = "") -> None:
        """Print lines that begin with a stage on stdout, wrapped at the width of a terminal; color the first `state`."""
        for line in lines:
            text = wrapped(self.fit(line), sys.stdout)
            if state and has_color(sys.stdout):
                text = text.replace(state, f"{ESCAPES[color_of(state)]}{state}{RESET}", 1)
            self.out(text)
            state = ""


def _whose(event: events.Event) -> str:
    """Return how a line begins that is of one job of a sweep."""
    return f"{event.variant} " if event.variant else ""


def _plain(data: Any) -> Any:
    """Return the data as JSON values: other types as text, NaN and infinities, which JSON lacks, as null."""
    return json.loads(json.dumps(data, default=str), parse_constant=lambda _: None)
