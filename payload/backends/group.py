"""Process groups of torch.distributed: gloo on hosts, nccl on GPUs, tpu_dist on TPUs.

Used by the native backends and, with gloo, by the xla backend on an emulated TPU. Collectives between XLA:CPU devices abort
within a process and silently do nothing between processes; therefore those reductions run on the host.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from payload.failures import PeerLost, WorldError
from payload.job import TrainingJob

# Long, because hosts import torch at different speeds, and the hosts of an emulated slice share one machine.
TIMEOUT = timedelta(minutes=10)
# Errors of this process's own device; the second exists since torch 2.8.
_OWN_DEVICE_ERRORS = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
_PEER_PATTERN = re.compile(r"gloo|nccl|tpu_dist|connection|socket|timed out|peer", re.IGNORECASE)


class Group:
    """All processes of the training. Collectives take tensors on `device`, the host for gloo. All methods raise PeerLost."""

    def __init__(self, job: TrainingJob, kind: str = "gloo", device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        with naming_peer_loss(), _without_stdout():
            dist.init_process_group(kind, init_method=job.meet_at, rank=job.rank, world_size=job.world, timeout=TIMEOUT)

    def sum_(self, values: torch.Tensor) -> torch.Tensor:
        with naming_peer_loss():
            dist.all_reduce(values)
        return values

    def broadcast(self, content: bytes) -> bytes:
        with naming_peer_loss():
            size = torch.tensor([len(content)], device=self.device)
            dist.broadcast(size, 0)
            buffer = torch.zeros(int(size.item()), dtype=torch.uint8, device=self.device)
            if dist.get_rank() == 0 and content:
                buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.device)
            dist.broadcast(buffer, 0)
        return buffer.cpu().numpy().tobytes()

    def close(self) -> None:
        dist.destroy_process_group()


@contextmanager
def naming_peer_loss(*, sure: bool = True) -> Iterator[None]:
    """Convert RuntimeError and ValueError of collectives and their rendezvous to PeerLost, or to WorldError.

    If the block may fail for other reasons too (not `sure`), convert only errors whose text names a collective. Errors of this
    process's own device pass unchanged.
    """
    try:
        yield
    except _OWN_DEVICE_ERRORS:
        raise
    except (RuntimeError, ValueError) as error:
        if not sure and not _PEER_PATTERN.search(str(error)):
            raise
        text = str(error)
        reason = text.partition("Last error:\n")[2] or text  # nccl puts the reason after this line
        first_line = (reason.splitlines() or ["no reason given"])[0][:200]
        if "Duplicate GPU" in first_line:
            raise WorldError(f"{first_line}: each process needs a GPU of its own") from None
        raise PeerLost(f"lost another process of this training: {first_line}") from None


@contextmanager
def _without_stdout() -> Iterator[None]:
    """Discard standard output: gloo prints each connection there, in fragments that would mix with the log."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
