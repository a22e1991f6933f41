"""Worlds with too little capacity: how users get a slice all the same, and go on when it is preempted.

They wait out stockouts, queue, race zones, and restart on spot. `FAMILIES` are faults of queues, on top of those of
`random_worlds`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.model.faults import FaultPlan, cloud_fault
from tests.simulation.model.world import RACE_ZONES, ZONES
from tests.simulation.scenarios.commands import Candidates

if TYPE_CHECKING:
    from tests.simulation.scenarios.random_worlds import Workload

Family = Callable[[Random, FaultPlan, Candidates], None]
FAMILIES: dict[str, Family] = {}
WAITS_S = (15.0, 40.0, 40.0, 120.0)


def scarce(rng: Random, plan: FaultPlan, workload: Workload) -> Workload:
    """Return the same workload where capacity is scarce."""
    scarcity = rng.choice((race, race, race, in_a_queue, in_a_queue, some_queued, wait, wait, restart, restart))
    workload = scarcity(rng, plan, replace(workload, lasts_s=min(workload.lasts_s, 60.0), second_at=None))
    assert workload.candidates is not None
    if workload.candidates.queued:
        for name in rng.sample(sorted(FAMILIES), rng.choice((0, 0, 1, 1, 2))):
            plan.families = (*plan.families, name)
            FAMILIES[name](rng, plan, workload.candidates)
    return workload


# -- workloads -----------------------------------------------------------------------------------------------------


def race(rng: Random, plan: FaultPlan, workload: Workload) -> Workload:
    """Two to five zones at once; none, some or all of them are out of stock for a while."""
    zones = RACE_ZONES[: rng.choice((2, 3, 3, 4, 5))]
    restarts = rng.choice((0, 0, 0, 1, 2))
    candidates = Candidates(zones, len(zones), rng.choice(WAITS_S), race=True, spot=restarts > 0, restarts=restarts)
    _stockouts(rng, plan, candidates, rng.choice((0.0, 0.5, 0.8, 1.0)))
    _preemptions(rng, plan, restarts)
    return replace(
        workload, kind=rng.choice(("run", "run", "run", "failing", "keep", "detached")), candidates=candidates
    )


def in_a_queue(rng: Random, plan: FaultPlan, workload: Workload) -> Workload:
    """One or two queued candidates, one after the other."""
    zones = ZONES[: rng.choice((1, 1, 2))]
    candidates = Candidates(zones, len(zones), rng.choice((0.0, *WAITS_S)))
    _stockouts(rng, plan, candidates, 0.5)
    return replace(
        workload, kind=rng.choice(("run", "run", "failing", "keep", "detached", "up")), candidates=candidates
    )


def some_queued(rng: Random, plan: FaultPlan, workload: Workload) -> Workload:
    """First plain candidates, then queued ones."""
    candidates = Candidates(ZONES, rng.choice((1, 2)), rng.choice(WAITS_S), race=rng.random() < 0.5)
    _stockouts(rng, plan, candidates, 0.8)
    return replace(workload, kind=rng.choice(("run", "keep", "detached")), candidates=candidates)


def wait(rng: Random, plan: FaultPlan, workload: Workload) -> Workload:
    """Stockouts that end after a while, or do not end."""
    candidates = Candidates(ZONES[: rng.choice((1, 2, 3))], 0, rng.choice(WAITS_S))
    _stockouts(rng, plan, candidates, 1.0)
    return replace(workload, kind=rng.choice(("run", "run", "failing", "keep", "detached")), candidates=candidates)


def restart(rng: Random, plan: FaultPlan, workload: Workload) -> Workload:
    """A job on spot that is preempted, and restarts."""
    zones, restarts = ZONES[: rng.choice((1, 1, 2))], rng.choice((1, 2, 3))
    queued, wait_s = rng.choice((0, 0, len(zones))), rng.choice((0.0, 0.0, 40.0))
    candidates = Candidates(zones, queued, wait_s, spot=True, restarts=restarts)
    _preemptions(rng, plan, restarts)
    if rng.random() < 0.3:
        _stockouts(rng, plan, candidates, 0.5)
    return replace(workload, kind=rng.choice(("run", "run", "run", "failing", "keep")), candidates=candidates)


def _stockouts(rng: Random, plan: FaultPlan, candidates: Candidates, how_many: float) -> None:
    for zone in candidates.zones:
        if rng.random() < how_many:
            begin = rng.choice((0.0, 0.0, 0.0, rng.uniform(0.0, 20.0)))
            plan.full.append((zone, begin, begin + rng.choice((0.1, 0.5, 0.9, 2.0)) * candidates.in_queue_s))


def _preemptions(rng: Random, plan: FaultPlan, restarts: int) -> None:
    """Google gives notice 30 s before; at the emulated speed that is 1 s."""
    at = 0.0
    for _ in range(rng.choice((restarts, restarts, restarts + 1)) if restarts else 0):
        at += rng.uniform(3.0, 30.0)
        plan.preemptions.append((at, rng.choice((0.0, 1.0, 1.0, 5.0))))


# -- faults of queues ------------------------------------------------------------------------------------------------


def family(made: Family) -> Family:
    FAMILIES[made.__name__] = made
    return made


@family
def slow_queue(rng: Random, plan: FaultPlan, candidates: Candidates) -> None:
    plan.accept_s, plan.queue_s = rng.choice((0.0, 0.2, 4.0)), rng.choice((0.0, 5.0, 20.0))


@family
def long_provisioning(rng: Random, plan: FaultPlan, candidates: Candidates) -> None:
    """A delete of a PROVISIONING request is accepted, and fails."""
    plan.provision_s, plan.refuse_s = rng.choice((10.0, 30.0, 60.0)), rng.choice((0.2, 1.5, 10.0))


@family
def failing_request_deletes(rng: Random, plan: FaultPlan, candidates: Candidates) -> None:
    for _ in range(rng.choice((1, 2, 3))):
        kind = rng.choice(("operation_fails", "operation_forgets", "stuck"))
        seconds = rng.choice((0.5, 2.0, 20.0))
        plan.request_delete_effects.append(cloud_fault(kind, "queuedResources.delete", seconds=seconds))


@family
def closed_queue(rng: Random, plan: FaultPlan, candidates: Candidates) -> None:
    """The request is accepted, is FAILED a moment later, and stays listed."""
    plan.closed = candidates.zones[: rng.choice((1, 1, len(candidates.zones)))]


@family
def no_quota(rng: Random, plan: FaultPlan, candidates: Candidates) -> None:
    plan.no_quota = candidates.zones[: rng.choice((1, 1, len(candidates.zones)))]


@family
def vm_may_not_delete_requests(rng: Random, plan: FaultPlan, candidates: Candidates) -> None:
    plan.vm_may_delete_requests = False
