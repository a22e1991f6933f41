"""What a training is given besides its backend: the configuration, the clock, the log, and a place for its checkpoints.

`train(backend, run)` in train.py takes it, and so does a job's own `entry:` function: `main(backend, run)`. What they return, a
dictionary, becomes part of metrics.json.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from payload import batches
from payload.backends import Backend
from payload.checkpoints import Checkpoints, Interval
from payload.clock import Clock
from payload.config import Config
from payload.failures import TrainingInterrupted
from payload.job import STOP, Job


@dataclass
class TrainingRun:
    job: Job
    clock: Clock
    say: Callable[[str], None]  # a line of the log, from process 0
    checkpoints: Checkpoints
    backend: Backend
    say_here: Callable[[str], None] = print  # what every host says once, to be seen at work
    saved: dict[str, Any] | None = None  # the state that an unfinished training here left; go on from there
    _interval: Interval = field(init=False)

    def __post_init__(self) -> None:
        self._interval = Interval(self.config.checkpoint_interval)

    @property
    def config(self) -> Config:
        return self.job.config

    @property
    def options(self) -> dict[str, Any]:
        """`options:` of the job file, for an entry of the job's own."""
        return self.config.options or {}

    @property
    def artifacts(self) -> Path:
        """What a process writes here is brought home. Worker 0's process 0 is enough for most files."""
        return self.job.artifacts

    def checkpoint(
        self,
        state: Callable[[], dict[str, Any]],
        *,
        step: int,
        epoch: int = 1,
        ends_epoch: bool = False,
        last: bool = False,
    ) -> None:
        """Call it after each step; it asks for the state only when a checkpoint is due, or when we are asked to stop.

        Process 0 writes; the others wait for it in the next step's reduction, and not forever (backends/group.py).
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
                f"stopped after step {step:,}, and a checkpoint was written: a training started in this directory goes on there"
            )

    def stopping(self) -> bool:
        return (self.job.scratch / STOP).exists()

    def data_loader(self, dataset: Any, batch_size: int, *, epoch: int = 1, shuffle: bool = True) -> Iterable[Any]:
        """Batches of a PyTorch data set, on the device: this process's share of a batch of `batch_size` over all."""
        return self.backend.loader(
            batches.data_loader(self.backend, self.job, dataset, batch_size, epoch=epoch, shuffle=shuffle)
        )


def seed_of(seed: int, epoch: int, step: int, rank: int) -> int:
    """The number for `Backend.seed`, another one for each step of each process."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{epoch}/{step}/{rank}".encode()).digest()[:6], "big")
