"""The profilers of the backends, behind one protocol. Each writes its trace below a directory when it stops.

torch_xla's writes what XProf reads, `plugins/profile/<time>/<host>.xplane.pb`, and the same as Chrome's trace events. PyTorch's
own writes the latter only.
"""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

STEP = "train"  # the name under which XProf groups steps


class Trace(Protocol):
    """One trace. Any method may raise what the profiler raises."""

    def start(self) -> None:
        """Begin the trace."""

    def begin_step(self, number: int) -> None:
        """Mark the beginning of a step."""

    def end_step(self) -> None:
        """Mark the end of the step that was begun last."""

    def stop(self) -> None:
        """End the trace and write its files."""


class XlaTrace:
    """By torch_xla: Python, dispatches, and the device."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._step: AbstractContextManager[Any] | None = None

    def start(self) -> None:
        from torch_xla.debug import profiler

        self._directory.mkdir(parents=True, exist_ok=True)
        profiler.start_trace(self._directory)

    def begin_step(self, number: int) -> None:
        import torch_xla

        # Not profiler.StepTrace: it dispatches the step itself, and it forbids that the step does. `_r` marks a step for XProf.
        self._step = torch_xla._XLAC.profiler.TraceMe(STEP, _r=1, step_num=number)
        self._step.__enter__()

    def end_step(self) -> None:
        assert self._step is not None, "a step has begun"
        self._step.__exit__(None, None, None)

    def stop(self) -> None:
        from torch_xla.debug import profiler

        profiler.stop_trace()


class TorchTrace:
    """By PyTorch: operations and, on a GPU, its kernels."""

    def __init__(self, directory: Path, device: torch.device) -> None:
        self._directory = directory
        kinds = (torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=kinds if device.type == "cuda" else kinds[:1])
        self._step: AbstractContextManager[Any] | None = None

    def start(self) -> None:
        self._profiler.start()

    def begin_step(self, number: int) -> None:
        self._step = torch.profiler.record_function(f"{STEP} {number}")
        self._step.__enter__()

    def end_step(self) -> None:
        assert self._step is not None, "a step has begun"
        self._step.__exit__(None, None, None)

    def stop(self) -> None:
        self._profiler.stop()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(self._directory / f"{platform.node() or 'worker'}.trace.json.gz"))
