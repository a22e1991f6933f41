"""Queues in worlds where everything goes wrong: their rules hold, and each bug breaks one.

150 worlds by default, 1,500 in CI, 10,000 in all. `python -m tests.simulation.queue --seed N` shows one of them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.simulation.queue.lives import FATES, LIVES, NAPS, steps_of, worlds_of
from tests.simulation.queue.mutants import MUTANTS, Mutant
from tests.simulation.queue.oracle import Broken
from tests.simulation.queue.world import RATES, Plan, plan_of, world_of

WORLDS, CHUNK = (150, 1_500, 10_000), 150  # by default, in CI, in all
OF_A_MUTANT = 1_500  # worlds at most; the same as CI plays without a bug


def chunks(default: int, in_ci: int, worlds: int) -> Iterator[Any]:
    for first in range(0, worlds, CHUNK):
        marks = () if first < default else pytest.mark.ci if first < in_ci else pytest.mark.exhaustive
        yield pytest.param(first, marks=marks)


@pytest.mark.parametrize("first", list(chunks(*WORLDS)))
def test_no_rule_is_broken_in_random_worlds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        assert world_of(seed).play() is None, f"python -m tests.simulation.queue --seed {seed}"


def test_the_same_seed_is_the_same_world() -> None:
    for seed in range(5):
        one, other = world_of(seed, trace=True), world_of(seed, trace=True)
        assert one.play() is other.play() is None
        assert one.trace == other.trace and one.steps == other.steps


def test_everything_that_can_go_wrong_does_so_within_150_worlds() -> None:
    plans = [plan_of(seed) for seed in range(150)]
    assert all(any(plan.rates[name] > 0 for plan in plans) for name in RATES)
    assert all(
        any(getattr(p, name) for p in plans) for name in ("unreadable", "unwritable", "full", "as_text", "hasty")
    )
    assert any(windows for plan in plans for windows in plan.cuts.values())


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize(
    "life", [pytest.param(life, marks=() if number == 0 else pytest.mark.ci) for number, life in enumerate(LIVES)]
)
def test_no_rule_is_broken_whatever_happens_to_a_runner_at_any_step(life: Callable[[], Plan], fate: str) -> None:
    assert steps_of(life) > 100, "this life has too few steps to be worth it"
    assert not [f"at step {step}: {broken}" for step, broken in enumerate(_played(life, fate), 1) if broken]


@pytest.mark.ci
@pytest.mark.parametrize("life", NAPS)
def test_no_rule_is_broken_when_a_runner_wakes_just_after_another_acted(life: Callable[[], Plan]) -> None:
    for nap_s in NAPS[life]:
        assert not any(_played(life, nap_s)), f"it naps for {nap_s} s"


def _played(life: Callable[[], Plan], fate: str | float) -> Iterator[Broken | None]:
    return (world.play() for world in worlds_of(life, fate))


@pytest.mark.ci
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_bug_breaks_a_rule(mutant: Mutant) -> None:
    life = mutant.naps_in
    if life is not None:
        steps_of(life)  # without the bug
    with mutant.change():
        if life is not None:
            found = any(any(_played(life, nap_s)) for nap_s in NAPS[life])
        else:
            found = any(world_of(seed).play() for seed in range(OF_A_MUTANT))
    assert found, f"nothing notices that {mutant.name}"
