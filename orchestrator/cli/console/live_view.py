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
from collections import deque
from collections.abc import Callable, Mapping

from rich.cells import cell_len, set_cell_size

from orchestrator.api.session.events import Metrics, Progress, Running
from orchestrator.api.session.shown_logs import Others
from orchestrator.report.rows.layout import format_cost
from orchestrator.text.parsing import NotFinite
from orchestrator.text.units import format_duration

RATE_S = 30.0  # the rate of steps is that of this time
MAX_NAME, MAX_VALUES = 20, 4
STAGES = {"main": "train"}  # other phases are called as they are
PER_S = "_per_s"  # how names of rates end


class JobLine:
    """Follows a job by its events. `now`: seconds of a steady clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._running: Running | None = None
        self._since = 0.0
        self._step: int | None = None
        self._values: Mapping[str, float | NotFinite] = {}
        self._steps: deque[tuple[float, int]] = deque()

    def begin(self, event: Running) -> None:
        """A phase begins, or its end was moved."""
        if self._running is None or self._running.phase != event.phase:
            self._step, self._values = None, {}
            self._steps.clear()
        self._running, self._since = event, self._now()

    def measure(self, event: Metrics) -> None:
        """The job reported values."""
        shown = {**event.values, **event.diverged}
        self._values = {name: value for name, value in shown.items() if value is not None}
        if event.step is not None:
            now, self._step = self._now(), event.step
            self._steps.append((now, event.step))
            while now - self._steps[0][0] > RATE_S and len(self._steps) > 2:
                self._steps.popleft()

    def brief(self) -> str:
        """Return the step and its first value, or the seconds since the job began where it reports none."""
        figures = [f"step {self._step:,}"] if self._step is not None else []
        figures += _values(self._values)[:1]
        running = self._running
        if not figures and running is not None:
            figures = [format_duration(round(running.elapsed_s + self._now() - self._since))]
        return " ".join(figures)

    def text(self, width: int | None = None) -> str:
        """Return the line, without what does not fit into `width`; empty if no job runs."""
        running = self._running
        if running is None:
            return ""
        passed_s = self._now() - self._since
        figures = [f"step {self._step:,}"] if self._step is not None else []
        figures += _values(self._values) + self._rate()
        elapsed = [format_duration(round(running.elapsed_s + passed_s))]
        rest = [f"at most {_rough(running.left_s - passed_s)} left"]
        if running.billed:
            usd = running.usd_so_far
            if usd is not None and running.usd_per_hour is not None:
                usd += running.usd_per_hour * passed_s / 3600
                rest = [format_cost(usd, running.cloud), *rest]
        stage = STAGES.get(running.phase, running.phase)
        line = _line(stage, [*figures, *elapsed, *rest])
        while width is not None and len(line) > width and (elapsed or len(figures) > 1):
            (elapsed or figures).pop()
            line = _line(stage, [*figures, *elapsed, *rest])
        return line

    def _rate(self) -> list[str]:
        """Return the steps per second, unless the job measures a rate of its own."""
        if any(name.endswith(PER_S) for name in self._values) or len(self._steps) < 2:
            return []
        (began, first), (ended, last) = self._steps[0], self._steps[-1]
        if ended <= began or last <= first:
            return []
        rate = (last - first) / (ended - began)
        return [f"{rate:,.3g} steps/s" if rate >= 1 else f"{format_duration(1 / rate)} a step"]


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


def _line(stage: str, parts: list[str]) -> str:
    return f"{stage:<8} {'  '.join(parts)}"


def _values(values: Mapping[str, float | NotFinite]) -> list[str]:
    """Return at most MAX_VALUES values, the loss first and rates last."""

    def rank(name: str) -> int:
        return 0 if "loss" in name else 2 if name.endswith(PER_S) else 1

    shown = sorted(values, key=rank)[:MAX_VALUES]
    return [_value_text(name, values[name]) for name in shown]


def _value_text(name: str, value: float | NotFinite) -> str:
    if isinstance(value, NotFinite):
        return f"{name[:MAX_NAME]} {value}"
    if name.endswith(PER_S):
        rate = f"{value:,.3g}" if value < 100 else f"{value:,.0f}"
        return f"{rate} {name.removesuffix(PER_S)[:MAX_NAME]}/s"
    number = f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.4g}"
    return f"{name[:MAX_NAME]} {number}"


def _rough(seconds: float) -> str:
    """Return whole minutes from two minutes on, so that the line is calm."""
    return format_duration(max(round(seconds), 0) if seconds < 120 else round(seconds / 60) * 60)


CALM_S = 30.0  # between two plain lines
SAME_S = 60.0  # between two that say the same
BAR_S = 5.0  # between two of a progress bar
MOST_BARS = 8  # on a terminal
DRAWN_EVERY_S = 0.2
ERASE = "\r\x1b[K"  # the line of the cursor
UP = "\x1b[A"
LEAST_COLUMNS = 20  # a terminal that is narrower wraps the line, and gets no second one
SPINNER = "|/-\\"
BESIDE_A_JOB = ("save",)  # the stages of work that is done while the job runs
BESIDE_S = 10.0  # for so long such a step takes the place of the job: nothing says that it is over


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
