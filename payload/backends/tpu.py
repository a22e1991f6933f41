"""TorchTPU: PyTorch's native TPU device (package torch_tpu), which importing it registers as the accelerator "tpu".

Never run on a TPU yet: written from the package's own Python (version 0.2.0), and tested against a stand-in for it. It needs
an environment of its own, since it wants a newer torch than torch_xla does. `python -m payload.backends.tpu N` prints the
environment variables that its processes need; supervise.py asks for them before it starts any.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable

import torch

from payload.backends import Batch, moved
from payload.backends.native import Native
from payload.failures import INSTALL_TORCH_TPU, ConfigError
from payload.job import Job


class Tpu(Native):
    kind, collectives, first_steps = "tpu", "tpu_dist", 1

    def __init__(self, job: Job) -> None:
        load()
        super().__init__(job)

    def _take_device(self, local_rank: int) -> torch.device:
        torch.accelerator.set_device_index(local_rank)
        device = torch.accelerator.current_accelerator()
        if device is None:
            raise ConfigError("torch_tpu is installed, but PyTorch sees no accelerator: is this a TPU VM?")
        return device

    def loader(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        for batch in batches:
            yield moved(batch, lambda tensor: tensor.to(self.device, non_blocking=True))

    def drain(self) -> None:
        torch.accelerator.synchronize()

    def seed(self, number: int) -> None:
        super().seed(number)
        torch.tpu.manual_seed(number)


def load() -> None:
    try:
        importlib.import_module("torch_tpu")
    except ImportError as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"torch_tpu cannot be imported ({reason}): {INSTALL_TORCH_TPU}") from None


def launch_environment(processes: int) -> dict[str, str]:
    """What torch_tpu adds to the environment for `processes` on this host; it must be there before they start."""
    load()
    before = dict(os.environ)
    torch.tpu.distributed.set_tpu_launch_env(nproc_per_node=processes)
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


if __name__ == "__main__":
    try:
        added = launch_environment(int(sys.argv[1]))
    except ConfigError as error:
        sys.exit(f"error: {error}")
    print(json.dumps(added))
