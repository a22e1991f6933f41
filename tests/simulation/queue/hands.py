"""The hands of a simulated runner: each of its calls takes a while, may fail, and may be the last one of the runner."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import coroutine
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, TpujobError
from orchestrator.queue import passes, steps
from orchestrator.queue.passes import Did, Gates, Look, Seen, TurnLost
from orchestrator.queue.record import Bounds, End, Queue, QueuedJob, Turn
from orchestrator.queue.steps import Again
from orchestrator.queue.store import Conflict, StoreUnavailable
from tests.simulation.queue.cloud import HEARTBEAT_S, LEAVE_S, PROOF_S, Slice

if TYPE_CHECKING:
    from tests.simulation.queue.world import Task, World

CLAIM_S, PAUSE_S, WAIT_S = 300.0, 120.0, 60.0
REFUSED, FAILED = "no capacity", "its setup failed"


@coroutine
def pause(seconds: float) -> Generator[float, Any, Any]:
    """Suspend the program for so long; a negative number: until it is woken."""
    return (yield seconds)


class SimHands:
    """A runner, or the process of a user (`machine` is empty)."""

    def __init__(self, world: World, runner: str, machine: str = "") -> None:
        self.world, self.runner, self.machine, self.bounds = world, runner, machine, world.plan.bounds
        self.claim_s, self.pause_s = CLAIM_S, PAUSE_S
        self.alone: AbstractContextManager[Any] = nullcontext()
        self.alive, self.asleep_until = True, 0.0
        self.tasks: list[Task] = []
        self.children: list[Task] = []
        self.ended, self.waits = 0, 0
        self.waiter: Task | None = None
        self.owned: dict[str, tuple[str, Task]] = {}
        self.asked: set[str] = set()  # jobs that this pass has looked at
        self.listed: Seen | None = None  # the record as the pass looked at it last
        self.lists = False

    # -- the store -----------------------------------------------------------------------------------------------------

    async def read(self) -> Seen:
        world = self.world
        if world.cut(self, "read"):
            await pause(5.0)
            raise StoreUnavailable("no answer")
        if world.plan.unreadable and world.now < world.plan.faults_until and world.within(world.plan.unreadable):
            await pause(0.2)
            raise ConfigError("it cannot be read")
        seen = Seen(world.store.queue, str(world.store.generation), world.now)
        if self.lists and world.task in self.tasks[:1]:
            if self.listed is not None:
                self.asked |= {each.id for each in steps.next_jobs(self.listed.queue, self.listed.now, self.bounds)}
            self.listed, self.lists = seen, False
        await pause(0.1)
        return seen

    async def write(self, queue: Queue, generation: str) -> None:
        world, store, rng = self.world, self.world.store, self.world.rng
        if world.cut(self, "write"):
            await pause(5.0)
            raise StoreUnavailable("no answer")
        store.writes += 1
        name = f"{self.runner}/{store.writes}"
        queue = replace(queue, write=name)
        late = rng.random() < world.rate("late")
        if late:
            took: list[bool] = []
            travel = rng.choice((1.0, 8.0, 30.0))
            world.at(travel, lambda: took.append(store.put(queue, generation, self.runner)))
            await pause(travel + rng.choice((0.1, 5.0, 400.0)))
            done = took == [True]
        else:
            done = store.put(queue, generation, self.runner)
            await pause(0.1)
        if rng.random() < world.rate("lost_reply"):  # it asks who wrote last
            if world.cut(self, "read") or rng.random() < 0.3:
                raise StoreUnavailable("the reply was lost")
            done = store.queue.write == name
            await pause(0.2)
        if not done:
            raise Conflict

    async def token(self) -> str:
        await pause(0.01)
        self.world.tokens += 1
        return f"t{self.world.tokens}"

    def stops(self) -> bool:
        return False

    def is_dead(self, runner: str) -> bool:
        return runner in self.world.dead.get(self.machine, ())

    def cannot(self, job: QueuedJob) -> str:
        return "a variable is missing" if job.id in self.world.plan.lacking.get(self.machine, ()) else ""

    # -- programs ------------------------------------------------------------------------------------------------------

    async def spawn(self, program: Coroutine[Any, Any, None]) -> None:
        self.children.append(self.world.run(self, program, self._child_ended))
        await pause(0.01)

    def _child_ended(self, task: Task) -> None:
        self.children.remove(task)
        self.owned = {job: (token, by) for job, (token, by) in self.owned.items() if by is not task}
        self.ended += 1
        self._waited(self.waiter, self.waits)

    def _waited(self, waiter: Task | None, number: int) -> None:
        if waiter is not None and self.waiter is waiter and self.waits == number:
            self.waiter, self.waits = None, number + 1
            self.world.at(0.0, waiter.step)

    async def wait(self) -> bool:
        self.lists = True
        if not self.ended and not self.children:
            return False
        if not self.ended:
            self.waiter = self.world.task
            self.world.at(WAIT_S, self._waited, self.waiter, self.waits)
            await pause(-1.0)
        self.ended = 0
        return True

    def own(self, job: str, token: str) -> None:
        assert self.world.task is not None
        self.owned[job] = (token, self.world.task)

    async def renewal(self) -> None:
        """Renew all turns that are this runner's, as long as it lives."""
        while True:
            await pause(self.claim_s / 4)
            if self.owned:
                tokens = {job: token for job, (token, _) in self.owned.items()}
                try:
                    await passes.change(self, steps.renew(tokens, self.claim_s))
                except TpujobError:
                    pass

    async def settle(self) -> None:
        await pause(LEAVE_S + HEARTBEAT_S + 1.0)

    async def tell(self, job: QueuedJob, text: str) -> None:
        self.world.log(f"{self.runner}: {job.id}: {text}")
        await pause(0.01)

    # -- the cloud -----------------------------------------------------------------------------------------------------

    def beats(self) -> Callable[[], bool]:
        task = self.world.task
        assert task is not None
        return lambda: self.alive and not task.done and self.asleep_until <= self.world.now

    async def lookup(self, name: str) -> Slice | None:
        """Return the slice as it is listed. Raises StoreUnavailable, as any TpujobError."""
        found, failed = self.world.cloud.visible(name), self.world.rng.random() < self.world.rate("lookup")
        await pause(0.3)
        if failed:
            raise StoreUnavailable("no answer of the cloud")
        return found

    async def proven(self, names: list[str], since: float) -> bool:
        """Delete these slices until all are gone, and creates that left before `since` can have no effect any more."""
        for _ in range(12):
            gone = True
            for name in names:
                try:
                    old = await self.lookup(name) is None and self.world.now >= since + PROOF_S
                    if not old:
                        gone = False
                        await self.delete(name)
                except StoreUnavailable:
                    gone = False
            if gone:
                return True
            await pause(10.0)
        return False

    async def delete(self, name: str) -> None:
        self.world.oracle.deletes(self.runner, name)
        self.world.cloud.delete(name)
        await pause(0.3)

    async def start(self, job: QueuedJob, turn: Turn, gates: Gates) -> Did:
        made: list[str] = []
        try:
            return await self._start(job, turn, gates, made)
        except TurnLost:
            for name in made:
                await self.delete(name)
            raise

    async def _start(self, job: QueuedJob, turn: Turn, gates: Gates, made: list[str]) -> Did:
        world, cloud = self.world, self.world.cloud
        lease = await self._passed_on(turn)
        if turn.leases and lease is None and not await self.proven([each["id"] for each in turn.leases], world.now):
            return Did(problem="the slice of the job before is still there")
        for number in range(3):
            if lease is not None:
                break
            lease = {"id": f"{job.id}-{turn.attempt}-{turn.token}-{number}", "usd_per_hour": world.plan.usd_per_hour}
            began = world.now
            await gates.before_create(lease)
            if world.now - began > LEAVE_S:
                lease = None
                continue
            made.append(lease["id"])
            cloud.create(lease["id"], self.beats(), began + LEAVE_S)
            if not await self._is_ready(lease["id"]):
                if not await self.proven([lease["id"]], began):
                    return Did(problem="it cannot be deleted")
                lease = None
        if lease is None:
            return Did(gone=True, again=Again(REFUSED, self.pause_s, refused=True))
        await pause(world.rng.uniform(5.0, 60.0))  # the setup
        failed = world.rng.random() < world.rate("setup")
        found = await self.lookup(lease["id"])
        if failed or found is None or found.state != "READY":
            if not await self.proven([lease["id"]], world.now):
                return Did(problem="it cannot be deleted")
            if failed:
                return Did(gone=True, end=End("failed", 0.0, 70, FAILED))
            return Did(gone=True, again=Again("it was taken away", 10.0, lost=True))
        cloud.detach(found, job.id, turn.attempt)
        await pause(0.3)
        made.clear()  # from here on, the runner that has the turn finds out whether the job runs
        while True:
            began = world.now
            await gates.before_start(lease)
            if world.now - began <= LEAVE_S:
                break
        for worker in range(world.plan.work[job.id].workers):
            if world.now - began > LEAVE_S:  # so it never will
                if not await gates.not_started():
                    raise TurnLost("another runner has it")
                return Did(gone=await self.proven([lease["id"]], world.now), problem="it did not start on all workers")
            cloud.start(lease["id"], job.id, turn.attempt, worker, began + LEAVE_S)
            await pause(0.6)
        main = found.main(job.id, turn.attempt)
        if world.plan.hasty and main is not None and len(main.published) == world.plan.work[job.id].workers:
            return Did(running=True)
        for _ in range(9):
            await pause(10.0)
            if (await self.look(job, replace(turn, leases=(lease,)))).state in ("running", "ended"):
                return Did(running=True)
        raise StoreUnavailable("it is not known whether it started")  # whoever takes the turn finds out

    async def _passed_on(self, turn: Turn) -> Any:
        if not turn.leases:
            return None
        lease = turn.leases[-1]
        found = await self.lookup(lease["id"])
        if found is None or found.state != "READY":
            return None
        found.mode, found.beaten, found.beat_at = "run", self.beats(), self.world.now
        await pause(0.3)
        return lease

    async def _is_ready(self, name: str) -> bool:
        for _ in range(20):
            await pause(10.0)
            try:
                found = await self.lookup(name)
            except StoreUnavailable:
                continue
            if self.world.cloud.answers.get(name) == "refused" or (found is not None and found.state == "PREEMPTED"):
                return False
            if found is not None and found.state == "READY":
                return True
        return False

    async def look(self, job: QueuedJob, turn: Turn) -> Look:
        now = self.world.now
        try:
            found = await self.lookup(turn.leases[-1]["id"])
        except StoreUnavailable:
            return Look("unknown", why="no answer")
        if found is None:
            return Look("gone")
        if found.state == "PREEMPTED":
            return Look("lost", why="it was preempted")
        main = found.main(job.id, turn.attempt)
        known = 0 if main is None else sum(at <= now for at in main.published.values())
        if main is not None and main.ended_at is not None and main.end_known_at <= now:
            return Look("ended", succeeded=self.world.plan.work[job.id].code == 0)
        if found.state == "DELETING":
            return Look("unknown", why="it is being deleted")
        return Look(("running" if known == self.world.plan.work[job.id].workers else "partial") if known else "none")

    async def collect(self, job: QueuedJob, turn: Turn, gates: Gates) -> Did:
        world = self.world
        names = [each["id"] for each in turn.leases]
        found = await self.lookup(names[-1])
        await pause(world.rng.uniform(5.0, 90.0))
        main = None if found is None else found.main(job.id, turn.attempt)
        code = world.plan.work[job.id].code if main is not None and main.ended_at is not None else None
        state = "interrupted" if code is None else "failed" if code else "succeeded"
        await gates.ended(End(state, 0.0, 71 if code is None else code))
        follows = await gates.pass_on()
        if follows is not None:
            return Did(follows=follows)
        return Did(gone=await self.proven(names, world.now - PROOF_S))

    async def undo(self, job: QueuedJob, turn: Turn) -> Did:
        return Did(gone=await self.proven([each["id"] for each in turn.leases], self.world.now))


def bounds_of(slots: int, max_cost: float | None) -> Bounds:
    return Bounds(slots, max_cost, 3600.0)
