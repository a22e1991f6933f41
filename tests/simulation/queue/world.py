"""A world of a queue: virtual time, machines with runners, users, and what goes wrong. From a seed, always the same.

Every suspension of a runner is a step at which it may die, or sleep. When the faults stop, the runners go on until all is done.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from orchestrator.errors import TpujobError
from orchestrator.queue import passes, steps
from orchestrator.queue.record import Bounds, QueuedJob
from orchestrator.queue.steps import Step
from tests.simulation.queue.cloud import Cloud, Store
from tests.simulation.queue.hands import SimHands, bounds_of, pause
from tests.simulation.queue.oracle import Broken, Oracle

MOST_S, MOST_STEPS = 60_000.0, 30_000  # after this, what is not done is stuck
Windows = list[tuple[float, float]]


@dataclass(frozen=True)
class Work:
    """What a job does when it runs."""

    lasts_s: float
    code: int = 0
    workers: int = 1


@dataclass
class Plan:
    """A world: what there is to do, and what goes wrong. Rates end at `faults_until`."""

    bounds: Bounds = field(default_factory=lambda: bounds_of(1, None))
    work: dict[str, Work] = field(default_factory=dict)
    users: list[tuple[float, Step, str]] = field(default_factory=list)
    machines: tuple[str, ...] = ("m0", "m1")
    rates: dict[str, float] = field(default_factory=dict)
    faults_until: float = 0.0
    cuts: dict[str, Windows] = field(default_factory=dict)  # by machine
    unreadable: Windows = field(default_factory=list)
    unwritable: Windows = field(default_factory=list)
    full: Windows = field(default_factory=list)  # there is no capacity
    lacking: dict[str, frozenset[str]] = field(default_factory=dict)  # jobs that a machine cannot start
    usd_per_hour: float = 1.0
    every_s: float = 60.0
    as_text: bool = False  # the record is written out and read at each step
    hasty: bool = False  # a start does not wait until the workers publish it
    patient: bool = True  # after an error, the runner waits for its programs before the next pass
    at_steps: dict[int, str | float] = field(default_factory=dict)  # what happens to the runner at these steps


class Task:
    """One program of a runner, or of a user."""

    __slots__ = ("coro", "done", "hands", "on_end", "world")

    def __init__(self, world: World, hands: SimHands, coro: Coroutine[Any, Any, None], on_end: Any) -> None:
        self.world, self.hands, self.coro, self.on_end, self.done = world, hands, coro, on_end, False

    def step(self) -> None:
        world, hands = self.world, self.hands
        if self.done:
            return
        if hands.asleep_until > world.now:
            world.at(hands.asleep_until - world.now, self.step)
            return
        world.task = self
        try:
            wait_s = self.coro.send(None)
        except (StopIteration, TpujobError) as error:
            if isinstance(error, TpujobError):
                world.log(f"{hands.runner}: {error}")
            self.done = True
            hands.tasks.remove(self)
            if self.on_end is not None:
                self.on_end(self)
            return
        finally:
            world.task = None
        if wait_s >= 0.0:
            world.at(wait_s, self.step)
        if hands.machine:
            world.stepped(hands)


class World:
    def __init__(self, plan: Plan, seed: int = 0, *, trace: bool = False) -> None:
        self.plan, self.rng = plan, Random(seed)
        self.now, self.steps, self.tokens = 0.0, 0, 0
        self.events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.numbers = count()
        self.task: Task | None = None
        self.trace: list[str] | None = [] if trace else None
        self.oracle = Oracle(self)
        self.store, self.cloud = Store(self), Cloud(self)
        self.dead: dict[str, set[str]] = {}
        self.runners: dict[str, SimHands] = {}
        self.users_left = len(plan.users)

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:10.1f}  {text}")

    def at(self, delay_s: float, do: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self.events, (self.now + delay_s, next(self.numbers), do, args))

    def rate(self, name: str) -> float:
        return self.plan.rates.get(name, 0.0) if self.now < self.plan.faults_until else 0.0

    def within(self, windows: Windows) -> bool:
        return any(begin <= self.now < end for begin, end in windows)

    def cut(self, hands: SimHands, what: str) -> bool:
        """Return whether this call to the store fails."""
        if self.now >= self.plan.faults_until:
            return False
        if what == "write" and self.within(self.plan.unwritable):
            return True
        return self.within(self.plan.cuts.get(hands.machine, ())) or self.rng.random() < self.rate("store")  # type: ignore[arg-type]

    # -- runners -------------------------------------------------------------------------------------------------------

    def run(self, hands: SimHands, coro: Coroutine[Any, Any, None], on_end: Any = None) -> Task:
        task = Task(self, hands, coro, on_end)
        hands.tasks.append(task)
        self.at(0.0, task.step)
        return task

    def boot(self, machine: str) -> None:
        hands = SimHands(self, f"{machine}/{len(self.dead.setdefault(machine, set()))}", machine)
        self.runners[machine] = hands
        self.run(hands, self._life(hands))
        self.run(hands, hands.renewal())

    async def _life(self, hands: SimHands) -> None:
        await pause(self.rng.uniform(0.0, self.plan.every_s))
        while True:
            hands.asked, hands.listed, hands.lists, hands.ended = set(), None, True, 0
            try:
                await passes.one_pass(hands)
            except TpujobError as error:
                self.log(f"{hands.runner}: {error}")
                while self.plan.patient and await hands.wait():
                    pass
            await pause(self.plan.every_s * self.rng.uniform(0.7, 1.3))

    def stepped(self, hands: SimHands) -> None:
        """A runner has been suspended: it may be for the last time, or for long."""
        self.steps += 1
        if self.steps in self.plan.at_steps:
            self.fail(hands, self.plan.at_steps[self.steps])
        elif self.now < self.plan.faults_until:
            drawn, dies = self.rng.random(), self.plan.rates.get("dies", 0.0)
            if drawn < dies:
                self.fail(hands, "dies")
            elif drawn < dies + (sleeps := self.plan.rates.get("sleeps", 0.0)):
                self.fail(hands, "sleeps" if drawn < dies + min(sleeps / 3, 0.001) else "naps")

    def fail(self, hands: SimHands, what: str | float) -> None:
        """Let the runner die, nap, or sleep; a number: for so many seconds."""
        self.log(f"{hands.runner} {what}")
        if what == "dies":
            hands.alive = False
            for task in hands.tasks:
                task.done = True
                task.coro.close()
            self.dead[hands.machine].add(hands.runner)
            self.at(self.rng.choice((5.0, 60.0, 1000.0)), self.boot, hands.machine)
        else:
            naps = (15.0, 60.0, self.rng.uniform(200.0, 500.0), self.rng.uniform(200.0, 1000.0))
            sleep_s = self.rng.choice(naps) if what == "naps" else 5000.0 if what == "sleeps" else float(what)
            hands.asleep_until = self.now + sleep_s

    # -- users ---------------------------------------------------------------------------------------------------------

    async def _user(self, step: Step, what: str) -> None:
        hands = SimHands(self, f"user-{self.tokens}")
        while True:
            try:
                await passes.change(hands, step)
            except TpujobError:
                await pause(20.0)
                continue
            break
        self.log(f"a user {what}")
        self.users_left -= 1

    def _types(self, step: Step, what: str) -> None:
        self.run(SimHands(self, "user"), self._user(step, what))

    # -- the whole -----------------------------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        if self.now < self.plan.faults_until or self.users_left or self.cloud.slices:
            return False
        return all(each.turn is None and (each.end is not None or each.held) for each in self.store.queue.jobs)

    def play(self) -> Broken | None:
        """Play until all is done. Return what was broken first, if anything was."""
        for machine in self.plan.machines:
            self.boot(machine)
        for at, step, what in self.plan.users:
            self.at(at, self._types, step, what)
        checked = 0.0
        try:
            while self.now < MOST_S and self.steps < MOST_STEPS:
                self.now, _, do, args = heapq.heappop(self.events)
                do(*args)
                if self.now > checked:
                    self.oracle.now_and_then()
                    if self.is_done:
                        break
                    checked = self.now + 60.0
            self.oracle.at_the_end()
        except Broken as broken:
            self.log(str(broken))
            return broken
        finally:
            for hands in self.runners.values():
                for task in hands.tasks:
                    with suppress(RuntimeError):
                        task.coro.close()
        return None


# -- worlds of seeds ----------------------------------------------------------------------------------------------------

ABOUT_S = 3600.0  # so long, jobs come and things go wrong
RATES = {
    "dies": (0.0, 0.003, 0.01),
    "sleeps": (0.0, 0.002, 0.008, 0.05, 0.2),
    "late": (0.0, 0.1, 0.3),
    "lost_reply": (0.0, 0.05, 0.2),
    "store": (0.0, 0.0, 0.1),
    "create_lost": (0.0, 0.2),
    "refused": (0.0, 0.2),
    "preempted": (0.0, 0.3, 0.6),
    "lookup": (0.0, 0.1, 0.3),
    "delete_forgotten": (0.0, 0.2, 0.95),
    "start_lost": (0.0, 0.1),
    "setup": (0.0, 0.05),
}


def plan_of(seed: int) -> Plan:
    """Draw a world."""
    rng = Random(seed)
    plan = Plan(faults_until=rng.choice((0.5, 1.0, 1.5)) * ABOUT_S, every_s=rng.choice((20.0, 60.0, 90.0)))
    plan.machines = ("m0", "m1", "m2")[: rng.choice((1, 2, 2, 3))]
    plan.bounds = bounds_of(rng.choice((1, 1, 2, 3)), rng.choice((None, None, 2.0)))
    plan.rates = {name: rng.choice(rates) for name, rates in RATES.items()}
    plan.as_text, plan.patient, plan.hasty = rng.random() < 0.03, rng.random() < 0.7, rng.random() < 0.5
    for machine in plan.machines:
        plan.cuts[machine] = _windows(rng, 0.25)
    plan.unreadable, plan.unwritable = _windows(rng, 0.1), _windows(rng, 0.1)
    plan.full = _windows(rng, 0.3)
    ids = [f"j{number}" for number in range(rng.choice((1, 2, 3, 4, 6)))]
    for job_id in ids:
        plan.work[job_id] = Work(rng.choice((20.0, 200.0, 1200.0)), rng.choice((0, 0, 0, 3)), rng.choice((1, 1, 2)))
        _draw_job(rng, plan, job_id)
    for machine in plan.machines[1:]:
        plan.lacking[machine] = frozenset(each for each in ids if rng.random() < 0.1)
    return plan


def _windows(rng: Random, chance: float) -> Windows:
    if rng.random() >= chance:
        return []
    begin = rng.uniform(0.0, ABOUT_S)
    return [(begin, begin + rng.choice((20.0, 300.0, 1500.0)))]


def _draw_job(rng: Random, plan: Plan, job_id: str) -> None:
    request = rng.choice(("v5e", "v5e", "v4"))
    most_usd = None if plan.bounds.max_cost is None and rng.random() < 0.3 else rng.choice((0.3, 1.0))
    priority, restarts = rng.choice((0, 0, 5)), rng.choice((0, 1, 5))
    made = QueuedJob(
        job_id,
        job_id,
        request=request,
        most_usd=most_usd,
        restarts=restarts,
        priority=priority,
        held=rng.random() < 0.05,
    )
    at = rng.choice((0.0, rng.uniform(0.0, 2000.0)))
    plan.users.append((at, steps.add(made), f"adds {job_id}"))
    for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
        name, what = rng.choice(CHANGES)
        change = steps.changed([job_id], lambda job, what=what: what(job))  # type: ignore[misc]
        plan.users.append((at + rng.uniform(1.0, 3000.0), change, f"{name} {job_id}"))


CHANGES: list[tuple[str, Callable[[QueuedJob], QueuedJob]]] = [
    ("holds", lambda job: replace(job, held=True)),
    ("releases", lambda job: replace(job, held=False)),
    ("removes", lambda job: replace(job, removed=True)),
    ("moves up", lambda job: replace(job, priority=9)),
    ("moves back", lambda job: replace(job, order=99.0)),
]


def world_of(seed: int, *, trace: bool = False) -> World:
    return World(plan_of(seed), seed, trace=trace)
