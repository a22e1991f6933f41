"""TorchTPU: PyTorch's native TPU device (package torch_tpu), which importing it registers as the accelerator "tpu".

No TPU has seen this: it is written from the package's own Python (version 0.2.0), and tested against a stand-in for it. It
needs an environment of its own, since it wants a newer torch than torch_xla does; what its processes need before they start
is in tpu_launch.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from payload import tpu_launch
from payload.backends import FP32_ON_TPU, Batch, moved
from payload.backends.native import Native
from payload.failures import BadConfig
from payload.job import Job

_LENGTH_BYTES = 8


class TpuBackend(Native):
    kind, collectives, first_steps = "tpu", "tpu_dist", 1

    def __init__(self, job: Job) -> None:
        tpu_launch.load()
        super().__init__(job)
        if self._lower is None and torch.get_float32_matmul_precision() == "medium":  # torch_tpu's default
            self.precision = FP32_ON_TPU

    def _take_device(self, local_rank: int) -> torch.device:
        """A process sees one chip, which its LOCAL_RANK has chosen; there is no other to switch to."""
        device = torch.accelerator.current_accelerator()
        if device is None:
            raise BadConfig("torch_tpu is installed, but PyTorch sees no accelerator: is this a TPU VM?")
        return device

    def loader(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        for batch in batches:
            yield moved(batch, lambda tensor: tensor.to(self.device, non_blocking=True))

    def drain(self) -> None:
        torch.accelerator.synchronize()

    def seed(self, number: int) -> None:
        super().seed(number)
        torch.tpu.manual_seed(number)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """In float32, as gradients are summed: that doubles travel between TPUs is not proven."""
        if self._group is None:
            return super().sum(values)
        return self._group.sum_(values.float().to(self.device, copy=True)).cpu().double()

    def broadcast(self, content: bytes) -> bytes:
        """As a sum to which the others add zeros. Each byte is a float32, of which nothing is rounded."""
        if self._group is None:
            return content
        content = content if self.rank == 0 else b""
        length = int.from_bytes(self._sum_bytes(len(content).to_bytes(_LENGTH_BYTES, "big")), "big")
        return self._sum_bytes(content.ljust(length, b"\0"))

    def _sum_bytes(self, content: bytes) -> bytes:
        if not content:
            return b""
        summed = self.sum(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        return bytes(summed.to(torch.uint8).numpy())
