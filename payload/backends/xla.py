"""torch_xla: the cores of a TPU, or XLA:CPU devices that emulate them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_xla
import torch_xla.backends
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.debug import metrics
from torch_xla.distributed.parallel_loader import MpDeviceLoader

from payload.backends import FP32_ON_TPU, Batch, moved
from payload.backends.group import Group
from payload.backends.traces import Trace, XlaTrace
from payload.failures import BadConfig, WorldError
from payload.job import TrainingJob

NEVER = 1 << 62


class Xla:
    hardware: str | None = None  # torch_xla does not report it

    def __init__(self, job: TrainingJob) -> None:
        self.device = torch_xla.device()
        self._bf16 = job.config.precision == "bf16"
        self.precision = "bf16 autocast" if self._bf16 else "fp32"
        self._group: Group | None = None
        kind = xr.device_type()
        self.name = f"xla:{str(kind).lower()}"
        if str(kind).lower() != job.placement.device:
            raise WorldError(f"torch_xla started on {kind}, not on {job.placement.device.upper()}")
        if kind == "TPU" or job.placement.one_of:
            self.rank, self.world = xr.global_ordinal(), xr.world_size()
            self.is_first_here = xr.local_ordinal() == 0
            _check_cores(job)
            if not self._bf16 and torch_xla.backends.get_mat_mul_precision() == "default":
                self.precision = FP32_ON_TPU
        else:
            _check_one_device()
            self.rank, self.world = job.rank, job.world
            self.is_first_here = job.local_rank == 0
            if job.world > 1:
                self._group = Group(job)

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        return model.to(self.device)

    def loader(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        if isinstance(batches, list):
            # Nothing to prepare. The threads of MpDeviceLoader would compete with this one for the interpreter, which costs
            # more than the trace of such a step.
            return (moved(batch, lambda tensor: tensor.to(self.device)) for batch in batches)
        # The training loop calls sync() and times each step; the loader must not sync a second time.
        return MpDeviceLoader(batches, self.device, batches_per_execution=NEVER)

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast("xla", dtype=torch.bfloat16) if self._bf16 else nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self, optimizer: torch.optim.Optimizer, also: torch.Tensor) -> torch.Tensor:
        if self._group is not None:
            also = self._average(optimizer, also, self._group)
        elif self.world > 1:
            also = xm.all_reduce(xm.REDUCE_SUM, also, scale=1 / self.world)
        xm.optimizer_step(optimizer)  # averages over the cores of a TPU; with one device it only updates
        return also

    def _average(self, optimizer: torch.optim.Optimizer, also: torch.Tensor, group: Group) -> torch.Tensor:
        """Average gradients and `also` in one flat buffer: one transfer and one reduction."""
        params = [p for part in optimizer.param_groups for p in part["params"] if p.grad is not None]
        flat = torch.cat([*(p.grad.reshape(-1) for p in params), also.reshape(-1)])
        self.sync()
        averaged = (group.sum_(flat.cpu()) / self.world).to(self.device)
        *gradients, also_averaged = averaged.split([*(p.numel() for p in params), also.numel()])
        for p, gradient in zip(params, gradients, strict=True):
            p.grad = gradient.view_as(p)
        return also_averaged.view_as(also)

    def sync(self) -> None:
        torch_xla.sync()

    def drain(self) -> None:
        xm.wait_device_ops()

    def compiles(self) -> int:
        return int(metrics.counter_value("UncachedCompile") or 0)

    def seed(self, number: int) -> None:
        # Not torch.manual_seed, which costs ten times as much: it keeps a stack trace in case CUDA starts later.
        torch.default_generator.manual_seed(number)
        xm.set_rng_state(number)  # an input of the program: a new number compiles nothing. Each sync advances it.

    def read(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        copies: list[torch.Tensor] = torch_xla._XLAC._xla_get_cpu_tensors(tensors)
        return copies

    def trace(self, directory: Path) -> Trace:
        return XlaTrace(directory)

    def peak_bytes(self) -> int | None:
        try:
            return int(xm.get_memory_info(self.device)["peak_bytes_used"])
        except Exception:  # XLA:CPU does not count; and whatever a runtime raises, a finished training has metrics
            return None

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        if self._group is not None:
            return self._group.sum_(values.cpu().double())
        if self.world == 1:
            return values.cpu().double()
        reduced: torch.Tensor = xm.all_reduce(xm.REDUCE_SUM, values.float().to(self.device))
        return reduced.cpu().double()

    def broadcast(self, content: bytes) -> bytes:
        if self._group is not None:
            return self._group.broadcast(content)
        if self.world == 1:
            return content
        # On a TPU there are only sums: all processes but 0 add zeros, as integers, so that no bit changes.
        content = content if self.rank == 0 else b""
        size = int(self._sum_whole(np.array([len(content)], np.int32))[0])
        padded = content.ljust(-(-size // 4) * 4, b"\0")  # to whole integers; zeros on the other processes
        return self._sum_whole(np.frombuffer(padded, np.int32)).tobytes()[:size]

    def _sum_whole(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        summed = xm.all_reduce(xm.REDUCE_SUM, torch.from_numpy(values.copy()).to(self.device))
        result: np.ndarray[Any, Any] = summed.cpu().numpy()
        return result

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        if self._group is not None:
            self._group.close()


def _check_one_device() -> None:
    devices = xr.global_runtime_device_count()
    if devices != 1:
        raise WorldError(
            f"XLA:CPU shows {devices} devices in one process, and collectives between those abort; unset CPU_NUM_DEVICES"
        )


def _check_cores(job: TrainingJob) -> None:
    available, requested = xr.world_size() // job.placement.workers, job.config.cores
    if isinstance(requested, int) and requested != available:
        raise BadConfig(
            f'cores: {requested} is not possible: torch_xla uses 1 core of this host or all; set 1 or "all"'
        )
