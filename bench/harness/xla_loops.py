"""The loops that need torch_xla: the tutorials', and the payload's own on its CPU device."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "CPU")
# As payload/launch/supervise.py does for our training; here it serves the tutorials' loops, too.
os.environ.setdefault("TORCH_DISABLE_FUNCTIONALIZATION_META_REFERENCE", "1")

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl

from harness import loops
from harness.loops import Took, Tutorial, Work
from payload.backends.xla import Xla

ours = partial(loops.ours, backend=Xla)


def tutorial(work: Work) -> Took:
    """torch_xla as most tutorials have it: ParallelLoader, and the loss read at each step."""
    device = torch_xla.device()
    loop = Tutorial(work, device)

    def epoch(loader: Iterable[Any]) -> list[float]:
        losses = []
        for x, y in pl.ParallelLoader(loader, [device]).per_device_loader(device):
            loss = loop.backward(x, y)
            xm.optimizer_step(loop.optimizer)
            losses.append(loss.item())
        return losses

    return loop.run(epoch, xm.wait_device_ops)


def official(work: Work) -> Took:
    """torch_xla's own MNIST example: MpDeviceLoader, and a step closure that reads the loss at every tenth step."""
    device = torch_xla.device()
    loop = Tutorial(work, device)

    def epoch(loader: Iterable[Any]) -> list[float]:
        losses: list[float] = []
        for step, (x, y) in enumerate(pl.MpDeviceLoader(loader, device)):
            loss = loop.backward(x, y)
            xm.optimizer_step(loop.optimizer)
            if step % 10 == 0:
                xm.add_step_closure(lambda loss: losses.append(loss.item()), args=(loss,))
        return losses

    return loop.run(epoch, xm.wait_device_ops)


class Reading(Xla):
    """Waits for the loss of each step."""

    def step(self, optimizer: torch.optim.Optimizer, also: torch.Tensor) -> torch.Tensor:
        also = super().step(optimizer, also)
        also[0].item()
        return also
