"""Worlds in which there is not enough: what people do to get a slice all the same and to go on when it is taken away.

They wait out stockouts, ask through queues, race zones against each other, restart on spot. `FAMILIES` are the oddities of
queues that meet them there, beside all that goes wrong everywhere (`swarm`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.model.faults import Plan, cloud_fault
from tests.simulation.model.world import RACE_ZONES, ZONES
from tests.simulation.scenarios.commands import Wish

if TYPE_CHECKING:
    from tests.simulation.scenarios.random_worlds import Doing

Way = Callable[[Random, Plan, "Doing"], "Doing"]
Family = Callable[[Random, Plan, Wish], None]
FAMILIES: dict[str, Family] = {}
WAITS_S = (15.0, 40.0, 40.0, 120.0)


def scarce(rng: Random, plan: Plan, doing: Doing) -> Doing:
    """The same life where there is not enough."""
    way = rng.choice((race, race, race, in_a_queue, in_a_queue, some_queued, wait, wait, restart, restart))
    doing = way(rng, plan, replace(doing, lasts_s=min(doing.lasts_s, 60.0), second_at=None))
    assert doing.wish is not None
    if doing.wish.queued:
        for name in rng.sample(sorted(FAMILIES), rng.choice((0, 0, 1, 1, 2))):
            plan.families = (*plan.families, name)
            FAMILIES[name](rng, plan, doing.wish)
    return doing


# -- what people do ----------------------------------------------------------------------------------------------------


def race(rng: Random, plan: Plan, doing: Doing) -> Doing:
    """Two to five zones at once. None, some or all of them have nothing for a while."""
    zones = RACE_ZONES[: rng.choice((2, 3, 3, 4, 5))]
    restarts = rng.choice((0, 0, 0, 1, 2))
    wish = Wish(zones, len(zones), rng.choice(WAITS_S), race=True, spot=restarts > 0, restarts=restarts)
    _stockouts(rng, plan, wish, rng.choice((0.0, 0.5, 0.8, 1.0)))
    _preemptions(rng, plan, restarts)
    return replace(doing, kind=rng.choice(("run", "run", "run", "failing", "keep", "detached")), wish=wish)


def in_a_queue(rng: Random, plan: Plan, doing: Doing) -> Doing:
    """One or two queued candidates, one after the other."""
    zones = ZONES[: rng.choice((1, 1, 2))]
    wish = Wish(zones, len(zones), rng.choice((0.0, *WAITS_S)))
    _stockouts(rng, plan, wish, 0.5)
    return replace(doing, kind=rng.choice(("run", "run", "failing", "keep", "detached", "up")), wish=wish)


def some_queued(rng: Random, plan: Plan, doing: Doing) -> Doing:
    """First what may be there at once, then what has to be waited for."""
    wish = Wish(ZONES, rng.choice((1, 2)), rng.choice(WAITS_S), race=rng.random() < 0.5)
    _stockouts(rng, plan, wish, 0.8)
    return replace(doing, kind=rng.choice(("run", "keep", "detached")), wish=wish)


def wait(rng: Random, plan: Plan, doing: Doing) -> Doing:
    """Stockouts that end after a while, or not."""
    wish = Wish(ZONES[: rng.choice((1, 2, 3))], 0, rng.choice(WAITS_S))
    _stockouts(rng, plan, wish, 1.0)
    return replace(doing, kind=rng.choice(("run", "run", "failing", "keep", "detached")), wish=wish)


def restart(rng: Random, plan: Plan, doing: Doing) -> Doing:
    """A job on spot that is taken away, and goes on."""
    zones, restarts = ZONES[: rng.choice((1, 1, 2))], rng.choice((1, 2, 3))
    queued, waits_s = rng.choice((0, 0, len(zones))), rng.choice((0.0, 0.0, 40.0))
    wish = Wish(zones, queued, waits_s, spot=True, restarts=restarts)
    _preemptions(rng, plan, restarts)
    if rng.random() < 0.3:
        _stockouts(rng, plan, wish, 0.5)
    return replace(doing, kind=rng.choice(("run", "run", "run", "failing", "keep")), wish=wish)


def _stockouts(rng: Random, plan: Plan, wish: Wish, how_many: float) -> None:
    for zone in wish.zones:
        if rng.random() < how_many:
            begin = rng.choice((0.0, 0.0, 0.0, rng.uniform(0.0, 20.0)))
            plan.full.append((zone, begin, begin + rng.choice((0.1, 0.5, 0.9, 2.0)) * wish.in_queue_s))


def _preemptions(rng: Random, plan: Plan, restarts: int) -> None:
    """Google gives notice 30 s before; at the emulated pace that is 1 s."""
    at = 0.0
    for _ in range(rng.choice((restarts, restarts, restarts + 1)) if restarts else 0):
        at += rng.uniform(3.0, 30.0)
        plan.preemptions.append((at, rng.choice((0.0, 1.0, 1.0, 5.0))))


# -- oddities of queues --------------------------------------------------------------------------------------------------


def family(made: Family) -> Family:
    FAMILIES[made.__name__] = made
    return made


@family
def slow_queue(rng: Random, plan: Plan, wish: Wish) -> None:
    plan.accept_s, plan.queue_s = rng.choice((0.0, 0.2, 4.0)), rng.choice((0.0, 5.0, 20.0))


@family
def long_provisioning(rng: Random, plan: Plan, wish: Wish) -> None:
    """While it is PROVISIONING a delete is accepted, and fails."""
    plan.provision_s, plan.refuse_s = rng.choice((10.0, 30.0, 60.0)), rng.choice((0.2, 1.5, 10.0))


@family
def failing_request_deletes(rng: Random, plan: Plan, wish: Wish) -> None:
    for _ in range(rng.choice((1, 2, 3))):
        kind = rng.choice(("operation_fails", "operation_forgets", "stuck"))
        seconds = rng.choice((0.5, 2.0, 20.0))
        plan.request_delete_effects.append(cloud_fault(kind, "queuedResources.delete", seconds=seconds))


@family
def closed_queue(rng: Random, plan: Plan, wish: Wish) -> None:
    """The request is accepted, FAILED a moment later, and stays listed."""
    plan.closed = wish.zones[: rng.choice((1, 1, len(wish.zones)))]


@family
def no_quota(rng: Random, plan: Plan, wish: Wish) -> None:
    plan.no_quota = wish.zones[: rng.choice((1, 1, len(wish.zones)))]


@family
def vm_may_not_delete_requests(rng: Random, plan: Plan, wish: Wish) -> None:
    plan.vm_may_delete_requests = False
