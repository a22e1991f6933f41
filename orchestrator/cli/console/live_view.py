"""What goes on now, on stderr: a line below the log that is replaced on a terminal, plain lines at a calm rate elsewhere.

The line is a step of the work (`Progress`) or a job that runs (`Running`). Above it are the progress bars of the job. On a
terminal a line below it says what the workers do whose logs are not shown. Nothing hides the cursor: a process that is killed
leaves at most its text on the terminal.
"""

import contextlib
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable

from rich.cells import cell_len, set_cell_size

from orchestrator.api.session.events import Metrics, Progress, Running
from orchestrator.api.session.job_line import BESIDE_A_JOB, BESIDE_S, JobLine
from orchestrator.api.session.shown_logs import Others
from orchestrator.text.units import format_duration


def others_text(others: Others, width: int) -> str:
    """Return what the workers do whose logs are not shown, such as `63 others: running, last output 2 s ago`.

    What does not fit into `width` is left out.
    """
    running = others.count - others.ended - others.failed
    counts = ((running, "running"), (others.ended, "ended"), (others.failed, "failed"))
    shown = [(count, word) for count, word in counts if count]
    doing = shown[0][1] if len(shown) == 1 else ", ".join(f"{count} {word}" for count, word in shown)
    said = "no output yet" if others.quiet_s is None else f"last output {format_duration(round(others.quiet_s))} ago"
    name = f"{others.count} others" if others.count > 1 else "1 other"
    texts = (f"{'':<8} {name}: {doing}, {said}", f"{name}: {doing}, {said}", f"{name}: {doing}")
    return next((text for text in texts if len(text) <= width), texts[-1])


CALM_S = 30.0  # between two plain lines
SAME_S = 60.0  # between two that say the same
BAR_S = 5.0  # between two of a progress bar
MOST_BARS = 8  # on a terminal
DRAWN_EVERY_S = 0.2
ERASE = "\r\x1b[K"  # the line of the cursor
UP = "\x1b[A"
LEAST_COLUMNS = 20  # a terminal that is narrower wraps the line, and gets no second one
SPINNER = "|/-\\"


class LiveView:
    """`lock` is that of the console, `print_plain` prints a line of a stage, `clean` makes text safe for a terminal.

    `others` returns, for a width, what the workers of the job do whose logs are not shown; empty if there are none.
    """

    def __init__(
        self,
        lock: threading.RLock,
        clean: Callable[[str], str],
        print_plain: Callable[[str], None],
        *,
        on_terminal: bool,
        others: Callable[[int], str] = lambda width: "",
    ) -> None:
        self._lock, self._clean, self._print_plain = lock, clean, print_plain
        self._on_terminal, self._others = on_terminal, others
        self._jobs: dict[str, JobLine] = {}  # by the variant of a sweep; a job of its own is ""
        self._bars: dict[str, str] = {}  # by how their lines begin, such as `worker0 | `
        self._bars_at: dict[str, float] = {}  # when they were printed as plain lines
        self._stage, self._text = "", ""
        self._text_until = math.inf  # by the steady clock
        self._drawn = 0  # lines
        self._turn = 0
        self._plain_at, self._plain = 0.0, ""  # the last plain line
        self._ticker: threading.Thread | None = None

    def progress(self, event: Progress) -> None:
        """Show how far a step is, until the next event. A step of one job of a sweep only ends the line of that job."""
        if event.stage not in BESIDE_A_JOB:
            self.job_ends(event.variant)
        if event.variant:
            return
        self._text_until = time.monotonic() + BESIDE_S if self._jobs else math.inf
        if event.stage != self._stage:
            self._plain_at = time.monotonic()  # worth a plain line only if it lasts
        self._stage, self._text = event.stage, self._clean(f"{event.stage:<8} {event.text}")
        self._show()

    def job_runs(self, event: Running) -> None:
        """Show a job from now on, until it ends."""
        if not self._jobs:
            self._plain_at = time.monotonic()
        self._jobs.setdefault(event.variant, JobLine()).begin(event)
        self._stage = self._text = ""
        self._show()

    def job_reports(self, event: Metrics) -> None:
        """Show the values that the job reports."""
        if event.variant in self._jobs:
            self._jobs[event.variant].measure(event)

    def bar(self, begin: str, text: str) -> None:
        """Show a line of the log that is redrawn, as it is now; an empty `text`: it has ended."""
        if not text:
            self._bars.pop(begin, None)
            self._bars_at.pop(begin, None)
            return
        self._bars[begin] = self._clean(f"{begin}{text}")
        self._bars_at.setdefault(begin, time.monotonic())
        self._show()

    def job_ends(self, variant: str) -> None:
        """The job runs no more."""
        self._jobs.pop(variant, None)
        for begin in list(self._bars):
            if begin.startswith(f"{variant} " if variant else "worker"):
                self.bar(begin, "")

    def step_done(self) -> None:
        """The last step is over: what follows is written by the caller."""
        self._stage = self._text = ""

    def forget(self) -> None:
        """Nothing goes on any more."""
        self.erase()
        self.step_done()
        self._jobs.clear()
        self._bars.clear()
        self._bars_at.clear()

    def _now(self, width: int | None = None) -> str:
        """Return the line as it is now; empty if nothing goes on."""
        if not self._jobs or (self._text and time.monotonic() < self._text_until):
            return self._text
        if (alone := self._jobs.get("")) is not None:
            return self._clean(alone.text(width))
        jobs = " · ".join(f"{variant} {job.brief()}" for variant, job in sorted(self._jobs.items()))
        return self._clean(f"{'sweep':<8} {jobs}")

    def erase(self) -> None:
        """Remove the lines before anything else is written; they come back if they still hold."""
        if self._drawn:
            _write(self._erased())
            self._drawn = 0

    def _erased(self) -> str:
        return ERASE + f"{UP}{ERASE}" * (self._drawn - 1)

    def _show(self) -> None:
        if self._ticker is None:
            if self._on_terminal:
                self._draw()
            self._ticker = threading.Thread(target=self._tick, name="live line", daemon=True)
            self._ticker.start()
        elif not self._on_terminal:
            self._say()

    def _tick(self) -> None:
        while True:
            time.sleep(DRAWN_EVERY_S if self._on_terminal else 1.0)
            with self._lock:
                if not (self._text or self._jobs or self._bars):
                    self._ticker = None
                    return
                if self._on_terminal:
                    self._draw()
                else:
                    self._say()

    def _say(self) -> None:
        """Print a plain line, if the last one is long ago; longer if it said the same."""
        now, text = time.monotonic(), self._now()
        for begin, bar in self._bars.items():
            if now - self._bars_at[begin] >= BAR_S:
                self._bars_at[begin] = now
                self._print_plain(bar)
        if text and now - self._plain_at >= (SAME_S if text == self._plain else CALM_S):
            self._plain_at, self._plain = now, text
            self._print_plain(text)

    def _draw(self) -> None:
        columns, rows = shutil.get_terminal_size()
        width = max(columns - 3, LEAST_COLUMNS)
        most = min(MOST_BARS, rows // 2) if columns > LEAST_COLUMNS else 0
        self._turn += 1
        lines = [_cut(bar, width) for _, bar in sorted(self._bars.items())[:most]]
        if (now := self._now(width)) or not lines:
            lines.append(_cut(now, width))
        lines[-1] += f" {SPINNER[self._turn % len(SPINNER)]}"
        if "" in self._jobs and columns > LEAST_COLUMNS and (others := self._clean(self._others(width))):
            lines.append(_cut(others, width))
        text = self._erased() + "\n".join(lines)
        self._drawn = len(lines)
        _write(text)


def _cut(text: str, width: int) -> str:
    return set_cell_size(text, width) if cell_len(text) > width else text


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a terminal that is gone must not stop a teardown
        sys.stderr.write(text)
        sys.stderr.flush()
