"""The programs of a runner: a pass over the queue, and what follows for each job. Level-triggered: read, decide, act.

They await the methods of `Hands`, which do everything that is not decided here: the store, the cloud, the workers. A runner may
be killed at each of them; what it had begun is in the record, and the next pass finishes or undoes it. The simulator drives the
same programs with hands of its own (`tests/simulation/queue/`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import Any, Protocol

from orchestrator.errors import TpujobError
from orchestrator.queue import steps
from orchestrator.queue.record import Bounds, End, Queue, QueuedJob, Stage, Turn
from orchestrator.queue.steps import Again, Step
from orchestrator.queue.store import Conflict

MOST_TRIES = 30  # of a conditional write, while other runners are faster
RUNS = ("running", "partial")
NEVER_MIND = Again()
UNFINISHED = "its start was not finished"
NO_SLICE = "its slice is gone"
NOT_COLLECTED = "it had ended, and its results were not collected: the runner that began to do so has ended"


class TurnLost(TpujobError):
    """The turn is another runner's by now, or its job was removed: this one stops, and creates nothing more."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The record as it was read. `now`: the store's time."""

    queue: Queue
    generation: str
    now: float


@dataclass(frozen=True, slots=True)
class Look:
    """What the cloud and the workers say of the job of a turn.

    `state`: `unknown`; `none`: no worker has begun it; `partial`: some have; `running`; `ended`; `lost`: its slice was taken
    away, as `why` says; `gone`: there is no slice any more, and the end of the job is not known, unless `end` says it.
    """

    state: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    end: End | None = None
    succeeded: bool = False  # the job, on every worker


@dataclass(frozen=True, slots=True)
class Did:
    """How a start, a collection or an undoing ended here.

    `gone`: every slice of the turn is proven gone. `running`: the turn goes on without this runner. `end`: the job has ended.
    `again`: why it did not start. `usd`: what the turn cost, where that is known. `follows`: the job to which the slice went.
    """

    gone: bool = False
    running: bool = False
    end: End | None = None
    again: Again = NEVER_MIND
    usd: float | None = None
    problem: str = ""
    follows: QueuedJob | None = None


class Records(Protocol):
    """The record in its store. Methods raise TpujobError; `write` raises `Conflict`, too."""

    alone: AbstractContextManager[Any]  # of the threads of a process one at a time reads and writes

    async def read(self) -> Seen: ...
    async def write(self, queue: Queue, generation: str) -> None:
        """Replace the record of this generation, and say nothing where the reply was lost but the write took effect."""


class Hands(Records, Protocol):
    """What a runner does. Methods raise TpujobError."""

    runner: str
    bounds: Bounds
    claim_s: float  # how long a turn is a runner's without a word of it
    pause_s: float  # after a refusal

    async def token(self) -> str: ...
    def is_dead(self, runner: str) -> bool:
        """Whether this machine knows that the process of this name has ended."""

    def cannot(self, job: QueuedJob) -> str:
        """Return what this runner lacks for the job, such as a variable; empty: nothing."""

    async def start(self, job: QueuedJob, turn: Turn, gates: Gates) -> Did:
        """Start the job on a slice, that of `turn.leases` if there is one, and leave it there; or prove what was made gone."""

    async def look(self, job: QueuedJob, turn: Turn) -> Look: ...
    async def collect(self, job: QueuedJob, turn: Turn, gates: Gates) -> Did:
        """Collect the results of a job that has ended, and release its slice, proven, or pass it on."""

    async def undo(self, job: QueuedJob, turn: Turn) -> Did:
        """Delete every slice of the turn, and prove it."""

    def stops(self) -> bool:
        """Whether this runner was told to end: it begins nothing more."""

    async def spawn(self, program: Coroutine[Any, Any, None]) -> None:
        """Run a program beside this one."""

    def own(self, job: str, token: str) -> None:
        """From here on this turn is renewed, until the program that calls this ends."""

    async def settle(self) -> None:
        """Wait until workers have published what a runner that lost its turn a moment ago may have started on them."""

    async def wait(self) -> bool:
        """Wait until one of those programs ends, or for a while; return False at once if there is none."""

    async def tell(self, job: QueuedJob, text: str) -> None: ...


async def change(hands: Records, step: Step) -> Queue | None:
    """Apply the step to the record, again and again while others are faster. None: it does not apply. Raises TpujobError."""
    for _ in range(MOST_TRIES):
        with hands.alone:
            seen = await hands.read()
            after = step(seen.queue, seen.now)
            if after is None or after is seen.queue:
                return after
            try:
                await hands.write(after, seen.generation)
            except Conflict:
                continue
            return after
    raise TpujobError("the record of the queue is written by others all the time", hint="try again")


@dataclass(frozen=True, slots=True)
class Gates:
    """What a turn has to write into the record before it goes on. Each raises TurnLost once the turn is not its own."""

    hands: Hands
    job: str
    token: str

    async def _passed(self, step: Step) -> None:
        if await change(self.hands, step) is None:
            raise TurnLost("another runner has this job now, or it was removed from the queue")

    async def before_create(self, lease: Mapping[str, Any]) -> None:
        """A slice is about to be created. The call leaves within seconds of this, or not at all."""
        await self._passed(steps.intend(self.job, self.token, lease, self.hands.claim_s))

    async def before_start(self, lease: Mapping[str, Any]) -> None:
        """The slice is the job's: what was claimed of it by this runner is claimed by the job. The job starts next."""
        await self._passed(steps.hand_over(self.job, self.token, lease))

    async def ended(self, end: End) -> None:
        """The job has ended, and its results are here, or never come. Its slice is released next."""
        await self._passed(steps.ended(self.job, self.token, end))

    async def pass_on(self) -> QueuedJob | None:
        """Give the slice to the next job that can use it; return that, with its turn. None: there is none."""
        hands = self.hands
        seen = await hands.read()
        job = seen.queue.job(self.job)
        if job is None or job.turn is None or job.turn.token != self.token:
            return None
        freed = seen.queue.having(replace(job, turn=None))
        room = hands.bounds.slots - len(freed.with_turn)
        able = (each for each in steps.next_jobs(freed, seen.now, hands.bounds) if not hands.cannot(each))
        # A slice that is there lets no job begin before one with a better place.
        for other in islice(able, max(room, 0)):
            if other.request == job.request:
                turn = Turn(await hands.token(), hands.runner)
                step = steps.pass_on(self.job, other.id, self.token, turn, hands.bounds, hands.claim_s)
                with hands.alone:  # from here on this one is renewed, and not the one before, whose turn is over
                    after = await change(hands, step)
                    if after is not None:
                        hands.own(other.id, turn.token)
                return None if after is None else after.job(other.id)
        return None

    async def not_started(self) -> bool:
        """The start of the job failed after `before_start`: return whether its slice is still this runner's to delete."""
        return await change(self.hands, steps.leave(self.job, self.token, "", undone=False)) is not None


async def one_pass(hands: Hands) -> None:
    """Do all that is due: look at every turn that nobody has, then begin jobs while there is room. Raises TpujobError.

    It goes on while something that it has begun does: what becomes due meanwhile is done, too.
    """
    over: list[tuple[str, str]] = []
    tried: dict[tuple[str, str], float] = {}  # jobs that begin, and attempts: a turn that was looked at is another turn

    def is_due(key: tuple[str, str], now: float) -> bool:
        if now - tried.get(key, -inf) < hands.claim_s / 2:
            return False
        tried[key] = now
        return True

    async def attended(job: QueuedJob, turn: Turn, *, dead: bool) -> None:
        try:
            await attend(hands, job, turn, dead=dead)
        finally:
            over.append((job.id, str(turn.attempt)))

    while True:
        if hands.stops():
            if not await hands.wait():
                return
            continue
        seen = await hands.read()
        while over:  # what took long, such as a deletion without an answer, is not due again at once: a pass ends
            tried[over.pop()] = seen.now
        for job in seen.queue.with_turn:
            turn = job.turn
            if turn is None:
                continue
            dead = hands.is_dead(turn.runner)
            if (turn.until <= seen.now or dead) and is_due((job.id, str(turn.attempt)), seen.now):
                await hands.spawn(attended(job, turn, dead=dead))
        lacking: dict[str, str] = {}
        for job in steps.next_jobs(seen.queue, seen.now, hands.bounds):
            if not is_due((job.id, ""), seen.now):
                continue
            if why := hands.cannot(job):
                lacking |= {} if job.why == why else {job.id: why}
                continue
            turn = Turn(await hands.token(), hands.runner)
            after = await change(hands, steps.claim(job.id, turn, hands.bounds, hands.claim_s))
            mine = None if after is None else after.job(job.id)
            if mine is None or mine.turn is None:
                break  # what was seen is over: it looks again
            tried[job.id, str(mine.turn.attempt)] = seen.now
            await hands.spawn(begin(hands, mine, mine.turn))
        if lacking:  # all at once: there may be a thousand
            await _explain(hands, seen.queue, lacking)
        if not await hands.wait():
            return


async def _explain(hands: Hands, queue: Queue, lacking: Mapping[str, str]) -> None:
    """Write down what this runner lacks for jobs, and say it."""
    await change(hands, steps.changed([*lacking], lambda each: replace(each, why=lacking[each.id])))
    for job in queue.jobs:
        if job.id in lacking:
            await hands.tell(job, lacking[job.id])


async def begin(hands: Hands, job: QueuedJob, turn: Turn) -> None:
    """Start a job whose turn is this runner's."""
    hands.own(job.id, turn.token)
    try:
        did = await hands.start(job, turn, Gates(hands, job.id, turn.token))
    except TurnLost as error:
        await hands.tell(job, error.message)
        return
    await _settle(hands, job, turn, did)


async def attend(hands: Hands, job: QueuedJob, turn: Turn, *, dead: bool = False) -> None:
    """Do what is due for a turn that no runner has. `dead`: the one that it names has ended, as this machine knows."""
    if turn.stage is Stage.RUNNING and job.end is None:
        left = turn.until <= 0
        if not left:  # its runner may have started it, or not, or may be about to
            mine = await _taken(hands, job, turn, turn, dead=dead)
            if mine is None or mine.turn is None:
                return
            job, turn, dead = mine, mine.turn, True
        # Before it looks: a runner that slept meanwhile must take no old answer for a new one.
        seen = await hands.read()
        found = await hands.look(job, turn)
        if not left and found.state in ("none", "partial"):
            await hands.settle()
            found = await hands.look(job, turn)
        if left and found.state == "none" and not turn.runs and seen.now - turn.seen_at < hands.claim_s:
            found = replace(found, state="unknown")  # it has just been started: its workers have not said so yet
        if job.removed and found.state != "ended":  # what it has written goes with it; of one that has ended it is kept
            found = replace(found, state="removed")
        if found.state == "unknown" or (found.state in RUNS and left) or found.state == "running":
            runs = found.state in RUNS
            step = steps.saw(job.id, turn.token, found.metrics, leave=runs, runs=runs, problem=found.why)
            await change(hands, step)
            return
        if found.state == "ended":
            await _collect(hands, job, _ended(turn, found), dead=dead)
            return
        changed = replace(turn, stage=Stage.UNDOING, lost=found.why if found.state == "lost" else "")
        if found.state == "gone" or (found.state == "none" and left):
            why = f"{found.why or NO_SLICE}; whether it had ended is not known"
            changed = replace(changed, then=found.end or End("interrupted", 0.0, 71, why))
    elif turn.stage is Stage.COLLECTING and job.end is None:
        found = await hands.look(job, turn)
        if found.state == "unknown":
            return
        if found.state in ("ended", *RUNS):
            await _collect(hands, job, turn, dead=dead)
            return
        changed = replace(turn, stage=Stage.UNDOING, then=found.end or End("interrupted", 0.0, 71, NOT_COLLECTED))
        if found.state == "lost" and not turn.succeeded:  # the notice of the preemption may have ended it
            changed = replace(turn, stage=Stage.UNDOING, lost=found.why or NO_SLICE)
    else:
        changed = replace(turn, stage=Stage.UNDOING)
    mine = await _taken(hands, job, turn, changed, dead=dead)
    if mine is not None and mine.turn is not None:
        await _settle(hands, mine, mine.turn, await hands.undo(mine, mine.turn))


def _ended(turn: Turn, found: Look) -> Turn:
    return replace(turn, succeeded=found.succeeded, metrics=dict(found.metrics) or turn.metrics)


async def _taken(hands: Hands, job: QueuedJob, seen: Turn, changed: Turn, *, dead: bool) -> QueuedJob | None:
    """Return the job with its turn, which is this runner's now; None: another one was faster."""
    token = await hands.token()
    mine = replace(changed, token=token, runner=hands.runner)
    after = await change(hands, steps.take(job.id, seen, mine, hands.claim_s, dead=dead))
    if after is None:
        return None
    hands.own(job.id, token)
    return after.job(job.id)


async def _collect(hands: Hands, job: QueuedJob, turn: Turn, *, dead: bool) -> None:
    mine = await _taken(hands, job, turn, replace(turn, stage=Stage.COLLECTING), dead=dead)
    if mine is None or mine.turn is None:
        return
    gates = Gates(hands, mine.id, mine.turn.token)
    try:
        did = await hands.collect(mine, mine.turn, gates)
    except TurnLost as error:
        await hands.tell(mine, error.message)
        return
    if did.follows is not None and did.follows.turn is not None:
        await begin(hands, did.follows, did.follows.turn)
        return
    if did.end is None and not did.gone:  # it has ended, and its results are still there: the next pass collects them
        did = replace(did, running=True)
    await _settle(hands, mine, mine.turn, did)


async def _settle(hands: Hands, job: QueuedJob, turn: Turn, did: Did) -> None:
    """Write down how it ended."""
    if did.running:
        await change(hands, steps.saw(job.id, turn.token, {}, leave=True, problem=did.problem))
        return
    if did.end is not None:
        await change(hands, steps.ended(job.id, turn.token, did.end))
    if did.gone:
        await change(hands, steps.gone(job.id, turn.token, did.again, did.usd))
    else:
        await change(hands, steps.leave(job.id, turn.token, did.problem))


def play(program: Coroutine[Any, Any, Any]) -> Any:
    """Run a program whose hands never suspend it, to its end; return its result."""
    try:
        program.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the hands of a runner do not wait by themselves")
