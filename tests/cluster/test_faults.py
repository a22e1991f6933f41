"""What a cluster refuses, takes away or does not answer: each ends as it should, and is said."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli_fixture import Command
from tests.cluster.fixture import Cluster
from tests.cluster.gke_fixture import HOLD, Gke
from tests.cluster.jobsets import jobset, running, submit
from tests.waiting import until

pytestmark = pytest.mark.cluster

SHORT = {"tpu": {"wait": "10s"}}
READS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]


# -- before it runs ----------------------------------------------------------------------------------------------------


def test_a_job_larger_than_its_quota_is_not_admitted_and_kueue_says_why(gke: Gke) -> None:
    gke.space = gke.cluster.namespace(quota=0)
    done = gke.run("true", **SHORT)
    assert done.returncode == 69, done.text
    assert "was not admitted" in done.stderr and "request (4) > maximum capacity (0)" in done.stderr
    assert gke.left() == [] and gke.cluster.get("workloads", "-n", gke.space) == []


def test_a_queue_that_does_not_exist_is_said(gke: Gke) -> None:
    done = gke.run("true", queue="nowhere", **SHORT)
    assert done.returncode == 69 and "nowhere" in done.stderr and "doesn't exist" in done.stderr, done.text
    assert gke.left() == []


def test_nodes_that_cannot_be_had_are_said_in_the_words_of_the_autoscaler(gke: Gke) -> None:
    gke.cluster.faults.supply(gke.space, none_left=True)
    done = gke.run("true", queue=None, **SHORT)
    assert done.returncode == 69 and "GCE out of resources" in done.stderr, done.text
    assert gke.left() == []


def test_an_image_that_does_not_exist_is_refused(gke: Gke) -> None:
    done = gke.run("true", gke={"image": "registry.example/typo:1"})
    assert done.returncode == 64, done.text
    assert (
        'Failed to pull image "registry.example/typo:1"' in done.stderr and "correct `gke: {image: …}`" in done.stderr
    )
    assert gke.left() == []


def test_a_namespace_that_does_not_exist_is_refused(gke: Gke) -> None:
    done = gke.run("true", gke={"namespace": "nowhere"})
    assert done.returncode == 64 and "nowhere" in done.stderr, done.text


def test_a_permission_that_is_missing_has_a_code_of_its_own(gke: Gke) -> None:
    config = gke.cluster.user(gke.space, READS)
    done = gke.run("true", env={"KUBECONFIG": str(config)})
    assert done.returncode == 77 and "you may not create jobsets" in done.stderr, done.text
    assert gke.left() == []


# -- while it runs -----------------------------------------------------------------------------------------------------


def evicted(gke: Gke, pod: dict[str, Any]) -> None:
    gke.cluster.faults.play("evicted", namespace=gke.space, pod=pod["metadata"]["name"])


def preempted(gke: Gke, pod: dict[str, Any]) -> None:
    gke.cluster.faults.play("node_preempted", node=pod["spec"]["nodeName"])


def removed(gke: Gke, pod: dict[str, Any]) -> None:
    gke.cluster.faults.play("node_removed", node=pod["spec"]["nodeName"])


# As the pod is seen, with the reason or only its deletion, or the Job without it, or what is left of a failed JobSet. The
# control plane looks for pods without nodes every minute.
REMOVED = ("node no longer exists", "its pod was deleted", "pods have no node", "none of its pods is left")


@pytest.mark.parametrize(("fault", "words"), [
    (evicted, ("low on resource: memory",)), (preempted, ("imminent node shutdown",)),
    pytest.param(removed, REMOVED, marks=pytest.mark.long),
], ids=lambda value: getattr(value, "__name__", ""))  # fmt: skip
def test_a_pod_that_is_taken_away_ends_the_run_with_71_and_says_what_took_it(
    gke: Gke, fault: Callable[[Gke, dict[str, Any]], None], words: tuple[str, ...]
) -> None:
    command = gke.running(HOLD, pods=2)
    fault(gke, gke.pods()[1])
    done = gke.end(command)
    assert done.returncode == 71 and any(each in done.stderr for each in words), done.text
    assert gke.left() == []


def test_a_job_that_kueue_preempts_for_a_higher_priority_ends_with_71(gke: Gke) -> None:
    gke.space = gke.cluster.namespace(quota=4)
    command = gke.running(HOLD, gke={"priority": "low"})
    urgent = jobset("urgent", HOLD, hosts=1, topology="2x2x1", queue="tpu")
    urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
    submit(gke.cluster, gke.space, urgent)
    done = gke.end(command)
    assert done.returncode == 71 and "Preempted" in done.stderr, done.text
    assert gke.left() == []


def test_a_log_that_is_cut_again_and_again_comes_back_whole(gke: Gke) -> None:
    gke.cluster.faults.play("log_cut", namespace=gke.space, after_bytes=700, times=3)
    done = gke.run("for i in $(seq 400); do echo line $i; sleep 0.005; done")
    assert done.returncode == 0, done.text
    log = (gke.directory_of_run() / "logs/worker0.log").read_text()
    assert log == "".join(f"line {each}\n" for each in range(1, 401))


@pytest.mark.parametrize("way", ["closed", "silent"])
def test_an_api_server_that_is_away_for_a_while_ends_nothing(gke: Gke, way: str) -> None:
    command = gke.running(f"{HOLD}echo after")
    gke.way.faults.way(way)
    gke.let_go()
    until(lambda: gke.cluster.get("jobs", "-n", gke.space)[0]["status"].get("succeeded"), "the end of the job")
    gke.way.faults.way("open")
    done = gke.end(command)
    assert done.returncode == 0 and "worker0 | after" in done.stdout, done.text
    assert gke.left() == []


def test_an_api_server_that_is_away_to_the_end_leaves_a_run_unproven_and_the_next_command_proves_it(gke: Gke) -> None:
    command = gke.running(HOLD)
    gke.way.faults.way("closed")
    command.press()  # it ends without waiting for its proof: by the third signal
    command.until("stopping")
    command.press()
    command.until("1 more to leave")
    command.press()
    done = command.end()
    assert done.returncode == 75 and "NOT VERIFIED GONE" in done.stderr, done.text
    assert gke.left() != []
    gke.way.faults.way("open")
    assert gke("gc", "--local").returncode == 0
    assert gke.left() == []


def test_an_api_server_that_dies_and_starts_again_ends_nothing(gke: Gke, own_cluster: Cluster) -> None:
    """And a pod of another user runs until the cluster ends, which takes it with it (`own_cluster`)."""
    gke.cluster = gke.way = own_cluster
    gke.env["KUBECONFIG"] = str(own_cluster.kubeconfig)
    gke.space = own_cluster.namespace()
    other = own_cluster.namespace()
    submit(own_cluster, other, jobset("j", f"sleep 300 # {own_cluster.directory}"))
    command: Command = gke.running(f"{HOLD}echo after")
    own_cluster.faults.play("server_killed")
    own_cluster.faults.play("server_started")
    until(lambda: gke.cluster.kubectl("get", "--raw", "/readyz", check=False).returncode == 0, "the API server")
    gke.let_go()
    done = gke.end(command)
    assert done.returncode == 0 and "worker0 | after" in done.stdout, done.text
    assert gke.left() == []
    running(own_cluster, other)
