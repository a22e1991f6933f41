"""The store of the record, and the cloud: slices that come and go late, jobs on them, and their watchdogs.

What was sent takes effect whatever becomes of its sender: events of the world do it, not the runners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.queue.record import Queue, from_json

if TYPE_CHECKING:
    from tests.simulation.queue.world import World

LEAVE_S = (
    10.0  # a call that creates or starts something leaves, and takes effect, so soon after its gate began, or never
)
HIDDEN_S = 5.0  # a slice that was created is visible so late
HEARTBEAT_S = 60.0  # what workers publish is so late
TTL_S, LINGER_S, LIFE_S = 600.0, 1500.0, 9000.0  # of a slice without a runner; after its job ended; of any slice
LOOK_S = 100.0  # a watchdog looks so often
PROOF_S = LEAVE_S + HIDDEN_S + 1.0


class Store:
    """One object with generations. Its clock is the true time."""

    def __init__(self, world: World) -> None:
        self.world, self.queue, self.generation, self.writes = world, Queue(), 0, 0

    def put(self, queue: Queue, generation: str, by: str) -> bool:
        """Replace the record of this generation. Return whether that was so."""
        if generation != str(self.generation):
            return False
        before, self.queue = self.queue, from_json(queue.to_json(), "here") if self.world.plan.as_text else queue
        self.generation += 1
        self.world.oracle.written(before, self.queue, by)
        return True


@dataclass(slots=True)
class Main:
    """One attempt of a job on a slice. It does its work once all workers have started it."""

    job: str
    attempt: int
    published: dict[int, float] = field(default_factory=dict)  # by worker: when it is known that it started
    ended_at: float | None = None
    end_known_at: float = 0.0
    stopped: bool = False  # its slice is gone, or was taken away
    ran_all: bool = False

    @property
    def alive(self) -> bool:
        return bool(self.published) and self.ended_at is None and not self.stopped


@dataclass(slots=True)
class Slice:
    name: str
    created_at: float
    visible_at: float
    ready_at: float
    state: str = "CREATING"
    mode: str = "run"
    beaten: Callable[[], bool] = lambda: False  # is the runner that has it alive?
    beat_at: float = 0.0
    detached_at: float = 0.0
    setup: set[tuple[str, int]] = field(default_factory=set)
    mains: list[Main] = field(default_factory=list)

    def main(self, job: str, attempt: int) -> Main | None:
        return next((each for each in self.mains if (each.job, each.attempt) == (job, attempt)), None)

    def stop(self) -> None:
        for each in self.mains:
            each.stopped = each.stopped or each.ended_at is None


class Cloud:
    """All slices that exist, by name. `answers`: what became of each create."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.slices: dict[str, Slice] = {}
        self.answers: dict[str, str] = {}
        self.deadlines: dict[str, float] = {}  # until when each create that was sent may take effect

    def create(self, name: str, by: Callable[[], bool], leave_by: float) -> None:
        """Send a create: it takes effect before `leave_by`, or is lost."""
        world, rng = self.world, self.world.rng
        self.deadlines[name] = leave_by
        if rng.random() < world.rate("create_lost"):
            self.deadlines[name] = world.now
            return
        late = rng.random() < world.rate("late")
        at = rng.uniform(world.now, leave_by) if late else min(world.now + 1.0, leave_by)
        world.at(at - world.now, self._created, name, by)

    def _created(self, name: str, by: Callable[[], bool]) -> None:
        world, rng = self.world, self.world.rng
        self.deadlines[name] = world.now
        if any(begin <= world.now < end for begin, end in world.plan.full) or rng.random() < world.rate("refused"):
            self.answers[name] = "refused"
            return
        late = rng.random() < world.rate("late")
        visible_at = world.now + (rng.uniform(0.0, HIDDEN_S) if late else 0.0)
        made = Slice(name, world.now, visible_at, world.now + rng.uniform(20.0, 90.0), beaten=by, beat_at=world.now)
        self.slices[name] = made
        self.answers[name] = "created"
        world.log(f"{name} exists")
        world.oracle.created(made)
        world.at(made.ready_at - world.now, self._ready, made)
        world.at(LOOK_S, self._watch, made)
        if rng.random() < world.rate("preempted"):
            world.at(rng.choice((60.0, 200.0, 600.0, 1500.0)) * rng.random(), self._preempted, made)

    def _ready(self, made: Slice) -> None:
        if made.state == "CREATING":
            made.state = "READY"

    def _preempted(self, made: Slice) -> None:
        if made.name in self.slices and made.state != "DELETING":
            self.world.log(f"{made.name} is PREEMPTED")
            self.world.oracle.preempted(made)
            made.state = "PREEMPTED"
            made.stop()

    def _watch(self, made: Slice) -> None:
        """Delete a slice without a claim, from within: not one that was taken away."""
        world = self.world
        if made.name not in self.slices or made.state == "PREEMPTED":
            return
        made.beat_at = world.now if made.beaten() else made.beat_at
        main = made.mains[-1] if made.mains and made.mains[-1].published else None
        if made.mode == "run":
            over = world.now - made.beat_at > TTL_S
        elif main is None or main.stopped:
            over = world.now - made.detached_at > TTL_S
        else:
            over = main.ended_at is not None and world.now - max(main.ended_at, made.detached_at) > LINGER_S
        if over or world.now - made.created_at > LIFE_S:
            world.log(f"the watchdog deletes {made.name}")
            self.delete(made.name)
        world.at(LOOK_S, self._watch, made)

    def delete(self, name: str) -> None:
        """Take a delete: the slice is gone a while later, unless it is forgotten."""
        world = self.world
        made = self.slices.get(name)
        if made is None or made.state == "DELETING":
            return
        if world.rng.random() < world.rate("delete_forgotten"):
            return
        made.state = "DELETING"
        world.at(world.rng.uniform(1.0, 40.0), self._gone, made)

    def _gone(self, made: Slice) -> None:
        del self.slices[made.name]
        made.stop()
        self.world.log(f"{made.name} is gone")

    def visible(self, name: str) -> Slice | None:
        made = self.slices.get(name)
        return made if made is not None and made.visible_at <= self.world.now else None

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def detach(self, made: Slice, job: str, attempt: int) -> None:
        made.mode, made.detached_at = "detached", self.world.now
        made.mains.append(Main(job, attempt))

    def start(self, name: str, job: str, attempt: int, worker: int, leave_by: float) -> None:
        """Send the start of one worker."""
        world, rng = self.world, self.world.rng
        late = rng.random() < world.rate("late")
        at = rng.uniform(world.now, leave_by) if late else min(world.now + 0.5, leave_by)
        if rng.random() >= world.rate("start_lost"):
            world.at(at - world.now, self._started, name, job, attempt, worker)

    def _started(self, name: str, job: str, attempt: int, worker: int) -> None:
        world = self.world
        made = self.slices.get(name)
        main = made.main(job, attempt) if made is not None else None
        if (
            made is None
            or main is None
            or made.state not in ("READY", "DELETING")
            or main.stopped
            or worker in main.published
        ):
            return
        work = world.plan.work[job]
        world.log(f"{job} attempt {attempt} starts on worker {worker} of {name}")
        world.oracle.starting(made, main)
        main.published[worker] = world.now + world.rng.random() * HEARTBEAT_S
        if len(main.published) == work.workers:
            main.ran_all = True
            world.at(work.lasts_s, self._ended, made, main)

    def _ended(self, made: Slice, main: Main) -> None:
        if main.alive:
            main.ended_at = self.world.now
            main.end_known_at = self.world.now + self.world.rng.random() * HEARTBEAT_S
            self.world.log(f"{main.job} ends on {made.name}")
