"""The input of a training process: resolved configuration, placement, data. The supervisor pickles it to stdin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from payload.config import Config
from payload.data.sources import DataSource
from payload.launch.placement import Placement

STOP = "stop"  # a file in `Job.scratch`, created by the supervisor to request a checkpoint and a stop


@dataclass(frozen=True)
class TrainingJob:
    config: Config
    placement: Placement
    source: DataSource | None  # None: the job has an `entry`, which loads its own data
    backend: str  # "xla", "cuda", "cpu" or "tpu"
    meet_at: str  # the init_method URL of torch.distributed
    started: float  # time.monotonic() at the start of the command: the zero of all recorded times
    data_began: float  # start and end of fetching the files, before any process starts; same clock
    data_ended: float
    scratch: Path  # a temporary directory of this host and this run
    local_rank: int = 0  # among the processes that the supervisor starts on this host
    node: int | None = None  # this host's index where the accelerator orders the hosts itself; None: `placement.worker`

    @property
    def artifacts(self) -> Path:
        return Path(self.placement.artifacts)

    @property
    def world(self) -> int:
        """Return the number of processes over all hosts. Not valid for torch_xla on a TPU, which starts its own."""
        return self.placement.workers * self.placement.processes

    @property
    def rank(self) -> int:
        node = self.placement.worker if self.node is None else self.node
        return node * self.placement.processes + self.local_rank

    @property
    def meets_on_this_machine(self) -> bool:
        """Return whether all processes of the training run on this machine, as those of an emulated slice do."""
        return self.meet_at.startswith("file:") or urlsplit(self.meet_at).hostname in ("127.0.0.1", "localhost", "::1")

    def cores_each(self, cores: int) -> int:
        """Return this process's share of `cores` CPU cores of this machine, at least 1: more threads would contend."""
        return max(1, cores // (self.world if self.meets_on_this_machine else self.placement.processes))
