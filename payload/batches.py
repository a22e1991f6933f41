"""Which examples each process sees at each step: pure functions of the seed, the epoch and the place in the world.

Worlds of 1, 2, 4 … processes with the same global batch see the same examples at the same step, only dealt out
differently; that is why their loss curves agree.
"""

from __future__ import annotations

import torch
from torch.utils.data import DistributedSampler

from payload.placement import share


def train_batches(
    examples: int, batch_size: int, *, rank: int, world: int, seed: int, epoch: int
) -> list[torch.Tensor]:
    """This process's example numbers, step by step. The last batch is left out when it is not full."""
    local = share(batch_size, world, examples)
    # DistributedSampler shuffles with Generator().manual_seed(seed + epoch) and deals to the ranks in turn. It only
    # asks its data set for a length.
    sampler = DistributedSampler(range(examples), world, rank, shuffle=True, seed=seed, drop_last=True)
    sampler.set_epoch(epoch)
    steps = examples // batch_size
    return list(torch.tensor(list(sampler))[: steps * local].split(local))


def eval_batches(examples: int, *, rank: int, world: int, most: int = 500) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Example numbers and weights. Every example has weight 1 in exactly one process; padding has weight 0.

    Padding gives every batch the same shape: another shape would be another program to compile.
    """
    mine = torch.arange(examples)[rank::world]
    longest = -(-examples // world)
    steps = -(-longest // most)
    local = -(-longest // steps)
    numbers = torch.zeros(steps * local, dtype=torch.int64)
    weights = torch.zeros(steps * local)
    numbers[: len(mine)], weights[: len(mine)] = mine, 1.0
    return list(zip(numbers.split(local), weights.split(local), strict=True))
