"""Pods as processes, and the fleet of them."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.hosts.fleet.crew import FleetStatus
from orchestrator.hosts.fleet.follow import WorkerStatus
from orchestrator.hosts.transfer.collect import CollectRequest, CollectResult
from orchestrator.places.gke.pods.fleet import PodFleet
from orchestrator.places.gke.pods.index import ReadResult
from orchestrator.promise.lease.cloud_api import WorkerAddress
from orchestrator.text.terminal import LeftOut
from tests.fakes.pods import Node
from tests.waiting import HANG_S


@dataclass
class Followed:
    """A fleet, and what came of it."""

    fleet: PodFleet
    place: Path
    logs: dict[int, bytearray] = field(default_factory=dict)
    metrics: bytearray = field(default_factory=bytearray)
    notices: list[str] = field(default_factory=list)
    left_out_bytes: int = 0

    def follow(self, phase: str = "main") -> None:
        self.fleet.attach("r1-1", phase)
        self.fleet.follow(self._take, lambda index, data: self.metrics.extend(data))

    def _take(self, index: int, data: bytes) -> None:
        self.logs.setdefault(index, bytearray()).extend(data)
        self.left_out_bytes += data.size_bytes if isinstance(data, LeftOut) else 0

    def ended(self) -> FleetStatus:
        """Wait until the phase has ended on every worker."""
        deadline = time.monotonic() + HANG_S
        while not (status := self.fleet.wait(1.0)).ended:
            assert time.monotonic() < deadline, f"no end: {status}"
        return status

    def end(self, phase: str = "main") -> WorkerStatus:
        """Follow the phase to its end; return that of worker 0."""
        self.follow(phase)
        return self.ended().workers[0]

    def collect(self, **keys: Any) -> CollectResult:
        request = CollectRequest("", self.place / "results", (), **keys)
        return self.fleet.collect(request).within(HANG_S)

    def result(self, path: str, worker: int = 0) -> bytes:
        return (self.place / "results" / f"worker{worker}" / path).read_bytes()

    @property
    def log(self) -> bytes:
        return bytes(self.logs.get(0, b""))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node")
    yield made
    made.end()


@pytest.fixture
def followed(node: Node, tmp_path: Path) -> Iterator[Callable[..., Followed]]:
    """Return a fleet of so many pods of the node."""
    made: list[Followed] = []

    def make(workers: int = 1, store: ReadResult | None = None) -> Followed:
        notices: list[str] = []
        there = range(workers) if store is None else node.all
        addresses = [WorkerAddress(index, f"10.0.0.{index}" * (index in there)) for index in range(workers)]
        fleet = PodFleet(node, addresses, on_notice=notices.append, results=store)
        made.append(Followed(fleet, tmp_path, notices=notices))
        return made[-1]

    yield make
    for each in made:
        each.fleet.cancel()
