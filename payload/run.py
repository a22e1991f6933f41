"""The `run` argument of a training: its configuration, clock, log and checkpoints.

`train(backend, run)` in train.py takes it, as does the `entry:` function of a job: `main(backend, run)`. The dictionary that
they return becomes part of metrics.json.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from payload import artifacts
from payload.backends import Backend
from payload.checkpoints import Checkpoints, Interval
from payload.clock import Clock
from payload.config import Config, interval
from payload.data import batches
from payload.failures import TrainingInterrupted
from payload.job import STOP, TrainingJob
from payload.metrics import MetricsFile


@dataclass
class TrainingRun:
    job: TrainingJob
    clock: Clock
    say: Callable[[str], None]  # prints a line to the log, on process 0 only
    checkpoints: Checkpoints
    backend: Backend
    say_here: Callable[[str], None] = print  # prints a line to the log, on the first process of each host
    saved: dict[str, Any] | None = None  # the checkpoint to resume from; None: start from the beginning
    _interval: Interval = field(init=False)
    _metrics: MetricsFile | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._interval = Interval(interval(self.config.checkpoint_every))

    @property
    def config(self) -> Config:
        return self.job.config

    @property
    def options(self) -> dict[str, Any]:
        """Return `options:` of the job file; {} if it has none."""
        return self.config.options or {}

    @property
    def artifacts(self) -> Path:
        """Return the directory whose files are collected. For most files it is enough that process 0 writes them."""
        return self.job.artifacts

    def report(self, step: int | None = None, **values: float | None) -> None:
        """Append figures to metrics.jsonl, on process 0 only: `run.report(step=1200, loss=0.41)`. Raises OSError.

        `tpujob` shows them while the job runs, and compares them. To read a value from the device waits for it: do so rarely.
        """
        if self.backend.rank == 0:
            if self._metrics is None:
                after = int(self.saved["step"]) if self.saved is not None else 0
                self._metrics = MetricsFile(self.artifacts / artifacts.METRICS, after=after)
            self._metrics.write(step, values)

    def checkpoint(
        self,
        state: Callable[[], dict[str, Any]],
        *,
        step: int,
        epoch: int = 1,
        ends_epoch: bool = False,
        last: bool = False,
    ) -> None:
        """Write a checkpoint if one is due or a stop was requested. Call after each step.

        `state` is called only when a checkpoint is written. Process 0 writes; the others wait in the reduction of the next
        step, with a timeout (backends/group.py). Raises TrainingInterrupted after a requested stop, Diverged if the weights
        are not finite, CannotSave if the file cannot be written.
        """
        if not self.config.checkpoint or self.backend.rank != 0:
            return
        stopping = self.stopping()
        if not (stopping or last or self._interval.due(step=step, epoch=epoch, ends_epoch=ends_epoch)):
            return
        with self.clock.span("checkpoint"):
            self.checkpoints.save(step, state())
        self._interval.saved()
        if stopping:
            raise TrainingInterrupted(
                f"stopped after step {step:,} with a checkpoint; a training started in this directory resumes from it"
            )

    def stopping(self) -> bool:
        """Return whether the supervisor of this host requested a stop."""
        return (self.job.scratch / STOP).exists()

    def data_loader(self, dataset: Any, batch_size: int, *, epoch: int = 1, shuffle: bool = True) -> Iterable[Any]:
        """Return batches of a PyTorch data set, on the device.

        `batch_size` is global: each process gets its equal share. Raises BadConfig if it cannot be divided equally.
        """
        loader = batches.data_loader(self.backend, self.job, dataset, batch_size, epoch=epoch, shuffle=shuffle)
        return self.backend.loader(loader)


def seed_of(seed: int, epoch: int, step: int, rank: int) -> int:
    """Return the argument of `Backend.seed`: a distinct number for each step of each process."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{epoch}/{step}/{rank}".encode()).digest()[:6], "big")
