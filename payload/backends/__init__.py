"""What a training needs of an accelerator, and nothing more. One file for each kind, each readable in a minute.

The built-in training (train.py) and a job's own `entry:` function get the same object, so both run on every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import torch

from payload.failures import WorldError
from payload.job import Job

Batch = TypeVar("Batch")  # a tensor, or a nest of tuples, lists and dictionaries with tensors

# What multiplies on a TPU unless it is told otherwise: its log must not promise more than that.
FP32_ON_TPU = "fp32, matrix products in bf16"


class Backend(Protocol):
    name: str  # "xla:tpu", "xla:cpu", "cuda", "cpu", "tpu"
    device: torch.device
    rank: int  # this process among all processes of all hosts
    world: int
    is_first_here: bool  # the one process of this host that talks and writes
    precision: str  # in words, for the log
    hardware: str | None  # what the driver calls the device, if there is one to ask

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model on the device. Call what comes back; keep the original for its weights."""

    def loader(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """The batches, on the device, prepared while the device works."""

    def autocast(self) -> AbstractContextManager[object]:
        """Lower precision where the job asks for it."""

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of `loss`."""

    def step(self, optimizer: torch.optim.Optimizer, also: torch.Tensor) -> torch.Tensor:
        """Average the gradients over the world, update the weights, and answer the average of `also` (a few numbers,
        such as the loss), on the device: it travels with the gradients, and nobody waits for it."""

    def sync(self) -> None:
        """Send off what was recorded so far; do not wait for it. Call it once at the end of each step."""

    def drain(self) -> None:
        """Wait until the device has done everything."""

    def compiles(self) -> int:
        """How many programs were compiled so far: while this moves, a step is warm-up. Where kernels are chosen without a
        program, it moves in the first step."""

    def seed(self, number: int) -> None:
        """Everything random from here on follows from `number`. A training that calls it before each step, with a number
        made of seed, epoch, step and rank, has no random state to save."""

    def read(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copies on the host, in one transfer. Waits for the device."""

    def peak_bytes(self) -> int | None:
        """The most that this process's tensors took on the device so far, if it has a memory of its own that tells."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the world, on the host in double precision. Every process must ask."""

    def broadcast(self, content: bytes) -> bytes:
        """Process 0's `content`, in every process. Every process must ask."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold of the backend itself: a loss scale, or nothing."""

    def load_state(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def open_backend(job: Job) -> Backend:
    if job.backend == "xla":
        from payload.backends.xla import Xla

        return Xla(job)
    if job.backend == "tpu":
        from payload.backends.tpu import TpuBackend

        return TpuBackend(job)
    from payload.backends.native import Cpu, Cuda

    return Cuda(job) if job.backend == "cuda" else Cpu(job)


def moved(batch: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nest, each tensor where `move` takes it. What is no tensor stays as it is."""
    if isinstance(batch, torch.Tensor):
        return move(batch)
    if isinstance(batch, Mapping):
        return {key: moved(part, move) for key, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [moved(part, move) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


def check_world(backend: Backend) -> None:
    """A reduction that does nothing raises no error (XLA:CPU with several processes is one): train on it and every
    process trains alone. So ask for a sum whose answer is known before anything depends on it."""
    got = backend.sum(torch.tensor([1.0, float(backend.rank)])).tolist()
    expected = [float(backend.world), backend.world * (backend.world - 1) / 2]
    if got != expected:
        raise WorldError(
            f"{backend.name}: a sum over {backend.world} processes gave {got} instead of {expected}: "
            "the processes do not reduce with each other, so training would be wrong"
        )
