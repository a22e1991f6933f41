"""The `backend` argument of a training: the protocol `Backend`, with one module per kind of accelerator.

The built-in training (train.py) and the `entry:` function of a job use only this protocol, so both run on every accelerator.
Modules here import torch; only training processes import them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from payload.backends.traces import Trace
from payload.failures import WorldError
from payload.job import TrainingJob

Batch = TypeVar("Batch")  # a tensor, or a nest of tuples, lists and dictionaries with tensors

# The precision of fp32 training on a TPU with default settings, for the log and metrics.json.
FP32_ON_TPU = "fp32, matrix products in bf16"


class Backend(Protocol):
    name: str  # "xla:tpu", "xla:cpu", "cuda", "cpu", "tpu"
    device: torch.device
    rank: int  # this process among all processes of all hosts
    world: int
    is_first_here: bool  # whether this is the process of this host that prints and writes
    precision: str  # a description for the log
    hardware: str | None  # the driver's name of the device; None: unknown

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Move `model` to the device and return the module to call. The original keeps the weights for checkpoints."""

    def loader(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Return the batches on the device, prepared while the device computes."""

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of the forward pass: autocast for `precision` bf16 and fp16."""

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradients of `loss`. Raises PeerLost where the backward pass also averages them."""

    def step(self, optimizer: torch.optim.Optimizer, also: torch.Tensor) -> torch.Tensor:
        """Average the gradients over the world, update the weights, and return the world's average of `also`.

        `also` is a small tensor on the device, such as the loss. The result stays on the device; this does not wait for it.
        Raises PeerLost.
        """

    def sync(self) -> None:
        """Dispatch the operations recorded so far, without waiting. Call once at the end of each step."""

    def drain(self) -> None:
        """Wait until the device has completed all dispatched operations."""

    def compiles(self) -> int:
        """Return how many programs were compiled so far. A step in which it changes is warm-up.

        Where kernels are selected without a compiler, it changes in the first step.
        """

    def seed(self, number: int) -> None:
        """Seed all random generators.

        A training that calls this before each step, with a number derived from seed, epoch, step and rank (run.seed_of), has
        no random state to save.
        """

    def read(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies on the host, in one transfer. Waits for the device."""

    def trace(self, directory: Path) -> Trace:
        """Return a profiler that has not started, and writes its trace below `directory`."""

    def peak_bytes(self) -> int | None:
        """Return the peak device memory of this process's tensors, in bytes; None if the device does not report it."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over the world, on the host in double precision. Every process must call it. Raises PeerLost."""

    def broadcast(self, content: bytes) -> bytes:
        """Return the `content` of process 0. Every process must call it. Raises PeerLost."""

    def state(self) -> dict[str, Any]:
        """Return the backend's own part of a checkpoint: a loss scale, or {}."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over the part of a checkpoint that `state` returned."""

    def close(self) -> None:
        """Leave the world of processes. Call once, at the end."""


def open_backend(job: TrainingJob) -> Backend:
    """Open the device of this process and join the world. Raises BadConfig, WorldError or PeerLost."""
    if job.backend == "xla":
        from payload.backends.xla import Xla

        return Xla(job)
    if job.backend == "tpu":
        from payload.backends.tpu import TpuBackend

        return TpuBackend(job)
    from payload.backends.native import Cpu, Cuda

    return Cuda(job) if job.backend == "cuda" else Cpu(job)


def moved(batch: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the same nest with `move` applied to each tensor; other values stay."""
    if isinstance(batch, torch.Tensor):
        return move(batch)
    if isinstance(batch, Mapping):
        return {key: moved(part, move) for key, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [moved(part, move) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def check_world(backend: Backend) -> None:
    """Raise WorldError if a sum over the world has a wrong result.

    Some reductions silently do nothing, such as those of XLA:CPU between processes; each process would then train on its own.
    """
    got = backend.sum(torch.tensor([1.0, float(backend.rank)])).tolist()
    expected = [float(backend.world), backend.world * (backend.world - 1) / 2]
    if got != expected:
        raise WorldError(
            f"{backend.name}: a sum over {backend.world} processes gave {got} instead of {expected}: "
            "the processes do not reduce with each other, so training would be wrong"
        )
