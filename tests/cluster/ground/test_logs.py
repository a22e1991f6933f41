"""Logs of pods through the API server, whole and broken."""

import json
import re
import subprocess

import pytest

from tests.cluster.fixture import Cluster
from tests.cluster.jobsets import ended, jobset, pods, submit
from tests.waiting import until

pytestmark = pytest.mark.cluster

TIMED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (.*)")


def test_a_log_is_followed_to_its_end_with_a_time_on_each_line(cluster: Cluster) -> None:
    space, name = one_pod(
        cluster, "for i in 1 2 3; do echo line $i; sleep 0.3; done; echo error >&2; printf unfinished"
    )
    followed = cluster.kubectl("logs", name, "-n", space, "--follow", "--timestamps").stdout.splitlines()
    assert [TIMED.fullmatch(line)[1] for line in followed] == ["line 1", "line 2", "line 3", "error", "unfinished"]  # type: ignore[index]
    ended(cluster, space, "j")
    assert cluster.kubectl("logs", name, "-n", space, "--tail=1").stdout == "unfinished\n"


def test_a_line_that_is_longer_than_a_part_has_one_time(cluster: Cluster) -> None:
    space, name = one_pod(cluster, "head -c 50000 /dev/zero | tr '\\0' x; echo; echo next")
    ended(cluster, space, "j")
    first, second = cluster.kubectl("logs", name, "-n", space, "--timestamps").stdout.splitlines()
    assert TIMED.fullmatch(first)[1] == "x" * 50000 and TIMED.fullmatch(second)[1] == "next"  # type: ignore[index]


def test_the_log_of_a_pod_that_is_deleted_is_followed_to_its_last_line_and_then_gone(cluster: Cluster) -> None:
    """A pod beside one that failed is deleted by its Job: what it says in its time of grace reaches those who follow."""
    space, name = one_pod(cluster, "trap 'sleep 1; seq 2000; echo last; exit' TERM; echo first; sleep 300 & wait")
    follower = follow(cluster, space, name)
    assert follower.stdout is not None and follower.stdout.readline() == "first\n"
    cluster.kubectl("delete", "pod", name, "-n", space, "--wait=false")
    rest = follower.communicate()[0].splitlines()
    assert (len(rest), rest[-1], follower.returncode) == (2001, "last", 0)
    until(lambda: cluster.get("pod", name, "-n", space) is None, "the pod to go")
    assert "NotFound" in cluster.kubectl("logs", name, "-n", space, check=False).stderr


def test_a_connection_that_is_cut_between_node_and_api_server_looks_like_a_complete_log(cluster: Cluster) -> None:
    space, name = one_pod(cluster, "for i in $(seq 50); do echo a line of some length $i; sleep 0.05; done")
    cluster.faults.play("log_cut", namespace=space, after_bytes=300)
    cut = cluster.kubectl("logs", name, "-n", space, "--follow", "--timestamps")
    assert len(cut.stdout.encode()) == 300 and not cut.stdout.endswith("\n") and cut.returncode == 0
    again = cluster.kubectl("logs", name, "-n", space, "--follow", "--timestamps").stdout
    assert again.startswith(cut.stdout) and again.count("\n") == 50


def test_a_rotated_log_is_followed_on_but_begins_later_for_those_who_come_late(cluster: Cluster) -> None:
    space, name = one_pod(cluster, "echo early; while sleep 0.1; do echo tick; done")
    follower = follow(cluster, space, name)
    assert follower.stdout is not None and follower.stdout.readline() == "early\n"
    assert follower.stdout.readline() == "tick\n"
    cluster.faults.play("log_rotated", namespace=space, pod=name)
    assert follower.stdout.readline() == "tick\n"
    assert "early" not in cluster.kubectl("logs", name, "-n", space).stdout
    follower.kill()
    follower.communicate()


def test_the_log_of_a_container_that_has_not_begun_is_refused_with_the_reason(cluster: Cluster) -> None:
    space = cluster.namespace()
    submit(cluster, space, jobset("j", "true", hosts=1, topology="2x2x1", image="registry.example/typo:1"))
    until(lambda: "ImagePullBackOff" in json.dumps(pods(cluster, space)), "the back-off")
    refused = cluster.kubectl("logs", pods(cluster, space)[0]["metadata"]["name"], "-n", space, check=False)
    assert refused.returncode and "is waiting to start: ImagePullBackOff" in refused.stderr


def test_the_termination_message_and_the_exit_code_come_with_the_status(cluster: Cluster) -> None:
    space, _ = one_pod(cluster, "printf '{\"rc\": 7}' > /dev/termination-log; exit 7")
    ended(cluster, space, "j")
    (pod,) = pods(cluster, space)
    last = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (last["message"], last["exitCode"], last["reason"]) == ('{"rc": 7}', 7, "Error")


def follow(cluster: Cluster, namespace: str, pod: str) -> subprocess.Popen[str]:
    words = ["kubectl", f"--kubeconfig={cluster.kubeconfig}", "logs", pod, "-n", namespace, "--follow"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def one_pod(cluster: Cluster, script: str) -> tuple[str, str]:
    """Start a script in a pod. Return the namespace and the name of the pod, which runs or has ended."""
    space = cluster.namespace()
    submit(cluster, space, jobset("j", script, hosts=1, topology="2x2x1"))
    until(lambda: pods(cluster, space) and pods(cluster, space)[0]["status"]["phase"] != "Pending", "the pod to begin")
    return space, pods(cluster, space)[0]["metadata"]["name"]
