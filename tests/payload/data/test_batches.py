"""The examples of each process: the same in every world, and each test example exactly once."""

from itertools import chain
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch")]


@pytest.mark.parametrize("examples", [64, 67, 100])
def test_worlds_of_one_two_and_four_see_the_same_examples_at_the_same_step(examples: int) -> None:
    from payload.data.batches import train_batches

    def steps(world: int) -> list[set[int]]:
        ranks = [train_batches(examples, 16, rank=rank, world=world, seed=5, epoch=2) for rank in range(world)]
        assert {len(batch) for rank in ranks for batch in rank} == {16 // world}
        return [set(chain.from_iterable(batch.tolist() for batch in step)) for step in zip(*ranks, strict=True)]

    alone = steps(1)
    assert len(alone) == examples // 16 and all(len(step) == 16 for step in alone)
    assert steps(2) == alone and steps(4) == alone


def test_an_epoch_shuffles_anew_and_a_seed_repeats_itself(torch: Any) -> None:
    from payload.data.batches import train_batches

    def order(seed: int, epoch: int) -> list[int]:
        return torch.cat(train_batches(64, 16, rank=0, world=1, seed=seed, epoch=epoch)).tolist()

    assert sorted(order(1, 1)) == list(range(64))
    assert order(1, 1) == order(1, 1)
    assert order(1, 1) != order(1, 2) != order(2, 2)


@pytest.mark.parametrize(("examples", "world", "most"), [(10, 1, 4), (10, 3, 2), (7, 2, 500), (1, 4, 3), (1000, 8, 50)])
def test_every_test_example_weighs_one_in_exactly_one_process(examples: int, world: int, most: int) -> None:
    from payload.data.batches import eval_batches

    seen: list[int] = []
    shapes = set()
    for rank in range(world):
        for numbers, weights in eval_batches(examples, rank=rank, world=world, most=most):
            shapes.add((len(numbers), len(weights)))
            seen += [number for number, weight in zip(numbers.tolist(), weights.tolist(), strict=True) if weight == 1]
            assert set(weights.tolist()) <= {0.0, 1.0} and numbers.max() < examples
    assert sorted(seen) == list(range(examples))
    assert len(shapes) == 1, "another shape would be another program to compile"
