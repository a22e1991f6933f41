"""Plain PyTorch on the CPU: no compiler, no accelerator, the same loop. `python -m payload --backend cpu` asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch

from payload.backends import Batch
from payload.backends.gloo import Gloo
from payload.job import Job


class Cpu:
    def __init__(self, job: Job) -> None:
        self.name = "cpu"
        self.device = torch.device("cpu")
        self.rank, self.world = job.rank, job.world
        self.is_first_here = job.local_rank == 0
        self._bf16 = job.config.precision == "bf16"
        self._gloo = Gloo(job) if job.world > 1 else None

    def loader(self, batches: list[Batch]) -> Iterable[Batch]:
        return batches

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", dtype=torch.bfloat16) if self._bf16 else nullcontext()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._gloo is not None:
            self._gloo.average_gradients(optimizer, self.sync)
        optimizer.step()

    def sync(self) -> None:
        pass  # every operation has already happened

    def drain(self) -> None:
        pass

    def compiles(self) -> int:
        return 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        values = values.double()
        return self._gloo.sum_(values) if self._gloo is not None else values

    def close(self) -> None:
        if self._gloo is not None:
            self._gloo.close()
