"""To what the time of a slice went: each moment to one cause, by the ledger and by what the job timed of itself. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from orchestrator.report.files.timing import Timing


class Cause(StrEnum):
    """To what a moment of a slice went. What a job did not time of itself is `work`."""

    WORK = "work"  # the job ran, as far as nothing below says otherwise; also a slice that `api.slice()` lends
    WAITING = "waiting"  # until READY; also the whole life of a slice that no job reached
    SETUP = "setup"  # READY until the job started: shipping, environment, setup; and its imports
    COMPILE = "compile"
    INPUT = "input"  # the job read its data, or waited for a batch
    PREEMPTION = "preemption"  # work of an attempt that lost its slice, after what its successor went on from was saved
    FAILED = "failed"  # from READY on, an attempt that ended otherwise without success
    IDLE = "idle"  # READY, and no run on it, or one whose end was not noticed yet
    TEARDOWN = "teardown"  # results were collected, and the slice deleted, until its proven absence


CAUSE_OF_SPAN = {"compile": Cause.COMPILE, "data": Cause.INPUT, "import": Cause.SETUP}
CausedSpan = tuple[float, float, Cause]  # since, until


@dataclass(frozen=True, slots=True)
class Work:
    """The time in which an attempt was on a slice. `failed`: it ended without success; `lost`: with the loss of its slice.

    `main_at`: its job started; `done_at`: and ended; `noticed_at`: and tpujob saw it; `saved_at`: when the work was saved that
    its successor went on from. None: never. `spans`: what the job timed, in the order of their beginnings.
    """

    since: float
    until: float
    failed: bool = False
    lost: bool = False
    main_at: float | None = None
    done_at: float | None = None
    noticed_at: float | None = None
    saved_at: float | None = None
    spans: tuple[CausedSpan, ...] = ()

    def cuts(self) -> Iterator[float]:
        """Yield when its cause may change."""
        yield from (self.since, self.until)
        yield from (at for at in (self.main_at, self.done_at, self.noticed_at, self.saved_at) if at is not None)
        for since, until, _ in self.spans:
            yield from (since, until)

    def cause(self, at: float) -> Cause:
        """Return the cause of a moment of it on a slice that is READY."""
        if self.failed and not self.lost:
            return Cause.FAILED
        if self.main_at is None or at < self.main_at:
            return Cause.SETUP
        if self.lost and (self.saved_at is None or at >= self.saved_at):
            return Cause.PREEMPTION
        if self.done_at is not None and at >= self.done_at:
            return Cause.IDLE if self.noticed_at is not None and at < self.noticed_at else Cause.TEARDOWN
        index = bisect_right(self.spans, at, key=lambda span: span[0]) - 1
        return self.spans[index][2] if index >= 0 and at < self.spans[index][1] else Cause.WORK


@dataclass(frozen=True, slots=True)
class Wait:
    """A time in which a run waited for a slice and none was billed for it. `job`: its name, or that of its sweep."""

    cloud: str
    run: str
    job: str
    owner: str
    project: str
    accelerator_type: str
    since: float
    until: float


def not_in(since: float, until: float, taken: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return what of a time is in none of the others, in order."""
    found, at = [], since
    for begin, end in sorted(taken):
        if at < min(begin, until):
            found.append((at, min(begin, until)))
        at = max(at, end)
    return [*found, (at, until)] if at < until else found


def spans_of(timing: Timing, ran: Sequence[float]) -> tuple[CausedSpan, ...]:
    """Return what the job timed that is no work, on the clock of the ledger. `ran`: when each attempt's job started.

    How long an epoch waited for its batches is known, and not when: that is the end of it, where it compiled nothing.
    """
    apart = sorted((span.ended_s - span.seconds, span.ended_s) for span in timing.all_spans)
    found = [
        (span.ended_s - span.seconds, span.ended_s, CAUSE_OF_SPAN[span.name])
        for span in timing.all_spans
        if span.name in CAUSE_OF_SPAN
    ]
    before = 0.0
    ended = [(each.ended_s, each.seconds, each.wait_s or 0.0) for each in timing.epochs if each.ended_s is not None]
    for end, seconds, wait_s in sorted(ended):
        waits = _waits(before, end, min(wait_s, seconds), apart)
        found += [(since, until, Cause.INPUT) for since, until in waits]
        before = end
    sessions = timing.sessions_at(ran)
    shifted = []
    for since, until, cause in found:
        on_job, at = sessions[max(bisect_left(sessions, (until,)) - 1, 0)]
        shifted.append((at + since - on_job, at + until - on_job, cause))
    return tuple(_one_after_the_other(sorted(shifted)))


def _waits(
    before: float, end: float, left: float, apart: Sequence[tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """Yield the last `left` seconds between the ends of two epochs that are in none of the other times, the last first."""
    index = bisect_left(apart, (end, end))
    while left > 0 and end > before:
        begin, until = apart[index - 1] if index else (before, before)
        if (since := max(end - left, until, before)) < end:
            yield since, end
            left -= end - since
        index, end = index - 1, min(begin, end)


def _one_after_the_other(spans: Sequence[CausedSpan]) -> Iterator[CausedSpan]:
    """Yield the spans, each cut where the next begins: times of a job are rounded."""
    for (since, until, cause), (following, _, _) in pairwise(spans):
        if since < min(until, following):
            yield since, min(until, following), cause
    yield from spans[-1:]
