"""What the loop in train.py needs of an accelerator, and nothing more. One file for each kind, each readable in a minute."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch

from payload.failures import WorldError
from payload.job import Job

Batch = TypeVar("Batch")  # a tensor, or a tuple of them


class Backend(Protocol):
    name: str  # "xla:tpu", "xla:cpu", "cpu"
    device: torch.device
    rank: int  # this process among all processes of all hosts
    world: int
    is_first_here: bool  # the one process of this host that talks and writes

    def loader(self, batches: list[Batch]) -> Iterable[Batch]:
        """The batches, on the device, prepared while the device works."""

    def autocast(self) -> AbstractContextManager[object]:
        """bf16 where the job asks for it."""

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Average the gradients over the world, then update the weights."""

    def sync(self) -> None:
        """Send off what was recorded so far; do not wait for it."""

    def drain(self) -> None:
        """Wait until the device has done everything."""

    def compiles(self) -> int:
        """How many programs were compiled so far: while this moves, a step is warm-up."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the world, on the host in double precision. Every process must ask."""

    def close(self) -> None: ...


def open_backend(job: Job) -> Backend:
    if job.backend == "cpu":
        from payload.backends.cpu import Cpu

        return Cpu(job)
    from payload.backends.xla import Xla

    return Xla(job)


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
