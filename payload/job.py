"""What a training process is told: the resolved configuration, its place, its data. Pickled to it by the supervisor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from payload.config import Config
from payload.placement import Placement
from payload.sources import DataSource

STOP = "stop"  # a file in `Job.scratch`: the supervisor makes it when it is asked to end


@dataclass(frozen=True)
class Job:
    config: Config
    placement: Placement
    source: DataSource | None  # None: an entry of the job's own, which brings its data
    backend: str  # "xla", "cuda", "cpu" or "tpu"
    meet_at: str  # where several processes on CPU find each other, a URL of torch.distributed
    started: float  # time.monotonic() at the start of the command: zero of all times written down
    data_began: float  # the supervisor gets the files before any process starts; on the same clock
    data_ended: float
    scratch: Path  # of this host and this run, removed at its end
    local_rank: int = 0  # among the processes that we start on this host
    node: int | None = (
        None  # this host's number among the hosts, where the accelerator counts them in an order of its own
    )

    @property
    def artifacts(self) -> Path:
        return Path(self.placement.artifacts)

    @property
    def world(self) -> int:
        """Processes over all hosts, where we start them ourselves (not on a TPU)."""
        return self.placement.workers * self.placement.processes

    @property
    def rank(self) -> int:
        node = self.placement.worker if self.node is None else self.node
        return node * self.placement.processes + self.local_rank

    @property
    def meets_on_this_machine(self) -> bool:
        """Is every process of the training here? The hosts of an emulated slice are all one machine."""
        return self.meet_at.startswith("file:") or urlsplit(self.meet_at).hostname in ("127.0.0.1", "localhost", "::1")

    def cores_each(self, cores: int) -> int:
        """This process's share of the cores of this machine: at least 1. Threads beyond that would spin for one another."""
        return max(1, cores // (self.world if self.meets_on_this_machine else self.placement.processes))
