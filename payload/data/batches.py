"""The examples of each process at each step: pure functions of seed, epoch, rank and world size.

For the same global batch, any number of processes sees the same examples at the same step, divided differently; therefore
their loss curves agree.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from payload.backends import Backend
from payload.job import TrainingJob
from payload.launch.placement import share


def train_batches(
    examples: int, batch_size: int, *, rank: int, world: int, seed: int, epoch: int
) -> list[torch.Tensor]:
    """Return this process's example indices for each step, without an incomplete last batch.

    Raises BadConfig if `batch_size` is no multiple of `world`, or exceeds `examples`.
    """
    local = share(batch_size, world, examples)
    # DistributedSampler shuffles with Generator().manual_seed(seed + epoch) and assigns indices to the ranks in turn. It uses
    # only the length of its data set.
    sampler = DistributedSampler(range(examples), world, rank, shuffle=True, seed=seed, drop_last=True)
    sampler.set_epoch(epoch)
    steps = examples // batch_size
    return list(torch.tensor(list(sampler))[: steps * local].split(local))


def eval_batches(examples: int, *, rank: int, world: int, most: int = 500) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return example indices and weights. Every example has weight 1 in exactly one process; padding has weight 0.

    Padding gives every batch the same shape: another shape would compile another program.
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
    backend: Backend, job: TrainingJob, dataset: Any, batch_size: int, *, epoch: int, shuffle: bool
) -> DataLoader[Any]:
    """Return a DataLoader with this process's share of each global batch. Raises BadConfig as `train_batches` does."""
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


def workers_for(job: TrainingJob, *, cores: int) -> int:
    """Return `num_workers`; by default the process's share of the cores less one for the training, at most 8."""
    if job.config.num_workers is not None:
        return job.config.num_workers
    return min(8, job.cores_each(cores) - 1)
