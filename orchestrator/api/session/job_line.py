"""What a job that runs does now, in one line: its step, its newest figures, its time, its cost, and what is left."""

import time
from collections import deque
from collections.abc import Callable, Mapping

from orchestrator.api.session.events import Metrics, Running
from orchestrator.report.rows.layout import format_cost
from orchestrator.text.parsing import NotFinite
from orchestrator.text.units import format_duration

RATE_S = 30.0  # the rate of steps is that of this time
MAX_NAME, MAX_VALUES = 20, 4
STAGES = {"main": "train"}  # other phases are called as they are
PER_S = "_per_s"  # how names of rates end
JOB_ENDS = {"lost", "stop"}  # no job runs after a notice of these stages
BESIDE_A_JOB = ("save",)  # the stages of work that is done while the job runs
BESIDE_S = 10.0  # for so long such a step is shown: nothing says that it is over


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
