"""Read what a page shows of one run, and lay out its time: attempts, zones, waits, phases and losses, also as a trace.

ui.perfetto.dev opens the trace. Only `read` asks the ledger and the files. In the trace everything is one process, so that
Perfetto keeps the order of the lines. It drops a slice that ends after the one in which it begins, were it by a microsecond:
the slices of a line follow each other, or lie within each other.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.check.record import FILE as CHECK
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.report import results
from orchestrator.report.files import device, metrics, timing_file
from orchestrator.report.files.artifact_files import log_path, open_regular, read_object
from orchestrator.report.files.device import TpuUse
from orchestrator.report.files.metrics import Curve
from orchestrator.report.files.timing import Epoch, Piece, Timing
from orchestrator.report.page.html import Hide
from orchestrator.report.results import RunReport
from orchestrator.report.rows import costs, worker_ends
from orchestrator.report.rows.whole_run import AttemptReport
from orchestrator.text.terminal import clean, harmless
from orchestrator.text.units import format_duration

LOG_BYTES = 32 << 10  # of the end of the first log; of each other one a fourth
LOG_WORKERS = 8
FUNCTION_ERROR = "function-error.json"  # among the artifacts (api/functions/outcome.py)

LedgerEvent = tuple[float, str, dict[str, Any]]  # when, what kind, its fields


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of what a worker printed. `left_out`: bytes before it."""

    worker: int
    lines: tuple[str, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class RunData:
    """Everything of a run that a page may show. `now`: when it was read, in unix seconds of the ledger.

    `events`: by the id of an attempt. `leases`: every slice that the run asked for or used, by its id.
    """

    report: RunReport
    now: float
    events: Mapping[str, tuple[LedgerEvent, ...]]
    attempts: tuple[Attempt, ...]
    leases: Mapping[str, Lease]
    curves: Mapping[str, Curve]
    timing: Timing | None
    tpu_use: TpuUse | None
    arrivals: tuple[tuple[int, float], ...]  # when which step was reported, in unix seconds
    logs: tuple[LogTail, ...]
    traceback: tuple[str, ...]  # of a function of Python, on the worker of the first log; empty: none
    provenance: Mapping[str, Any]
    check: Mapping[str, Any]  # what `tpujob check` had found of its program; empty: nothing


def read(ledger: Ledger, run: RunRecord, attempt: Attempt, now: float) -> RunData:
    """Return what is known of a run, of which this is the last attempt. Raises LedgerUnavailable.

    `now`: the ledger's time of the run's cloud.
    """
    directory = Path(run.directory)
    report = results.report(ledger, run, attempt, now)
    attempts = ledger.attempts_of(run.id)[: len(report.attempts)]  # another one may have begun meanwhile
    leases = {lease.id: lease for lease in ledger.leases_of(run.id)}
    for each in attempts:
        if each.lease_id is not None and each.lease_id not in leases:
            leases[each.lease_id] = ledger.lease(each.lease_id)
    logs = _logs(directory, worker_ends.first_failures(report.workers))
    return RunData(
        report=report, now=now, events={each.id: tuple(ledger.events(each.id)) for each in attempts},
        attempts=tuple(attempts), leases=leases, curves=metrics.curves(directory),
        timing=timing_file.read_run(directory), tpu_use=device.read_run(directory),
        arrivals=tuple(metrics.arrivals(directory)), logs=logs,
        traceback=_traceback(directory, logs[0].worker) if logs else (),
        provenance=read_object(directory / "worker0" / "artifacts" / "provenance.json"),
        check=read_object(directory / CHECK),
    )  # fmt: skip


def _traceback(directory: Path, worker: int) -> tuple[str, ...]:
    found = read_object(directory / f"worker{worker}" / "artifacts" / FUNCTION_ERROR).get("traceback")
    return tuple(map(harmless, found.splitlines())) if isinstance(found, str) else ()


def _logs(directory: Path, first: Sequence[int]) -> tuple[LogTail, ...]:
    """Return the ends of the logs of these workers and then of the first ones, LOG_WORKERS at most."""
    found: list[LogTail] = []
    for worker in [*first, *(index for index in range(LOG_WORKERS) if index not in first)][:LOG_WORKERS]:
        file = open_regular(log_path(directory, worker))
        if file is None:
            continue
        with file:
            size = os.fstat(file.fileno()).st_size
            begin = max(size - (LOG_BYTES // 4 if found else LOG_BYTES), 0)
            file.seek(begin)
            text = file.read(size - begin)
        if begin:
            cut = text.find(b"\n") + 1
            begin, text = begin + cut, text[cut:]
        found.append(LogTail(worker, tuple(map(clean, text.rstrip(b"\n").split(b"\n"))), begin))
    return tuple(found)


# Each kind of span, in the order of an attempt, and what it is called.
KINDS = {"wait": "waiting for a slice", "refused": "asked, not given", "ship": "connecting and shipping",
    "setup": "setup", "main": "job", "collect": "collecting", "release": "releasing"}  # fmt: skip
PHASE_OF_STATE = {"setup": "setup", "running": "main", "collecting": "collect"}


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of time. Times are unix seconds of the ledger."""

    kind: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def title(self) -> str:
        return f"{KINDS[self.kind]}: {format_duration(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the timeline. `note`: how it ended."""

    label: str
    spans: tuple[Span, ...]
    note: str = ""
    minor: bool = False  # a slice that was asked for and not used


@dataclass(frozen=True, slots=True)
class Loss:
    """What the loss of a slice cost. Seconds and dollars; None: not known."""

    attempt: int  # that was lost, from 1
    cause: str
    at: float
    gap_s: float | None  # until the next attempt ran
    redone_s: float | None  # of work after the last saved copy
    behind_s: float | None  # until the job was further than before
    usd: float | None  # of the next slice until then; without `behind_s`, of what was done again


def rows(data: RunData) -> list[Row]:
    """Return a row for each attempt, each followed by the slices that it asked for and did not get."""
    used = {attempt.lease_id for attempt in data.attempts}
    others = [lease for lease in data.leases.values() if lease.id not in used]
    began = [each.began_at for each in data.report.attempts]
    found = []
    for number, (attempt, report) in enumerate(zip(data.attempts, data.report.attempts, strict=True)):
        until = began[number + 1] if number + 1 < len(began) else data.now
        asked = [
            lease for lease in others if (number == 0 or began[number] <= lease.created_at) and lease.created_at < until
        ]
        lease = data.leases.get(attempt.lease_id or "")
        label = f"attempt {number + 1}" if len(began) > 1 else "this run"
        if lease is not None:
            label += f" · {lease.name.zone}"
        note = report.cause or report.state
        found.append(Row(label, tuple(_spans(data, attempt, report, lease)), note))
        why = {event["lease_id"]: event["why"] for _, kind, event in data.events[attempt.id] if kind == "tried"}
        found += [_asked(each, why.get(each.id, each.reason), data.now) for each in asked]
    return found


def _spans(data: RunData, attempt: Attempt, report: AttemptReport, lease: Lease | None) -> Iterator[Span]:
    """Yield the spans of an attempt in their order. What has not ended goes on until now."""
    moved = [(at, str(event.get("state"))) for at, kind, event in data.events[attempt.id] if kind == "moved"]
    moves = [(at, PHASE_OF_STATE[phase]) for at, phase in moved if phase in PHASE_OF_STATE]
    end = data.now if report.ended_at is None else report.ended_at
    ready = None if lease is None else lease.ready_at
    first = moves[0][0] if moves else end
    if lease is None and moves:  # on this machine
        ready = report.began_at
    waited_until = min(max(ready if ready is not None else first, report.began_at), first)
    down, gone = _release(data, lease, end)
    borders = [(report.began_at, "wait"), (waited_until, "ship"), *moves, (min(down, end), "")]
    for (begin, kind), (until, _) in pairwise(borders):
        if min(until, down) > begin:
            yield Span(kind, begin, min(until, down))
    if down < gone:
        yield Span("release", down, gone)


def _release(data: RunData, lease: Lease | None, end: float) -> tuple[float, float]:
    """Return when the release of an attempt's slice began and ended; its end, twice, where that is not of this run.

    An attempt usually ends once its slice is proven gone. A slice that goes on to another run, or is held, is released later.
    """
    if lease is None or lease.down_at is None or lease.run != data.report.run:
        return end, end
    if lease.hold_until is not None and lease.down_at > end:
        return end, end
    return lease.down_at, lease.gone_at or data.now


def _asked(lease: Lease, why: str, now: float) -> Row:
    gone = lease.gone_at or now
    down = min(lease.down_at or gone, gone)
    spans = (Span("refused", lease.created_at, down), Span("release", down, gone))
    label = f"{lease.accelerator_type} · {lease.name.zone}"
    return Row(label, tuple(span for span in spans if span.seconds > 0), why, minor=True)


def seconds_by_phase(found: Sequence[Row]) -> dict[str, float]:
    """Return the seconds of each kind of span over all attempts; what was asked for beside them is in their waits."""
    sums = dict.fromkeys(KINDS, 0.0)
    for row in found:
        for span in () if row.minor else row.spans:
            sums[span.kind] += span.seconds
    return {kind: seconds for kind, seconds in sums.items() if seconds > 0}


def restarts(data: RunData) -> list[int]:
    """Return the steps at which attempts went on from saved work."""
    continued = [event for each in data.attempts for _, kind, event in data.events[each.id] if kind == "continued"]
    return [event["step"] for event in continued if isinstance(event.get("step"), int)]


def losses(data: RunData) -> list[Loss]:
    """Return what each loss of a slice cost that another attempt followed."""
    found: list[Loss] = []
    pairs = pairwise(zip(data.attempts, data.report.attempts, strict=True))
    for number, ((attempt, before), (next_attempt, after)) in enumerate(pairs, 1):
        if before.ended_at is None:
            continue
        saved_at = costs.saved_at(data.events[next_attempt.id], before.ended_at)
        ran_s = 0.0 if before.running_at is None else before.ended_at - before.running_at
        redone_s = ran_s if saved_at is None else min(max(before.ended_at - saved_at, 0.0), ran_s)
        further_at = _further_at(data, before, after)
        behind_s = None if further_at is None else further_at - before.ended_at
        again_at = after.running_at if further_at is None else further_at
        again_s = None if again_at is None or after.ready_at is None else again_at - after.ready_at
        parts = [_price(data, next_attempt, again_s)]
        if further_at is None:
            parts.append(_price(data, attempt, redone_s))
        cause = before.cause or before.detail or before.state
        found.append(Loss(number, cause, before.ended_at, before.lost_s, redone_s, behind_s, costs.total(parts)))
    return found


def _further_at(data: RunData, before: AttemptReport, after: AttemptReport) -> float | None:
    """Return when the next attempt was further than the lost one: it reported a higher step than all before."""
    begin, end = before.ended_at, after.ended_at or data.now
    return next((at for _, at in data.arrivals if begin is not None and begin < at <= end), None)


def _price(data: RunData, attempt: Attempt, seconds: float | None) -> float | None:
    lease = data.leases.get(attempt.lease_id or "")
    return None if lease is None or seconds is None else costs.between(lease.usd_per_hour, 0.0, max(seconds, 0.0))


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
    for row in rows(data):
        name = f"{row.label} ({row.note})" if row.note else row.label
        lines.append((name, [Slice(KINDS[s.kind], s.begin - began, s.end - began) for s in row.spans]))
    if data.timing is not None:
        lines += [(name, slices) for name, slices in _of_job(data, data.timing).items() if slices]
    events = [_name(0, "process_name", hide(f"tpujob: {data.report.name}"))]
    for line, (name, slices) in enumerate(lines, FIRST_LINE):
        events += [_name(line, "thread_name", hide(name)), *_laid_out(line, slices)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _of_job(data: RunData, timing: Timing) -> dict[str, list[Slice]]:
    """Return what a job timed of itself, in seconds of the run, by the name of the line."""
    ran = [each.running_at - data.report.started_at for each in data.report.attempts if each.running_at is not None]
    sessions = timing.sessions_at(ran)

    def bar(name: str, end_s: float, seconds: float, steps: int | None = None) -> Slice:
        """By its end on the clock of the job."""
        on_job, on_run = next(each for each in reversed(sessions) if each[0] < end_s or each == sessions[0])
        end = on_run + end_s - on_job
        return Slice(name, end - seconds, end, steps)

    steps = timing.steps
    return {
        "job: phases": [bar(span.name, span.ended_s, span.seconds) for span in timing.all_spans],
        "job: epochs": [
            bar(f"epoch {epoch.number}", end_s, seconds, epoch.steps) for epoch, end_s, seconds in _epochs(timing)
        ],
        "job: steps": [
            *(bar(f"step {step.step:,} (compiles)", step.at_s, step.seconds, 1) for step in steps.compiled),
            *(bar(_steps_of(piece), piece.at_s, piece.at_s - piece.began_s, piece.steps) for piece in steps.pieces),
        ],
    }


def _epochs(timing: Timing) -> Iterator[tuple[Epoch, float, float]]:
    """Yield the epochs, the last one first, with end and seconds of their bars, which have what their own leave out, too."""
    apart = [span for span in timing.all_spans if span.name in APART]
    for epoch in reversed(timing.epochs):
        end_s = epoch.ended_s
        if end_s is None:
            continue
        begin_s = end_s - epoch.seconds - epoch.compile_s
        while apart and apart[-1].ended_s > begin_s + ROUNDED_S:
            span = apart.pop()
            begin_s -= span.seconds if span.ended_s <= end_s else 0.0  # after an epoch: of none
        yield epoch, end_s, end_s - begin_s


def _steps_of(piece: Piece) -> str:
    return f"step {piece.step:,}" if piece.steps == 1 else f"steps {piece.step - piece.steps + 1:,} to {piece.step:,}"


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
