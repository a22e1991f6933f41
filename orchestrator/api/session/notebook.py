"""What goes on, in place below the cell of a notebook: one display, which is drawn anew a few times a second.

An event only writes down what is to be shown. A thread draws it: a notebook that is slow or gone keeps no run waiting, and an
error ends the display, and nothing else.
"""

import contextvars
import html
import itertools
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.api.session import events
from orchestrator.api.session.job_line import BESIDE_A_JOB, BESIDE_S, JOB_ENDS, JobLine
from orchestrator.api.session.shown_logs import ShownLogs
from orchestrator.text.terminal import harmless

EVERY_S = 0.25
CLOSE_S = 2.0  # for the last drawing
LOG_LINES, MOST_LINES, MOST_CHARS = 8, 16, 400  # of a log, of any other part, and of a line
OPEN, GOOD, BAD = "#8a8a8a", "#2e9d5b", "#d9473d"  # on light and on dark ground
STYLE = "margin:0;padding:0;font:12.5px/1.5 ui-monospace,monospace;color:inherit;background:none;white-space:pre-wrap"


class InPlace:
    """An `on_event` for a notebook. `publisher`: the `display_pub` of its shell. `hide` takes the secrets out of a text."""

    def __init__(self, publisher: Any, hide: Callable[[str], str]) -> None:
        self._publisher, self._hide = publisher, hide
        self._context = contextvars.copy_context()  # by which a kernel knows the cell, also in another thread
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._told = False
        self._id, self._drawn = uuid.uuid4().hex, ""
        self._color, self._step, self._passes = OPEN, "", False
        self._step_at = 0.0  # by the steady clock
        self._jobs: dict[str, JobLine] = {}  # this and the next two by the variant of a sweep; a job of its own is ""
        self._logs: dict[str, ShownLogs] = {}
        self._bars: dict[tuple[str, int], str] = {}
        self._lines = deque[str](maxlen=LOG_LINES)
        self._alerts, self._ends = deque[str](maxlen=MOST_LINES), deque[str](maxlen=MOST_LINES)

    def __call__(self, event: events.Event) -> None:
        try:
            with self._lock:
                self._note(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._draw_until_closed, name="notebook display", daemon=True)
                self._thread.start()
        except Exception as error:
            self._end(error)

    def close(self) -> None:
        """Draw the last state, without the step that was passing. Called once all events came."""
        with self._lock:
            self._step = "" if self._passes else self._step
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _draw_until_closed(self) -> None:
        try:
            while not self._closing.wait(EVERY_S):
                self._draw()
            self._draw()
        except Exception as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        self._closing.set()
        if not self._told:
            self._told = True
            print(f"tpujob: the display has ended, the work goes on: {error!r:.200}", file=sys.stderr)

    def _note(self, event: events.Event) -> None:
        begin = f"{event.variant} " if event.variant else ""
        logs = self._logs.setdefault(event.variant, ShownLogs())
        said = isinstance(event, events.Progress | events.Notice | events.Failure | events.RunResult)
        if said and (tail := logs.explanation()) is not None:
            lines = (f"{begin}worker{tail.worker} | {line}" for line in tail.lines)
            self._lines.extend((f"{begin}{tail.heading}", *lines))
        match event:
            case events.Notice(stage=stage, text=text) | events.Progress(stage=stage, text=text):
                self._step, self._passes = f"{begin}{stage:<8} {text}", isinstance(event, events.Progress)
                self._step_at = time.monotonic()
                if stage in JOB_ENDS if isinstance(event, events.Notice) else stage not in BESIDE_A_JOB:
                    self._job_ends(event.variant)
            case events.Running():
                self._jobs.setdefault(event.variant, JobLine()).begin(event)
                self._step = ""
            case events.Metrics() if event.variant in self._jobs:
                self._jobs[event.variant].measure(event)
            case events.Workers():
                logs.begin(event)
                self._lines.extend(filter(None, [logs.announce()]))
            case events.WorkerEnded():
                logs.end(event)
            case events.Bar() if logs.takes(event):
                self._bars[event.variant, event.worker] = f"{begin}worker{event.worker} | {event.line}"
            case events.LogLines() if logs.takes(event):
                self._bars.pop((event.variant, event.worker), None)
                self._lines.extend(f"{begin}worker{event.worker} | {line}" for line in event.lines[-LOG_LINES:])
            case events.Alert(text=text):
                self._alerts.append(text)
            case events.Failure(message=message, hint=hint):
                self._alerts.append(f"{begin}{message}" + (f"\nhint: {hint}" if hint else ""))
            case events.RunResult() | events.SweepResult():
                self._result(event, begin)

    def _result(self, event: events.RunResult | events.SweepResult, begin: str) -> None:
        self._job_ends(event.variant)
        if isinstance(event, events.SweepResult):
            self._ends.append(f"{event.name}: {len(event.succeeded)} of {len(event.variants)} succeeded")
        else:
            self._ends.extend([f"{begin}{event.in_short}"] if begin else event.lines)
        if not begin and event.exit_code is not None:
            self._step, self._color = "", BAD if event.exit_code else GOOD

    def _job_ends(self, variant: str) -> None:
        self._jobs.pop(variant, None)
        for key in [key for key in self._bars if key[0] == variant]:
            del self._bars[key]

    def _draw(self) -> None:
        """Draw what changed since the last time."""
        with self._lock:
            step = self._step if not self._jobs or time.monotonic() - self._step_at < BESIDE_S else ""
            jobs = [f"{variant} {job.text()}".strip() for variant, job in sorted(self._jobs.items())]
            parts = (
                (self._parts([*filter(None, [step]), *jobs][:MOST_LINES]), "font-weight:bold"),
                (self._parts([*self._lines, *itertools.islice(self._bars.values(), MOST_LINES)]), "opacity:.8"),
                (self._parts(self._alerts), f"color:{BAD};font-weight:bold"),
                (self._parts(self._ends), ""),
            )
            color = self._color
        shown = [(text, style) for text, style in parts if text]
        blocks = "".join(
            f'<pre style="{STYLE};overflow-wrap:anywhere;{style}">{html.escape(t)}</pre>' for t, style in shown
        )
        page = f'<div style="border-left:3px solid {color};padding:2px 0 2px 10px;margin:2px 0">{blocks}</div>'
        if page == self._drawn or not (shown or self._drawn):
            return
        self._context.run(
            self._publisher.publish,
            data={"text/html": page, "text/plain": "\n".join(text for text, _ in shown)},
            metadata={},
            transient={"display_id": self._id},
            update=bool(self._drawn),
        )
        self._drawn = page

    def _parts(self, lines: Iterable[str]) -> str:
        """Return the lines as one clean text without secrets."""
        each = (self._hide(harmless(line)) for text in lines for line in text.split("\n"))
        return "\n".join(line if len(line) <= MOST_CHARS else f"{line[:MOST_CHARS]}…" for line in each)
