"""TorchTPU: PyTorch's native TPU device. Importing the package torch_tpu registers the accelerator "tpu".

Not tested on a TPU: it is written from the Python of torch_tpu 0.2.0 and tested against a fake of that package. It needs a
separate environment, because it requires a newer torch than torch_xla does. tpu_launch.py prepares its processes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from payload.backends import FP32_ON_TPU, Batch, moved
from payload.backends.native import Native
from payload.failures import BadConfig
from payload.job import TrainingJob
from payload.launch import tpu_launch

_LENGTH_BYTES = 8


class TpuBackend(Native):
    kind, collectives, first_steps = "tpu", "tpu_dist", 1

    def __init__(self, job: TrainingJob) -> None:
        tpu_launch.load()
        super().__init__(job)
        if self._lower is None and torch.get_float32_matmul_precision() == "medium":  # torch_tpu's default
            self.precision = FP32_ON_TPU

    def _take_device(self, local_rank: int) -> torch.device:
        """Return the only chip that this process sees; its LOCAL_RANK selects it."""
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
        """Sum in float32, as gradients are: reductions of float64 between TPUs are not known to work."""
        if self._group is None:
            return super().sum(values)
        return self._group.sum_(values.float().to(self.device, copy=True)).cpu().double()

    def broadcast(self, content: bytes) -> bytes:
        """Broadcast as a sum to which the other processes add zeros. Each byte is a float32, which is exact."""
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
