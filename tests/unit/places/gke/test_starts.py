"""A job that its cluster starts again: its starts are read from the bucket, awaited, and each is an attempt with its cost."""

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import ArtifactError, CloudUnavailable, Preempted
from orchestrator.places.gke.api.kube_api import NotFound
from orchestrator.places.gke.starts import Start, Starts
from orchestrator.places.gke.stay import ClusterStay
from orchestrator.places.place import Ask, Standing
from orchestrator.promise.effects.base import Effect, Make, Now, ReadAttempt, ReadLease, Record, Report, Sleep
from orchestrator.promise.effects.cloud import Get
from orchestrator.promise.lease.changes import Began, CreateSent, Intent, Leased, Ready
from orchestrator.promise.lease.cloud_api import SliceState, SliceView
from orchestrator.promise.lease.lease import LeaseState, SliceName
from orchestrator.promise.lease.periods import GOOGLE
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord, SavedState
from orchestrator.report.rows import costs
from orchestrator.run.progress import JobProgress
from orchestrator.run.restart import await_next_start, count_starts
from tests.fakes.leases import LedgerInMemory, lease_on
from tests.simulation.model.bench import driven

NAME = SliceName("a-cluster", "team", "tpujob-owner0-0000000001", queued=True)
LEASE = lease_on(NAME, 0.0, cloud="gke", run="r1", usd_per_hour=3600.0, ready_by=600.0)
FIRST, SECOND, THIRD = Start("old", 10.0, 30.0), Start("new", 100.0, 0.0), Start("newer", 200.0, 0.0)
LOST = Preempted("worker0 was taken away")


def seen(native: str, *pods: str, state: SliceState = SliceState.READY) -> SliceView:
    return SliceView(NAME, state, native, "v6e-8", "", {}, hosts=pods, running_s=5.0)


class Cluster:
    """What the control plane, the bucket and the ledger answer: each view once, and the last one from then on."""

    def __init__(self, *views: SliceView, counted: tuple[Start, ...] = ()) -> None:
        self.time, self.views, self.counted, self.away = 300.0, list(views), counted, 0
        self.ledger, self.told = LedgerInMemory(), list[str]()
        self.stay = ClusterStay(starts=Starts(3, self.read, lambda: SavedState(files=1, step=80, at=90.0)))

    def read(self, number: int) -> Iterator[bytes]:
        if self.away:
            self.away -= 1
            raise CloudUnavailable("the storage does not answer")
        if number > len(self.counted):
            raise NotFound("no such object")
        start = self.counted[number - 1]
        yield json.dumps({"pod": start.pod, "at": start.at, "used_s": start.used_s}).encode()

    def answer(self, effect: Effect[Any]) -> Any:
        match effect:
            case Now():
                return self.time
            case Sleep(seconds=seconds):
                self.time += seconds
            case ReadLease():
                return LEASE
            case ReadAttempt():
                return Attempt("r1-1", "r1")
            case Get():
                return self.views.pop(0) if len(self.views) > 1 else self.views[0]
            case Make(make=make):
                return make()
            case Report(stage=stage, text=text):
                self.told.append(f"{stage} {text}")
            case Record(events=events) if self.ledger.runs():
                self.ledger.record(*events)
        return None

    def settled(self, number: int) -> Standing:
        ask = Ask(Attempt(f"r1-{number}", "r1"), 0.0, 3600.0, attached=True)
        lease = replace(LEASE, state=LeaseState.READY, ready_at=20.0)
        return driven(self.stay.settle(ask, lease, SimpleNamespace(timings=GOOGLE)), self.answer)  # type: ignore[arg-type]


def test_the_next_attempt_is_that_of_the_pods_that_count_it_with_the_time_that_is_left() -> None:
    waiting = seen("Suspended: quota", state=SliceState.QUEUED), seen("Running", "new")
    cluster = Cluster(seen("Running", "old"), *waiting, seen("Running", "new"), counted=(FIRST, SECOND))
    cluster.away = 1
    at = cluster.settled(2)
    assert at.starts == (10.0, 100.0) and at.began == cluster.time - 5.0
    assert at.end.at == pytest.approx(at.began + 3600.0 - 30.0 + 60.0)
    assert cluster.stay.starts_again(LOST, Attempt("r1-2", "r1"))
    assert not cluster.stay.starts_again(LOST, Attempt("r1-3", "r1")), "it has begun as often as it may"


def test_who_attaches_to_a_job_that_waits_to_be_started_again_waits_with_it_long_after_its_first_wait() -> None:
    waiting = replace(seen("Suspended: quota", state=SliceState.QUEUED), ran=True)
    cluster = Cluster(waiting, waiting, seen("Running", "new"), counted=(FIRST, SECOND))
    cluster.time = 20_000.0
    assert cluster.settled(1).starts == (10.0, 100.0)


def test_a_job_that_the_cluster_starts_no_more_is_lost_and_one_that_was_never_counted_tells_its_end_itself() -> None:
    cluster = Cluster(seen("Running", "old"), seen("Failed", "old"), counted=(FIRST,))
    with pytest.raises(Preempted, match="the cluster does not start it again"):
        cluster.settled(2)
    assert not cluster.stay.starts_again(LOST, Attempt("r1-2", "r1"))
    assert Cluster(seen("Failed", "old")).settled(1).starts == ()


def test_of_a_job_that_is_over_all_starts_count_though_its_pods_are_gone() -> None:
    assert Cluster(seen("Completed"), counted=(FIRST, SECOND)).settled(1).starts == (10.0, 100.0)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"pod": 1, "at": 2}', b'{"pod": "p", "at": 1e999}', b"{" * 5000])
def test_a_count_that_makes_no_sense_is_said(content: bytes) -> None:
    with pytest.raises(ArtifactError, match="a count of its starts that makes no sense"):
        Starts(3, lambda number: iter([content]), SavedState)()


def test_each_start_is_an_attempt_with_its_share_of_the_cost_seen_or_not() -> None:
    cluster, first = Cluster(), Attempt("r1-1", "r1")
    run = RunRecord("r1", "mnist", "job.yaml", "gke", 0.0, "runs/r1")
    cluster.ledger.record(Began(run, first), Intent(LEASE), CreateSent(LEASE.id, 0.0), Ready(LEASE.id, 10.0))
    cluster.ledger.record(Leased(first.id, 10.0, LEASE.id))
    progress = JobProgress(run, first, cluster.ledger.lease(LEASE.id))
    job: Any = SimpleNamespace(run=run, stay=cluster.stay)
    cluster.time = 90.0
    driven(await_next_start(progress, LOST), cluster.answer)
    at: Any = SimpleNamespace(starts=(10.0, 100.0, 200.0))
    driven(count_starts(job, progress, at), cluster.answer)
    found = cluster.ledger.attempts_of("r1")
    assert [(each.id, each.state, each.ended_at) for each in found] == [
        ("r1-1", "interrupted", 90.0), ("r1-2", "interrupted", 200.0), ("r1-3", "pending", None),
    ]  # fmt: skip
    assert progress.attempt.id == "r1-3" and [loss.at for loss in progress.losses] == [90.0, 200.0]
    assert cluster.told[-1] == "restart attempt 3 goes on at step 80, saved 1 m 50 s before the loss"
    assert costs.of_attempts(cluster.ledger, run, 300.0) == {"r1-1": 80.0, "r1-2": 110.0, "r1-3": 100.0}
