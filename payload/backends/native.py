"""PyTorch's own devices: the CPU and NVIDIA GPUs. One process per device, with DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from payload.backends import Batch, moved
from payload.backends.group import Group, naming_peer_loss
from payload.backends.traces import TorchTrace, Trace
from payload.failures import BadConfig
from payload.job import TrainingJob

_LOWER = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Native:
    """The common part of the CPU, CUDA and TorchTPU backends. Subclasses define the device and its collectives."""

    kind = "cpu"  # of device
    collectives = "gloo"
    first_steps = 0  # the number of steps that select or compile kernels, reported by `compiles`
    hardware: str | None = None

    def __init__(self, job: TrainingJob) -> None:
        self.name = self.kind
        self.rank, self.world = job.rank, job.world
        self.is_first_here = job.local_rank == 0
        self.device = self._take_device(job.local_rank)
        self._lower = _LOWER.get(job.config.precision)
        self.precision = f"{job.config.precision} autocast" if self._lower else "fp32"
        # Gradients in fp16 underflow unless the loss is scaled up; those in bf16 do not.
        self._scaler = torch.amp.GradScaler(self.kind, enabled=self._lower is torch.float16)
        self._group = Group(job, self.collectives, self.device) if job.world > 1 else None
        self._steps = 0

    def _take_device(self, local_rank: int) -> torch.device:
        return torch.device("cpu")

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        model = model.to(self.device)
        # A full bucket is reduced while the rest of the gradients is computed.
        return DistributedDataParallel(model, gradient_as_bucket_view=True) if self._group else model

    def loader(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        return batches

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.kind, dtype=self._lower) if self._lower else nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        with naming_peer_loss(sure=False):  # this is where DistributedDataParallel averages
            self._scaler.scale(loss).backward()

    def step(self, optimizer: torch.optim.Optimizer, also: torch.Tensor) -> torch.Tensor:
        self._scaler.step(optimizer)
        self._scaler.update()
        self._steps += 1
        if self._group is None:
            return also
        with naming_peer_loss():
            dist.all_reduce(also)
        return also / self.world

    def sync(self) -> None:
        pass  # every operation has been dispatched

    def drain(self) -> None:
        pass  # operations on the CPU are synchronous

    def compiles(self) -> int:
        return min(self._steps, self.first_steps)

    def seed(self, number: int) -> None:
        # Not torch.manual_seed, which costs 80 times as much: it keeps a stack trace for each kind of device not yet started.
        torch.default_generator.manual_seed(number)

    def read(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(torch.stack(tensors).cpu()) if tensors else []

    def trace(self, directory: Path) -> Trace:
        return TorchTrace(directory, self.device)

    def peak_bytes(self) -> int | None:
        return None

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        values = values.double()
        return self._group.sum_(values.to(self._group.device)).cpu() if self._group else values.cpu()

    def broadcast(self, content: bytes) -> bytes:
        return self._group.broadcast(content) if self._group else content

    def state(self) -> dict[str, Any]:
        return {"scaler": self._scaler.state_dict()} if self._scaler.is_enabled() else {}

    def load_state(self, state: dict[str, Any]) -> None:
        if self._scaler.is_enabled() and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])

    def close(self) -> None:
        if self._group:
            self._group.close()


class Cpu(Native):
    """Plain PyTorch on the CPU."""


def _convolves_in_tf32() -> bool:
    convolutions = getattr(torch.backends.cudnn, "conv", None)  # since torch 2.9, which warns about the older name
    return torch.backends.cudnn.allow_tf32 if convolutions is None else convolutions.fp32_precision == "tf32"


class Cuda(Native):
    kind, collectives, first_steps = "cuda", "nccl", 1

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job)
        self.hardware = torch.cuda.get_device_name(self.device)
        if self._lower is None and torch.cuda.get_device_capability(self.device) >= (8, 0) and _convolves_in_tf32():
            self.precision = "fp32, convolutions in tf32"  # PyTorch's default: 10 bits of the 23 after the point

    def _take_device(self, local_rank: int) -> torch.device:
        if torch.cuda.device_count() <= local_rank:
            raise BadConfig(
                f"backend cuda: process {local_rank} finds {torch.cuda.device_count()} GPUs; this torch is "
                f"{torch.__version__}, built for CUDA {torch.version.cuda or 'nowhere'}"
            )
        try:
            torch.cuda.set_device(local_rank)
            torch.cuda.synchronize()  # opens the device
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise BadConfig(f"backend cuda: GPU {local_rank} cannot be used: {reason}") from None
        # No cudnn.benchmark: the kernels that it selects differ between processes and round differently, and a resumed
        # training would not be bit for bit equal.
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
        return torch.device("cuda", local_rank)

    def loader(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Yield the batches on the device. Copies from pinned memory overlap with the work on the batch before."""
        for batch in batches:
            yield moved(batch, self._send)

    def _send(self, tensor: torch.Tensor) -> torch.Tensor:
        pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
        return pinned.to(self.device, non_blocking=True)

    def drain(self) -> None:
        torch.cuda.synchronize()

    def seed(self, number: int) -> None:
        super().seed(number)
        torch.cuda.manual_seed(number)

    def peak_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.device)
