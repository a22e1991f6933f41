"""Several processes on CPU averaging over the host's network, with torch.distributed's gloo.

Used by the cpu backend, and by the xla backend where a TPU is emulated: there, collectives between XLA:CPU devices of
one process abort, and between processes they silently do nothing, so the numbers travel through the host.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from payload.failures import PeerLost
from payload.job import Job

# Several hosts import torch at different speeds, and on an emulated slice they all share one machine.
TIMEOUT = timedelta(minutes=10)


class Gloo:
    def __init__(self, job: Job) -> None:
        with _naming_peer_loss(), _without_stdout():
            dist.init_process_group(
                "gloo", init_method=job.meet_at, rank=job.rank, world_size=job.world, timeout=TIMEOUT
            )

    def sum_(self, values: torch.Tensor) -> torch.Tensor:
        with _naming_peer_loss():
            dist.all_reduce(values)
        return values

    def average_gradients(self, optimizer: torch.optim.Optimizer, sync: Callable[[], None]) -> None:
        """One flat buffer, so that one transfer and one reduction do for all parameters."""
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        flat = torch.cat([p.grad.reshape(-1) for p in params])
        sync()
        on_host = self.sum_(flat.cpu()) / dist.get_world_size()
        parts = on_host.to(flat.device).split([p.numel() for p in params])
        for p, part in zip(params, parts, strict=True):
            p.grad = part.view_as(p)

    def close(self) -> None:
        dist.destroy_process_group()


@contextmanager
def _naming_peer_loss() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError) as error:  # gloo and its rendezvous raise these, with a C++ trace in the text
        raise PeerLost(f"lost another process of this training: {str(error).splitlines()[0][:200]}") from None


@contextmanager
def _without_stdout() -> Iterator[None]:
    """gloo announces each connection on standard output, in pieces that mix with the log."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
