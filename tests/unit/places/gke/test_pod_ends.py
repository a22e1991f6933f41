"""What a run says of pods whose end is not the job's own."""

from typing import Any

import pytest

from orchestrator.errors import DeadlineExceeded, PayloadFailed, Preempted, SliceLost, TpujobError
from orchestrator.places.gke.pod_ends import verdict
from orchestrator.remote.fleet.follow import WorkerState, WorkerStatus
from orchestrator.remote.fleet.steps import FleetStatus
from tests.unit.engine.virtual import lease_and_request

LEASE = lease_and_request().lease


def ended(index: int, rc: int | None = None, why: str = "", detail: str = "", **more: Any) -> WorkerStatus:
    state = WorkerState.LOST if rc is None else WorkerState.EXITED
    return WorkerStatus(index, state, 100.0 + index, 0, rc, why=why, detail=detail, **more)


def of(*workers: WorkerStatus) -> TpujobError | None:
    return verdict(LEASE, FleetStatus(workers), "r1")


OOM = "the job on worker0 was killed: it took more memory than there is (OOMKilled)"
NODE = LEASE.name.node


@pytest.mark.parametrize(("worker", "kind", "code", "words"), [
    (ended(0, 124, "deadline", stopped=True), DeadlineExceeded, 124, "the job reached limits.max_duration and was stopped"),
    (ended(0, 3, "setup"), PayloadFailed, 3, "the setup failed on worker0 with code 3"),
    (ended(0, why="stalled"), SliceLost, 71, "the job printed nothing for `limits.stall` and was stopped"),
    (ended(0, why="OOMKilled"), PayloadFailed, 63, OOM),
    (ended(0, why="failed", detail="no room"), SliceLost, 71, "worker0 could not begin the job: no room"),
    (ended(0, why="gone", detail="its pod was deleted"), SliceLost, 71, f"worker0 of {NODE} was lost: its pod was deleted"),
    (ended(0, why="Evicted", detail="low on disk"), Preempted, 71, f"worker0 of {NODE} was lost: Evicted: low on disk"),
])  # fmt: skip
def test_each_end_has_its_words_and_its_code(
    worker: WorkerStatus, kind: type[TpujobError], code: int, words: str
) -> None:
    error = of(worker)
    assert type(error) is kind and (error.exit_code, error.message) == (code, words)


def test_the_jobs_own_code_is_left_to_the_job() -> None:
    assert of(ended(0, 5)) is None and of(ended(0, why="lost")) is None


def test_a_pod_that_was_taken_away_explains_the_failures_of_the_others_and_a_deleted_one_does_not() -> None:
    taken = of(ended(0, 1), ended(1, why="Preempting"))
    assert isinstance(taken, Preempted) and "worker1" in taken.message
    assert of(ended(0, 1), ended(1, why="gone")) is None


@pytest.mark.parametrize("stopped", ["stopped", "gone"])
def test_a_pod_that_the_cluster_stops_beside_one_that_has_ended_is_not_the_cause_however_early_it_is_known(
    stopped: str,
) -> None:
    assert of(ended(0, why=stopped), ended(1, 7)) is None
    assert isinstance(of(ended(0, why=stopped), ended(1, 124, "deadline", stopped=True)), DeadlineExceeded)


@pytest.mark.parametrize("why", ["ContainerCannotRun", "StartError"])
def test_a_container_that_cannot_start_is_no_loss_of_its_pod(why: str) -> None:
    error = of(ended(0, why="stopped"), ended(1, why=why, detail="python3: no such file"))
    assert type(error) is SliceLost and error.reason == "not-begun"
    assert error.message == f"worker1 could not begin the job: {why}: python3: no such file"
