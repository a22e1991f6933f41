"""torch_xla: the cores of a TPU, or XLA on the CPU that stands in for them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.debug import metrics
from torch_xla.distributed.parallel_loader import MpDeviceLoader

from payload.backends import Batch
from payload.backends.gloo import Gloo
from payload.failures import ConfigError, WorldError
from payload.job import Job


class Xla:
    def __init__(self, job: Job) -> None:
        self.device = torch_xla.device()
        self._bf16 = job.config.precision == "bf16"
        self._gloo: Gloo | None = None
        kind = xr.device_type()
        self.name = f"xla:{str(kind).lower()}"
        if str(kind).lower() != job.placement.device:
            raise WorldError(f"torch_xla came up on {kind}, not on {job.placement.device.upper()}")
        if kind == "TPU":
            self.rank, self.world = xr.global_ordinal(), xr.world_size()
            self.is_first_here = xr.local_ordinal() == 0
            _check_cores(job)
        else:
            _check_one_device()
            self.rank, self.world = job.rank, job.world
            self.is_first_here = job.local_rank == 0
            if job.world > 1:
                self._gloo = Gloo(job)

    def loader(self, batches: list[Batch]) -> Iterable[Batch]:
        # The loop ends each step itself, so that the clock can stamp it; the loader must not do so a second time.
        return MpDeviceLoader(batches, self.device, batches_per_execution=len(batches) + 1)

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast("xla", dtype=torch.bfloat16) if self._bf16 else nullcontext()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._gloo is not None:
            self._gloo.average_gradients(optimizer, self.sync)
        xm.optimizer_step(optimizer)  # on a TPU it averages between the cores; with one device it only steps

    def sync(self) -> None:
        torch_xla.sync()

    def drain(self) -> None:
        xm.wait_device_ops()

    def compiles(self) -> int:
        return int(metrics.counter_value("UncachedCompile") or 0)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        if self._gloo is not None:
            return self._gloo.sum_(values.cpu().double())
        if self.world == 1:
            return values.cpu().double()
        reduced: torch.Tensor = xm.all_reduce(xm.REDUCE_SUM, values.float().to(self.device))
        return reduced.cpu().double()

    def close(self) -> None:
        if self._gloo is not None:
            self._gloo.close()


def _check_one_device() -> None:
    devices = xr.global_runtime_device_count()
    if devices != 1:
        raise WorldError(
            f"XLA:CPU shows {devices} devices in one process, and collectives between those abort; unset CPU_NUM_DEVICES"
        )


def _check_cores(job: Job) -> None:
    here, asked = xr.world_size() // job.placement.workers, job.config.cores
    if isinstance(asked, int) and asked != here:
        raise ConfigError(
            f'cores: {asked} cannot be had: torch_xla uses 1 core of this host or all; ask for 1 or "all"'
        )
