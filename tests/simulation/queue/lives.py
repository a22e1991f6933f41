"""Small lives of a queue in which nothing goes wrong, but what happens to a runner at one step: each step is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from orchestrator.queue import steps
from orchestrator.queue.record import QueuedJob
from tests.simulation.queue.hands import bounds_of
from tests.simulation.queue.world import Plan, Work, World

FATES = ("dies", "naps", "sleeps")


def _plan(jobs: int, slots: int, machines: int, workers: int = 1, lasts_s: float = 200.0) -> Plan:
    plan = Plan(bounds=bounds_of(slots, None), machines=("m0", "m1", "m2")[:machines])
    for number in range(jobs):
        job = QueuedJob(f"j{number}", f"j{number}", request="v5e", restarts=1)
        plan.work[job.id] = Work(lasts_s, 0, workers)
        plan.users.append((0.0, steps.add(job), f"adds {job.id}"))
    return plan


def one_job() -> Plan:
    return _plan(1, 1, 1)


def on_two_workers() -> Plan:
    return _plan(1, 1, 2, workers=2, lasts_s=5.0)


def passed_on() -> Plan:
    return _plan(2, 1, 2)


def with_two_slots() -> Plan:
    return _plan(3, 2, 2)


def preempted() -> Plan:
    return replace(_plan(1, 1, 2), rates={"preempted": 1.0}, faults_until=150.0)


def no_capacity() -> Plan:
    return replace(_plan(2, 1, 2), full=[(0.0, 150.0)])


def removed() -> Plan:
    plan = _plan(2, 1, 2)
    plan.users.append((180.0, steps.changed(["j0"], lambda job: replace(job, removed=True)), "removes j0"))
    return plan


LIVES: list[Callable[[], Plan]] = [one_job, on_two_workers, passed_on, with_two_slots, preempted, no_capacity, removed]

UNTIL_TAKEN = tuple(float(seconds) for seconds in range(268, 352, 7))  # it wakes when another has just taken its turn
NAPS: dict[Callable[[], Plan], tuple[float, ...]] = {
    on_two_workers: UNTIL_TAKEN,
    passed_on: UNTIL_TAKEN,
    with_two_slots: (60.0,),  # until another pass
}


def worlds_of(life: Callable[[], Plan], fate: str | float) -> Iterator[World]:
    """Yield a world for each step of the life, in which this happens there. Until then they are the same."""
    for step in range(1, steps_of(life) + 1):
        yield World(replace(life(), at_steps={step: fate}))


@cache
def steps_of(life: Callable[[], Plan]) -> int:
    whole = World(life())
    assert whole.play() is None
    return whole.steps
