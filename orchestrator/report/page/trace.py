"""The time of a run as a trace of the Trace Event Format, which ui.perfetto.dev and chrome://tracing open. Pure.

Everything is one process, so that Perfetto keeps the order of the lines. It drops a slice that ends after the one in which it
begins, were it by a microsecond: the slices of a line follow each other, or lie within each other.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from orchestrator.report.files.timing import Timing
from orchestrator.report.page import timeline
from orchestrator.report.page.html import Hide
from orchestrator.report.page.run_data import RunData

APART = ("checkpoint", "profile")  # spans within an epoch that its seconds leave out, beside compiling
ROUNDED_S = 0.001  # times of a job are rounded
PROCESS = 1
FIRST_LINE = 11  # a thread with the number of its process would be the main thread


class Slice(NamedTuple):
    """One bar. Times are seconds of the run. `steps`: of a training, that it stands for."""

    name: str
    begin: float
    end: float
    steps: int | None = None


def trace(data: RunData, hide: Hide) -> dict[str, Any]:
    """Return the JSON object of the trace. Its times begin with the run; those of the job with its first attempt that ran.

    `hide` takes the secrets out of the names of lines; those of slices are ours.
    """
    began = data.report.started_at
    lines: list[tuple[str, Sequence[Slice]]] = []
    for row in timeline.rows(data):
        name = f"{row.label} ({row.note})" if row.note else row.label
        lines.append((name, [Slice(timeline.KINDS[s.kind], s.begin - began, s.end - began) for s in row.spans]))
    if data.timing is not None:
        job = _OfJob(data, data.timing)
        of_job = {"job: phases": [*job.phases()], "job: epochs": [*job.epochs()], "job: steps": [*job.steps()]}
        lines += [(name, slices) for name, slices in of_job.items() if slices]
    events = [_name(0, "process_name", hide(f"tpujob: {data.report.name}"))]
    for line, (name, slices) in enumerate(lines, FIRST_LINE):
        events += [_name(line, "thread_name", hide(name)), *_laid_out(line, slices)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


class _OfJob:
    """What a job timed of itself, in seconds of the run."""

    def __init__(self, data: RunData, timing: Timing) -> None:
        self._timing = timing
        ran = [each.running_at - data.report.started_at for each in data.report.attempts if each.running_at is not None]
        count = len(timing.began_s)
        begun = ran[max(len(ran) - count, 0) :]
        begun = (begun[:1] or [0.0]) * (count - len(begun)) + begun
        self._sessions = list(zip(timing.began_s, begun, strict=True))  # when each began: of the job, of the run

    def _slice(self, name: str, end_s: float, seconds: float, steps: int | None = None) -> Slice:
        """Return a bar by its end on the clock of the job."""
        sessions = self._sessions
        on_job, on_run = next(each for each in reversed(sessions) if each[0] < end_s or each == sessions[0])
        end = on_run + end_s - on_job
        return Slice(name, end - seconds, end, steps)

    def phases(self) -> Iterator[Slice]:
        return (self._slice(span.name, span.ended_s, span.seconds) for span in self._timing.all_spans)

    def epochs(self) -> Iterator[Slice]:
        """Yield the epochs, the last one first. The bar of an epoch has what its own seconds leave out, too."""
        apart = [span for span in self._timing.all_spans if span.name in APART]
        for epoch in reversed(self._timing.epochs):
            end_s = epoch.ended_s
            if end_s is None:
                continue
            begin_s = end_s - epoch.seconds - epoch.compile_s
            while apart and apart[-1].ended_s > begin_s + ROUNDED_S:
                span = apart.pop()
                begin_s -= span.seconds if span.ended_s <= end_s else 0.0  # after an epoch: of none
            yield self._slice(f"epoch {epoch.number}", end_s, end_s - begin_s, epoch.steps)

    def steps(self) -> Iterator[Slice]:
        for step in self._timing.steps.compiled:
            yield self._slice(f"step {step.step:,} (compiles)", step.at_s, step.seconds, 1)
        for piece in self._timing.steps.pieces:
            first = piece.step - piece.steps + 1
            name = f"step {piece.step:,}" if piece.steps == 1 else f"steps {first:,} to {piece.step:,}"
            yield self._slice(name, piece.at_s, piece.at_s - piece.began_s, piece.steps)


def _laid_out(line: int, slices: Iterable[Slice]) -> Iterator[dict[str, Any]]:
    """Yield the events of a line: whole microseconds, each slice after or within those before it."""
    around: list[int] = []  # the ends of the slices that are not over
    begin = 0
    for each in sorted(slices, key=lambda each: (each.begin, -each.end)):
        # Not before the slice that came last, which may have been moved behind one that it overlapped.
        begin, end = max(begin, _microseconds(each.begin)), _microseconds(each.end)
        while around and end > around[-1]:
            begin = max(begin, around.pop())
        end = max(begin, end)
        around.append(end)
        steps = {} if each.steps is None else {"args": {"steps": each.steps}}
        yield {"ph": "X", "pid": PROCESS, "tid": line, "name": each.name, "ts": begin, "dur": end - begin, **steps}


def _microseconds(seconds: float) -> int:
    return round(max(seconds, 0.0) * 1e6)


def _name(line: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": PROCESS, "tid": line, "name": what, "args": {"name": name}}
