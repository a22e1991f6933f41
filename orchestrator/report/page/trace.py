"""The time of a run as a trace of the Trace Event Format, which ui.perfetto.dev and chrome://tracing open. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.report.files.timing import Timing
from orchestrator.report.page import timeline
from orchestrator.report.page.run_data import RunData

RUN, JOB = 1, 2  # the two processes of the trace


def trace(data: RunData) -> dict[str, Any]:
    """Return the JSON object of the trace. Its times begin with the run; those of the job with its first attempt that ran."""
    began = data.report.started_at
    events = [_name(RUN, 0, "process_name", f"tpujob: {data.report.name}")]
    for line, row in enumerate(timeline.rows(data), 1):
        events.append(_name(RUN, line, "thread_name", f"{row.label} ({row.note})" if row.note else row.label))
        events += [_span(RUN, line, timeline.KINDS[s.kind], s.begin - began, s.seconds) for s in row.spans]
    if data.timing is not None:
        events += [
            _name(JOB, 0, "process_name", "job: worker 0"),
            *(_name(JOB, line, "thread_name", name) for line, name in enumerate(("phases", "epochs", "steps"), 1)),
            *_of_job(data.timing, _starts(data, data.timing)),
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _starts(data: RunData, timing: Timing) -> list[tuple[float, float]]:
    """Return for each session of the job when it began, on the clock of the job and in seconds of the run."""
    ran = [each.running_at for each in data.report.attempts if each.running_at is not None]
    attempts = ran[-len(timing.began_s) :] or [data.report.started_at]
    attempts = [attempts[0]] * (len(timing.began_s) - len(attempts)) + attempts
    return [(on_job, at - data.report.started_at) for on_job, at in zip(timing.began_s, attempts, strict=True)]


def _of_job(timing: Timing, starts: Sequence[tuple[float, float]]) -> Iterator[dict[str, Any]]:
    def at(second: float) -> float:
        """Of what ended at this second of the job, which began before."""
        on_job, on_run = next(start for start in reversed(starts) if start[0] < second or start == starts[0])
        return on_run + second - on_job

    for span in timing.all_spans:
        yield _span(JOB, 1, span.name, at(span.ended_s) - span.seconds, span.seconds)
    for epoch in timing.epochs:
        if epoch.ended_s is not None:
            seconds = epoch.seconds + epoch.compile_s
            yield _span(JOB, 2, f"epoch {epoch.number}", at(epoch.ended_s) - seconds, seconds, steps=epoch.steps)
    for step in timing.steps.compiled:
        yield _span(JOB, 3, f"step {step.step} (compiles)", at(step.at_s) - step.seconds, step.seconds)
    for piece in timing.steps.pieces:
        first = piece.step - piece.steps + 1
        name = f"step {piece.step}" if piece.steps == 1 else f"steps {first} to {piece.step}"
        yield _span(JOB, 3, name, at(piece.at_s) - piece.seconds, piece.seconds, steps=piece.steps)


def _span(process: int, line: int, name: str, begin_s: float, seconds: float, **more: Any) -> dict[str, Any]:
    times = {"ts": round(max(begin_s, 0.0) * 1e6), "dur": round(seconds * 1e6)}
    return {"ph": "X", "pid": process, "tid": line, "name": name, **times, **({"args": more} if more else {})}


def _name(process: int, line: int, what: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": line, "name": what, "args": {"name": name}}
