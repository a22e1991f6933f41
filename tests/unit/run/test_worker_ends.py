"""A phase that fails on several workers: each says how it ended before the others are stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from orchestrator.core.lease.run_and_attempt import RunRecord, WorkerEnd
from orchestrator.engine.effects.base import Report
from orchestrator.errors import PayloadFailed
from orchestrator.places.place import End, Standing
from orchestrator.places.tpu.traits import TRAITS as OF_TPU
from orchestrator.places.vms.stay import VmStay
from orchestrator.remote.fleet.follow import WorkerState, WorkerStatus
from orchestrator.remote.fleet.port import FleetStatus
from orchestrator.run.monitor import SETTLE_S, monitor
from tests.leases import lease_and_request
from tests.simulation.model.bench import Bench, created


@dataclass
class Ends:
    """Workers whose phase ends so many seconds after the start with a code; None: it ends only when it is stopped."""

    world: Bench
    plan: dict[int, tuple[float, int] | None]
    stopped_at: float | None = None
    disk_full: tuple[int, ...] = ()  # the workers on which it is
    wakes_at: float = 0.0  # seconds after the start; nothing is told before
    began: float = 0.0

    def wait(self, timeout_s: float) -> FleetStatus:
        times = [self.began + max(end[0], self.wakes_at) for end in self.plan.values() if end is not None]
        coming = [at for at in times if at > self.world.time]
        self.world.time = min([self.world.time + timeout_s, *coming])
        return FleetStatus(tuple(self._status(index, end) for index, end in self.plan.items()))

    def _status(self, index: int, end: tuple[float, int] | None) -> WorkerStatus:
        if end is not None and self.began + end[0] <= min(self.world.time, self.stopped_at or self.world.time):
            at, rc = self.began + end[0], end[1]
            return WorkerStatus(index, WorkerState.EXITED, at, 0, rc, disk_full=index in self.disk_full)
        if self.stopped_at is not None:
            return WorkerStatus(index, WorkerState.EXITED, self.stopped_at, 0, 143, stopped=True)
        return WorkerStatus(index, WorkerState.RUNNING, self.began, 0)

    def stop(self, grace_s: float) -> None:
        self.stopped_at = self.world.time


def follow(world: Bench, fleet: Any, between: Callable[[Bench], None] | None = None) -> None:
    lease = created(world, lease_and_request(now=world.time), ready=True)
    fleet.began = world.time
    run = RunRecord("7q2mabcdef", "mnist", "job.yaml", "emulated", world.time, "runs/x")
    at = Standing(lease, world.time, End(world.time + 3600), world.time)
    world.drive(monitor(VmStay(OF_TPU), at, fleet, "main", run), between=between)


def told(world: Bench) -> list[WorkerEnd]:
    return [each.about for each in world.effects if isinstance(each, Report) and isinstance(each.about, WorkerEnd)]


def test_workers_that_fail_one_after_the_other_are_all_heard(world: Bench) -> None:
    fleet = Ends(world, {index: (10 + index / 64, 1) for index in range(64)})
    with pytest.raises(PayloadFailed) as raised:
        follow(world, fleet)
    assert raised.value.message == "the job failed on 64 workers, first on worker0 with code 1"
    assert raised.value.hint == "`tpujob logs 7q2mabcdef --worker 0` prints what worker0 wrote"
    assert raised.value.workers == tuple(told(world)) == tuple(WorkerEnd(index, 1) for index in range(64))
    assert fleet.stopped_at is None


def test_the_first_worker_that_failed_is_the_same_in_the_error_the_hint_and_the_reports(world: Bench) -> None:
    ends = {index: (10 + index / 64, 1) for index in range(16)} | {3: (9.5, 1), 4: (9.0, 1), 7: (9.0, 1), 0: (8.0, 0)}
    fleet = Ends(world, dict(ends), disk_full=(3, 4), wakes_at=30.0)  # all are heard of together
    with pytest.raises(PayloadFailed) as raised:
        follow(world, fleet)
    assert raised.value.message == "the job failed on 15 workers, first on worker4 with code 1"
    logs = "`tpujob logs 7q2mabcdef --worker 4` prints what worker4 wrote"
    assert raised.value.hint == f"the disk of worker4 is full; {logs}"
    assert [end.worker for end in told(world) if end.failed][:3] == [4, 7, 3], "by time, then by index"


def test_a_worker_that_hangs_is_stopped_soon_after_the_first_failure(world: Bench) -> None:
    fleet = Ends(world, {0: None, 1: (10, 3), 2: (11, 0)})
    with pytest.raises(PayloadFailed, match="the job failed on worker1 with code 3") as raised:
        follow(world, fleet)
    assert fleet.stopped_at == pytest.approx(fleet.began + 10 + SETTLE_S)
    assert raised.value.workers == (WorkerEnd(0, 143, stopped=True), WorkerEnd(1, 3), WorkerEnd(2, 0))
    assert [end.worker for end in told(world)] == [1, 2, 0], "each as soon as it is known"


def test_an_end_is_reported_once_while_the_others_go_on(world: Bench) -> None:
    follow(world, Ends(world, {0: (1, 0), 1: (200, 0)}))
    assert told(world) == [WorkerEnd(0, 0), WorkerEnd(1, 0)]


def test_a_worker_from_which_nothing_comes_is_named_within_ten_seconds(world: Bench) -> None:
    told: list[tuple[float, str]] = []

    class Silent(Ends):
        def wait(self, timeout_s: float) -> FleetStatus:
            first, second = super().wait(timeout_s).workers
            return FleetStatus((first, replace(second, heard_at=self.began)))

    def note(world: Bench) -> None:
        if isinstance(line := world.effects[-1], Report) and line.stage == "ssh":
            told.append((world.time - fleet.began, line.text))

    fleet = Silent(world, {0: (40, 0), 1: (40, 0)})
    follow(world, fleet, note)
    (first_s, first), (_, again) = told
    assert 8 <= first_s <= 10
    assert first == "waiting for worker1 (1 of 2): nothing came for 8 s; the job may go on there"
    assert again.startswith("waiting for worker1 (1 of 2): nothing came for 30 s")
