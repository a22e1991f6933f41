"""What a training process is told: the resolved configuration, its place, its data. Pickled to it by the supervisor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from payload.config import Config
from payload.placement import Placement
from payload.sources import Source

STOP = "stop"  # a file in `Job.scratch`: the supervisor makes it when it is asked to end


@dataclass(frozen=True)
class Job:
    config: Config
    placement: Placement
    source: Source | None  # None: an entry of the job's own, which brings its data
    backend: str  # "xla", "cuda", "cpu" or "tpu"
    meet_at: str  # where several processes on CPU find each other, a URL of torch.distributed
    started: float  # time.monotonic() at the start of the command: zero of all times written down
    data_began: float  # the supervisor gets the files before any process starts; on the same clock
    data_ended: float
    scratch: Path  # of this host and this run, removed at its end
    local_rank: int = 0  # among the processes that we start on this host

    @property
    def artifacts(self) -> Path:
        return Path(self.placement.artifacts)

    @property
    def world(self) -> int:
        """Processes over all hosts, where we start them ourselves (not on a TPU)."""
        return self.placement.workers * self.placement.processes

    @property
    def rank(self) -> int:
        return self.placement.worker * self.placement.processes + self.local_rank
