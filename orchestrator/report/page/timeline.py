"""The time of a run: its attempts, the zones that it asked, its waits and phases, and what each lost slice cost. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.core.lease.lease import Lease
from orchestrator.core.lease.run_and_attempt import Attempt
from orchestrator.core.text.durations import format_duration
from orchestrator.report import costs
from orchestrator.report.attempts import AttemptReport
from orchestrator.report.page.run_data import RunData

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
        saved_s = next((e["saved_s"] for _, kind, e in data.events[next_attempt.id] if kind == "continued"), None)
        ran_s = 0.0 if before.running_at is None else before.ended_at - before.running_at
        redone_s = ran_s if saved_s is None else min(saved_s, ran_s)
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
