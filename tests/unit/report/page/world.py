"""Runs as a ledger and a directory have them, for tests of pages: as many attempts, zones and lines as a test wants."""

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.promise.lease.changes import (
    AttemptEnded,
    Began,
    Continued,
    Created,
    CreateSent,
    Gone,
    Intent,
    Leased,
    Moved,
    Ready,
    ReleaseBegan,
    Tried,
)
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord, WorkerEnd
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.report.page import pages, timeline
from orchestrator.report.page.timeline import RunData
from tests.fakes.leases import lease_and_request

AT = 1_700_000_000.0
HEADER = {"schema": 1, "timing": "drained", "device": "xla:tpu", "processes": 8, "batch_size": 64}
_leases = itertools.count(1)


@dataclass
class World:
    """`now` moves on with what happens."""

    directory: Path
    name: str = "mnist"
    run: str = "7q2mabcdef"
    cloud: str = "google"
    spec: dict[str, Any] = field(default_factory=dict)
    now: float = AT

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger(self.directory.parent / f"{self.directory.name}.sqlite3")
        spec = RunSpec.of({"name": self.name, "command": "python train.py", **self.spec})
        self.record = RunRecord(self.run, self.name, "job.yaml", self.cloud, AT, str(self.directory), spec)
        self._attempts = 0

    def begin(self) -> str:
        self._attempts += 1
        attempt = Attempt(f"{self.run}-{self._attempts}", self.run)
        self.ledger.record(Began(self.record, attempt, None if self._attempts == 1 else self.now))
        return attempt.id

    def ask(self) -> Lease:
        lease, _ = lease_and_request(next(_leases), now=self.now)
        lease = replace(lease, cloud=self.cloud, run=self.run, usd_per_hour=9.6)
        self.ledger.record(Intent(lease), CreateSent(lease.id, self.now), Created(lease.id, self.now, "operation"))
        return lease

    def refused(self, attempt: str, why: str = "no capacity") -> None:
        lease = self.ask()
        self.now += 20
        self.ledger.record(ReleaseBegan(lease.id, self.now - 5, why), Gone(lease.id, self.now, "404"))
        where = f"{lease.accelerator_type} {lease.name.zone}"
        self.ledger.record(Tried(attempt, self.now, lease.id, where, why))

    def work(self, attempt: str, seconds: float, *, setup_s: float = 0.0) -> Lease:
        """From the question for a slice to the end of the job's work."""
        lease = self.ask()
        self.now += 60
        self.ledger.record(Ready(lease.id, self.now), Leased(attempt, self.now, lease.id))
        self.now += 5
        if setup_s:
            self.ledger.record(Moved(attempt, self.now, AttemptState.SETUP))
            self.now += setup_s
        self.ledger.record(Moved(attempt, self.now, AttemptState.RUNNING))
        self.now += seconds
        return lease

    def lose(self, attempt: str, lease: Lease) -> None:
        self.lost_at = self.now
        end = AttemptEnded(attempt, self.now, AttemptState.INTERRUPTED, "preempted by Google", 1, cause="preempted")
        self.ledger.record(end, ReleaseBegan(lease.id, self.now, "preempted"))
        self.now += 10
        self.ledger.record(Gone(lease.id, self.now, "404"))

    def go_on(self, attempt: str, step: int, saved_s: float | None) -> None:
        """`saved_s`: from the copy to the loss of the attempt before."""
        saved_at = None if saved_s is None else self.lost_at - saved_s
        self.ledger.record(Continued(attempt, self.now, f"goes on at step {step}", 2, 900, step, saved_at))

    def end(
        self,
        attempt: str,
        lease: Lease | None,
        state: AttemptState = AttemptState.SUCCEEDED,
        why: str = "",
        workers: tuple[WorkerEnd, ...] = (),
        hint: str = "",
    ) -> None:
        self.ledger.record(Moved(attempt, self.now, AttemptState.COLLECTING))
        self.now += 4
        if lease is not None:
            self.ledger.record(ReleaseBegan(lease.id, self.now, "the run ended"))
            self.now += 30
            self.ledger.record(Gone(lease.id, self.now, "404"))
        code = 0 if state is AttemptState.SUCCEEDED else 7
        self.ledger.record(AttemptEnded(attempt, self.now, state, why, code, hint=hint, workers=workers))

    def write(self, path: str, content: str | bytes) -> None:
        file = self.directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())

    def metrics(self, lines: Iterable[dict[str, Any]]) -> None:
        self.write("worker0/artifacts/metrics.jsonl", "".join(f"{json.dumps(line)}\n" for line in lines))

    def timing(self, lines: Iterable[dict[str, Any]]) -> None:
        self.write("worker0/artifacts/timing.jsonl", "".join(f"{json.dumps(line)}\n" for line in (HEADER, *lines)))

    def data(self) -> RunData:
        run, attempt = self.ledger.run(self.run)
        return timeline.read(self.ledger, run, attempt, self.now)

    def page(self) -> str:
        return pages.run_page(self.data(), link=".", hide=lambda text: text, trace=True)


def plain_run(directory: Path, **said: Any) -> World:
    """One attempt that succeeded, with a loss and step times."""
    world = World(directory, **said)
    attempt = world.begin()
    world.end(attempt, world.work(attempt, 120.0))
    world.metrics(
        {"step": step, "loss": 2.3 * math.exp(-step / 50), "acc": 1 - math.exp(-step / 50)} for step in range(1, 201)
    )
    world.timing(training_steps(200))
    world.write("logs/worker0.log", "epoch 1\nepoch 2\n")
    return world


def training_steps(count: int, *, seconds: Sequence[float] = (0.02, 0.021, 0.019)) -> list[dict[str, Any]]:
    """Lines of steps, of which the first two compiled, and the epoch that they are."""
    lines: list[dict[str, Any]] = []
    at = 10.0
    for step in range(1, count + 1):
        took = 4.0 if step < 3 else seconds[step % len(seconds)]
        at += took
        lines.append({"epoch": 1, "step": step, "t_s": round(at, 5), "dt_s": took})
        if step < 3:
            lines[-1]["compile"] = True
    end = {
        "epoch": 1, "t_s": at, "s": at - 18, "compile_s": 8.0, "warm_steps": count - 2, "steps": count,
        "wait_s": 0.5,
    }  # fmt: skip
    return [*lines, {"span": "compile", "t_s": 18.0, "s": 8.0}, end]


def preempted_twice(directory: Path) -> World:
    """Three attempts: refused in a zone, lost, lost again without a copy of its work, succeeded."""
    world = World(directory, name="spot", run="3pre3mpted")
    first = world.begin()
    world.refused(first)
    world.lose(first, world.work(first, 300.0))
    second = world.begin()
    world.go_on(second, 80, 45.0)
    world.refused(second)
    world.lose(second, world.work(second, 100.0))
    third = world.begin()
    world.go_on(third, 80, None)
    world.end(third, world.work(third, 200.0))
    world.metrics({"step": step, "loss": 1 / step} for step in range(1, 100))
    return world
