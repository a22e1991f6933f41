"""Random worlds keep every promise; so do the seeds that once broke one. `make sim` plays many more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.swarm import FAMILIES, world_of

SEEDS = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line[:1].isdigit()
]
WORLDS = 300


def check(seed: int) -> None:
    world = world_of(seed, trace=True)
    result = world.run()
    if result.violations:
        told = "\n".join(result.trace[-25:])
        broken = "; ".join(f"{v.invariant}: {v.text}" for v in result.violations)
        pytest.fail(f"TPUJOB_SIM_SEED={seed}  {broken}\n{world.shape}\n{world.plan}\n{told}")


@pytest.mark.parametrize("first", range(0, WORLDS, 100))
def test_random_worlds_keep_every_promise(first: int) -> None:
    for seed in range(first, first + 100):
        check(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_world_that_once_broke_a_promise_keeps_it(seed: int) -> None:
    check(seed)


def test_the_same_seed_is_the_same_world_event_for_event() -> None:
    for seed in range(20, 30):
        first, second = world_of(seed, trace=True).run(), world_of(seed, trace=True).run()
        assert first.trace == second.trace and first.events == second.events


def test_every_family_of_faults_is_met_within_a_few_hundred_worlds() -> None:
    met = {name for seed in range(WORLDS) for name in world_of(seed).plan.families}
    assert met == FAMILIES.keys()
