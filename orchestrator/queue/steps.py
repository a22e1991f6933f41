"""What changes the record of a queue: each step takes the record and the store's time, and returns the record after it. Pure.

It is the same record if the step was done before, and None if it does not apply (any more): a runner that lost the reply to its
write, or a race with another one, reads the record anew and tries the step again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.queue.record import KEPT_S, MOST_ENDED, VERSIONS, Bounds, End, Queue, QueuedJob, Refusal, Stage, Turn

LONGEST_S = 366 * 86400.0  # of the time in which a bound in dollars counts
MOST_STUMBLES = 30  # starts one after the other that no runner finished: another one would cost a slice again

Step = Callable[[Queue, float], Queue | None]


def no_room(queue: Queue, job: QueuedJob, now: float, bounds: Bounds) -> str:
    """Return why the job cannot have a turn now, because of the bounds; empty: it can."""
    living = len(queue.with_turn)
    if living >= bounds.slots:
        return f"{living} of {bounds.slots} slots are in use"
    if bounds.max_cost is None:
        return ""
    if job.most_usd is None:
        return "its price is not known, and the queue has a `max_cost`"
    if job.most_usd > bounds.max_cost:
        return (
            f"it never starts so: it may cost ${job.most_usd:.2f}, more than max_cost (${bounds.max_cost:.2f}); "
            "add it with a shorter limits.max_duration"
        )
    committed = queue.committed_usd(now, bounds.per_s)
    if committed + job.most_usd > bounds.max_cost:
        return (
            f"${committed:.2f} of ${bounds.max_cost:.2f} are spent or claimed, "
            f"and this job may cost ${job.most_usd:.2f}"
        )
    return ""


def why_not_now(queue: Queue, job: QueuedJob, now: float, bounds: Bounds) -> str:
    """Return why a job that waits has no turn now; empty: it can begin."""
    if job.held:
        return "it is held: `tpujob queue release` lets it go on"
    if job.not_before > now:
        return job.why or "it waits for a moment"
    refusal = queue.refusal(job.request)
    if refusal is not None and refusal.until > now:
        return refusal.why
    return no_room(queue, job, now, bounds)


def next_jobs(queue: Queue, now: float, bounds: Bounds) -> Iterator[QueuedJob]:
    """Yield the jobs that can begin now, in order. One that no place has room for does not hold up others."""
    if len(queue.with_turn) >= bounds.slots:
        return iter(())
    return (each for each in queue.waiting if not each.removed and not why_not_now(queue, each, now, bounds))


# -- steps --------------------------------------------------------------------------------------------------------------


def claim(job_id: str, turn: Turn, bounds: Bounds, for_s: float) -> Step:
    """A job begins its next turn."""

    def step(queue: Queue, now: float) -> Queue | None:
        job = queue.job(job_id)
        if job is None or (job.turn is not None and job.turn.token != turn.token):
            return None
        if job.turn is not None:
            return queue
        if job.end is not None or job.removed or why_not_now(queue, job, now, bounds):
            return None
        return queue.having(_begun(job, turn, now, for_s))

    return step


def _begun(job: QueuedJob, turn: Turn, now: float, for_s: float) -> QueuedJob:
    begun = replace(turn, attempt=job.attempts + 1, began_at=now, until=now + for_s, most_usd=job.most_usd)
    return replace(job, why="", turn=begun)


def pass_on(before: str, following: str, token: str, turn: Turn, bounds: Bounds, for_s: float) -> Step:
    """The slice of a job that has ended goes on to another one, in one step."""

    def step(queue: Queue, now: float) -> Queue | None:
        one, other = queue.job(before), queue.job(following)
        if one is None or other is None:
            return None
        if other.turn is not None and other.turn.token == turn.token:
            return queue
        if one.turn is None or one.turn.token != token or one.end is None:
            return None
        freed = queue.having(_over(one, now, _used_usd(one.turn, now)))
        if other.turn is not None or other.end is not None or other.removed or why_not_now(freed, other, now, bounds):
            return None
        return freed.having(_begun(other, replace(turn, leases=one.turn.leases), now, for_s))

    return step


def take(job_id: str, seen: Turn, changed: Turn, for_s: float, *, dead: bool = False) -> Step:
    """A turn changes hands: its runner left it, or its claim is over. `dead`: it is known that the runner has ended."""

    def step(queue: Queue, now: float) -> Queue | None:
        job = queue.job(job_id)
        turn = None if job is None else job.turn
        if job is None or turn is None:
            return None
        if turn.token == changed.token:
            return queue
        if turn.token != seen.token or turn.stage is not seen.stage or (turn.until > now and not dead):
            return None
        kept = replace(changed, leases=turn.leases)  # as they are now, not as they were seen
        return queue.having(replace(job, turn=replace(kept, until=now + for_s)))

    return step


def _mine(job_id: str, token: str, change: Callable[[QueuedJob, Turn, float], QueuedJob]) -> Step:
    """A step of the runner that has the turn; others are not asked, and change nothing."""

    def step(queue: Queue, now: float) -> Queue | None:
        job = queue.job(job_id)
        if job is None or job.turn is None or job.turn.token != token:
            return None
        return queue.having(change(job, job.turn, now))

    return step


def intend(job_id: str, token: str, lease: Mapping[str, Any], for_s: float) -> Step:
    """A slice is about to be created for the turn: whoever takes the turn knows of it. Not for one that was removed."""

    def step(queue: Queue, now: float) -> Queue | None:
        job = queue.job(job_id)
        turn = None if job is None else job.turn
        if job is None or turn is None or turn.token != token or turn.stage is not Stage.STARTING or job.removed:
            return None
        others = tuple(each for each in turn.leases if each["id"] != lease["id"])
        return queue.having(replace(job, turn=replace(turn, leases=(*others, dict(lease)), until=now + for_s)))

    return step


def renew(tokens: Mapping[str, str], for_s: float) -> Step:
    """The runner is alive: its turns, token by job, stay its own."""

    def step(queue: Queue, now: float) -> Queue | None:
        return queue.having(
            *(
                replace(job, turn=replace(job.turn, until=now + for_s))
                for job in queue.with_turn
                if job.turn is not None and job.turn.token == tokens.get(job.id) and job.turn.until > 0  # not left yet
            )
        )

    return step


def hand_over(job_id: str, token: str, lease: Mapping[str, Any]) -> Step:
    """The job gets its slice, and is about to start: from here on it has begun, whatever becomes of the runner."""

    def change(job: QueuedJob, turn: Turn, now: float) -> QueuedJob:
        others = tuple(each for each in turn.leases if each["id"] != lease["id"])
        handed = replace(turn, stage=Stage.RUNNING, leases=(*others, dict(lease)))
        return job if turn.stage is Stage.RUNNING else replace(job, attempts=turn.attempt, turn=handed)

    return _mine(job_id, token, change)


def saw(
    job_id: str, token: str, metrics: Mapping[str, Any], *, leave: bool = False, runs: bool = False, problem: str = ""
) -> Step:
    """The job was looked at, or has started. `leave`: it needs no runner; `runs`: its workers say that it runs."""

    def change(job: QueuedJob, turn: Turn, now: float) -> QueuedJob:
        seen = replace(turn, metrics=dict(metrics) or turn.metrics, problem=problem, runs=runs or turn.runs)
        if leave or runs:
            seen = replace(seen, seen_at=now)
        return replace(job, turn=replace(seen, until=0.0) if leave else seen)

    return _mine(job_id, token, change)


def ended(job_id: str, token: str, end: End) -> Step:
    """The job has ended; its slices may still be there."""

    def change(job: QueuedJob, turn: Turn, now: float) -> QueuedJob:
        return replace(job, end=job.end or replace(end, at=now), turn=replace(turn, stage=Stage.UNDOING))

    return _mine(job_id, token, change)


def leave(job_id: str, token: str, problem: str, *, undone: bool = True) -> Step:
    """A turn is to be undone. The runner leaves it to the next pass, unless it does that itself: not `undone` yet."""

    def change(job: QueuedJob, turn: Turn, now: float) -> QueuedJob:
        until = 0.0 if undone else turn.until
        return replace(job, turn=replace(turn, stage=Stage.UNDOING, until=until, problem=problem))

    return _mine(job_id, token, change)


@dataclass(frozen=True)
class Again:
    """Why a job waits again, and for how many seconds. `refused`: so do all jobs with the same request."""

    why: str = ""
    for_s: float = 0.0
    refused: bool = False
    lost: bool = False  # its slice was taken away
    unfinished: bool = False  # its runner ended before it had started
    got_slice: bool = True  # it may have written where the next attempt looks, under its number


def gone(job_id: str, token: str, what: Again, usd: float | None = None) -> Step:
    """Every slice of the turn is proven gone: it is over, and the job has ended or waits again."""

    def step(queue: Queue, now: float) -> Queue | None:
        job = queue.job(job_id)
        turn = None if job is None else job.turn
        if job is None or turn is None or turn.token != token:
            return None
        used = _used_usd(turn, now)
        after = _over(job, now, used if usd is None else min(usd, used))
        after = replace(after, attempts=max(job.attempts, turn.attempt)) if what.got_slice else after
        refused = queue.refused
        if after.end is None and job.removed:
            after = replace(after, end=End("canceled", now, 71, "removed from the queue"))
        elif after.end is None and turn.then is not None:
            after = replace(after, end=replace(turn.then, at=now))
        elif after.end is None:
            lost, stumbled = bool(turn.lost) or what.lost, what.unfinished and not turn.lost
            after = replace(after, losses=job.losses + lost, why=turn.lost or what.why)
            after = replace(after, stumbles=job.stumbles + 1 if stumbled else 0)
            if (lost and after.losses > job.restarts) or after.stumbles > MOST_STUMBLES:
                after = replace(after, end=End("interrupted", now, 71, after.why))
            elif what.refused:
                before = queue.refusal(job.request) or Refusal()
                pause_s = what.for_s * 2 ** min(before.tries, 4)
                refused = refused | {job.request: asdict(Refusal(what.why, now + pause_s, before.tries + 1))}
            else:
                after = replace(after, not_before=now + what.for_s)
        if not what.refused and job.request in refused:
            refused = {request: each for request, each in refused.items() if request != job.request}
        return replace(queue.having(after), refused=refused)

    return step


def _over(job: QueuedJob, now: float, usd: float) -> QueuedJob:
    spent = (*job.spent, [now, round(usd, 6)]) if usd else job.spent
    metrics = job.turn.metrics if job.turn is not None else {}
    return replace(job, turn=None, spent=spent, metrics=metrics or job.metrics)


def _used_usd(turn: Turn, now: float) -> float:
    """What the slices of a turn cost at most until now: since each was created, by the price table."""
    usd = sum((each.get("usd_per_hour") or 0.0) for each in turn.leases) * max(now - turn.began_at, 0.0) / 3600
    return min(usd, turn.most_usd) if turn.most_usd is not None else usd


def add(*jobs: QueuedJob) -> Step:
    """Jobs join the queue, all or none. What ended long ago leaves it."""

    def step(queue: Queue, now: float) -> Queue | None:
        known = {each.id for each in queue.jobs}
        if jobs and jobs[0].id in known:
            return queue
        last = max((each.order for each in queue.jobs), default=0.0)
        new = [replace(each, added_at=now, order=last + number) for number, each in enumerate(jobs, 1)]
        ended_before = sorted(
            (each for each in queue.jobs if each.end and not each.turn), key=lambda each: -_end_at(each)
        )
        dropped = {
            each.id
            for each in ended_before[MOST_ENDED:]
            if _end_at(each) < now - KEPT_S and all(at < now - LONGEST_S for at, _ in each.spent)
        }
        kept = (each for each in queue.jobs if each.id not in dropped)
        return replace(queue, jobs=(*kept, *new), version=VERSIONS[-1])

    return step


def _end_at(job: QueuedJob) -> float:
    return job.end.at if job.end is not None else 0.0


def changed(job_ids: list[str], change: Callable[[QueuedJob], QueuedJob], *, ask_again: bool = False) -> Step:
    """What a user changes of jobs that have not ended: held, priority, order, removed. `ask_again`: where they were refused."""

    def step(queue: Queue, now: float) -> Queue | None:
        found = [job for job in queue.jobs if job.id in job_ids and job.end is None]
        made = [change(job) for job in found]
        made = [replace(j, end=End("removed", now)) if j.removed and j.turn is None else j for j in made]
        asked = {each.request for each in found} if ask_again else ()
        refused = {request: each for request, each in queue.refused.items() if request not in asked}
        return replace(queue.having(*made), refused=refused)

    return step
