"""The end of a job on a cluster: its nodes are watched until they are gone, and what is said where one is not proven."""

from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.engine.effects.base import Effect, Now, Report, Sleep
from orchestrator.errors import (
    AuthError,
    CloudError,
    CloudUnavailable,
    DeadlineExceeded,
    PayloadFailed,
    Preempted,
    SliceLost,
    TpujobError,
)
from orchestrator.places.gke import by_hand
from orchestrator.places.gke.objects.nodes import NodeView
from orchestrator.places.gke.stay import WATCH_S, GetNodes, report_nodes, verdict
from orchestrator.remote.fleet.follow import WorkerState, WorkerStatus
from orchestrator.remote.fleet.port import FleetStatus
from tests.leases import lease_and_request
from tests.simulation.model.bench import driven

NODES = ("gke-a", "gke-b")


class Nodes:
    """The nodes of a cluster at a time: each as long as it is there, by seconds from the beginning."""

    def __init__(self, **until_s: float) -> None:
        self.time, self.until = 0.0, {name.replace("_", "-"): s for name, s in until_s.items()}
        self.busy: set[str] = set()
        self.errors: list[CloudError] = []
        self.told: list[str] = []

    def answer(self, effect: Effect[Any]) -> Any:
        match effect:
            case Now():
                return self.time
            case Sleep(seconds=seconds):
                self.time += seconds
            case Report(stage=stage, text=text):
                self.told.append(f"{stage} {text}")
            case GetNodes(names=names):
                if self.errors:
                    raise self.errors.pop()
                there = [name for name in names if self.time < self.until[name]]
                return tuple(NodeView(name, "pool", busy=name in self.busy) for name in there)
        return None


def told(cloud: Nodes) -> list[str]:
    driven(report_nodes("a-cluster", NODES), cloud.answer)
    assert cloud.time <= WATCH_S + 60
    return [text.removeprefix("nodes ") for text in cloud.told if "still exist" not in text]


def test_nodes_are_watched_until_they_are_gone() -> None:
    lines = told(Nodes(gke_a=95, gke_b=200))
    assert lines[0].startswith("2 nodes of pool pool (gke-a, gke-b): billed until the cluster deletes them")
    assert lines[1] == "all 2 nodes are gone after 3 m 25 s"


def test_nodes_that_stay_are_named_at_the_end_of_the_watch() -> None:
    lines = told(Nodes(gke_a=95, gke_b=1e9))
    assert lines[-1].startswith("warning nodes STILL THERE, and billed: 1 node of pool pool (gke-b); a minimum size")


def test_a_node_that_other_jobs_use_is_not_waited_for() -> None:
    cloud = Nodes(gke_a=95, gke_b=1e9)
    cloud.busy.add("gke-b")
    assert told(cloud)[-1] == "the node is gone after 1 m 45 s; 1 node of pool pool (gke-b), 1 in use by others"


def test_a_user_who_may_not_read_nodes_is_told_so() -> None:
    cloud = Nodes(gke_a=0, gke_b=0)
    cloud.errors = [AuthError("nodes is forbidden")]
    assert told(cloud) == ["you may not read nodes, so that they are gone is not known: nodes is forbidden"]


def test_an_api_server_that_is_away_for_a_moment_is_asked_again() -> None:
    cloud = Nodes(gke_a=0, gke_b=0)
    cloud.errors = [CloudUnavailable("503")]
    assert told(cloud)[0].startswith("all 2 nodes are gone after")


def test_without_nodes_nothing_is_asked() -> None:
    driven(report_nodes("a-cluster", ()), Mock(side_effect=AssertionError))


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
    assert of(ended(0, 5)) is of(ended(0, 124)) is of(ended(0, why="lost")) is None


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


def test_the_commands_name_namespace_lease_and_context() -> None:
    name = SliceName("my ctx@https://127.0.0.1:1", "team", "tpujob-abc123-0123456789", queued=True)
    every = "jobsets,jobs,pods,configmaps,secrets -n team -l tpujob-lease-id=0123456789 --context 'my ctx'"
    assert by_hand.look_commands(name, "0123456789") == (f"kubectl get {every}",)
    assert by_hand.delete_command(name, "0123456789") == f"kubectl delete {every}", "also without its JobSet"
    assert by_hand.delete_command(name) == f"kubectl delete {every}", "also where only its leavings were found"


def test_a_cluster_without_a_context_is_that_of_your_own() -> None:
    name = SliceName("projects/p/locations/us-central1/clusters/one", "team", "tpujob-abc123-0123456789", queued=True)
    assert "--context" not in by_hand.delete_command(name)
