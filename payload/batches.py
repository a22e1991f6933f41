"""Which examples each process sees at each step: pure functions of the seed, the epoch and the place in the world.

Worlds of 1, 2, 4 … processes with the same global batch see the same examples at the same step, only dealt out
differently; that is why their loss curves agree.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from payload.backends import Backend
from payload.job import Job
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


def data_loader(
    backend: Backend, job: Job, dataset: Any, batch_size: int, *, epoch: int, shuffle: bool
) -> DataLoader[Any]:
    """For data that a job brings itself: PyTorch's DataLoader, in as many processes as the host has cores to spare."""
    local = share(batch_size, backend.world, len(dataset))
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, backend.world, backend.rank, shuffle=shuffle, seed=job.config.seed, drop_last=True
    )
    sampler.set_epoch(epoch)
    return DataLoader(
        dataset,
        batch_size=local,
        sampler=sampler,
        drop_last=True,
        num_workers=workers_for(job, cores=len(os.sched_getaffinity(0))),
        pin_memory=backend.device.type == "cuda",
        generator=torch.Generator().manual_seed(job.config.seed + epoch),
    )


def workers_for(job: Job, *, cores: int) -> int:
    """One core of this process's share is for the training itself; more than eight rarely help."""
    if job.config.num_workers is not None:
        return job.config.num_workers
    return min(8, job.cores_each(cores) - 1)
