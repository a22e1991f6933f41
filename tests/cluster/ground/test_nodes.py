"""Nodes that break and go, logs of pods, and the API server: away, slow, not for everyone."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.fixture import Cluster, start
from tests.cluster.jobsets import condition, ended, events, jobset, phases, pods, running, submit
from tests.waiting import until

pytestmark = pytest.mark.cluster

WAITS = "trap 'exit 9' TERM; sleep 300 & wait"


def test_nodes_bill_from_the_scale_up_to_the_late_scale_down(cluster: Cluster) -> None:
    space = cluster.namespace()
    cluster.faults.supply(space, idle_s=2)
    submit(cluster, space, jobset("j", "true", accelerator="tpu-v4-podslice"))
    ended(cluster, space, "j")
    nodes = [pod["spec"]["nodeName"] for pod in pods(cluster, space)]
    until(lambda: all(row["ended_at"] for row in cluster.meter.of(nodes)), "the scale-down")
    rows = cluster.meter.of(nodes)
    assert len(rows) == 2 and {row["why"] for row in rows} == {"scaled down"}
    assert all(row["seconds"] >= 2 for row in rows), "they billed on after the JobSet had ended"
    until(lambda: all(cluster.get("node", node) is None for node in nodes), "the Node objects to go")


def test_a_spot_request_gets_spot_nodes(cluster: Cluster) -> None:
    space = cluster.namespace()
    document = jobset("j", "true", hosts=1, topology="2x2x1", selector={"cloud.google.com/gke-spot": "true"})
    pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["tolerations"].append({"key": "cloud.google.com/gke-spot", "operator": "Exists"})
    submit(cluster, space, document)
    assert ended(cluster, space, "j")["type"] == "Completed"
    node = cluster.get("node", pods(cluster, space)[0]["spec"]["nodeName"])
    assert node["metadata"]["labels"]["cloud.google.com/gke-spot"] == "true"


def test_a_pod_that_fits_no_pool_stays_pending_and_the_autoscaler_says_so(cluster: Cluster) -> None:
    space = cluster.namespace()
    submit(cluster, space, jobset("j", "true", topology="9x9"))
    until(lambda: "NotTriggerScaleUp" in events(cluster, space), "the autoscaler's word")
    assert phases(cluster, space) == ["Pending", "Pending"]


def test_a_pod_waits_for_its_image_and_for_its_config_map_and_says_so(cluster: Cluster) -> None:
    space = cluster.namespace()
    submit(cluster, space, jobset("missing", "true", hosts=1, topology="2x2x1", image="registry.example/typo:1"))
    until(lambda: waiting(cluster, space) == ["ImagePullBackOff"], "the back-off")
    cluster.kubectl("delete", "jobset", "missing", "-n", space, "--cascade=foreground")
    document = jobset("late", "cat /in/file; ls -la /in /", hosts=1, topology="2x2x1")
    pod = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "in", "configMap": {"name": "files"}}]
    pod["containers"][0]["volumeMounts"] = [{"name": "in", "mountPath": "/in"}]
    submit(cluster, space, document)
    until(lambda: "FailedMount" in events(cluster, space), "the kubelet's word")
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}, "data": {"file": "hello\n"}}
    cluster.kubectl("create", "-n", space, "-f", "-", given=files)
    assert ended(cluster, space, "late")["type"] == "Completed"
    assert cluster.kubectl("logs", pods(cluster, space)[0]["metadata"]["name"], "-n", space).stdout.startswith(
        "hello\n"
    )


def test_a_preempted_node_ends_its_pod_with_a_notice_and_its_bill(cluster: Cluster) -> None:
    space = cluster.namespace()
    submit(cluster, space, jobset("j", WAITS))
    node = running(cluster, space)[0]["spec"]["nodeName"]
    cluster.faults.play("node_preempted", node=node)
    (row,) = cluster.meter.of([node])
    assert row["why"] == "preempted" and row["ended_at"] and cluster.get("node", node) is None
    assert ended(cluster, space, "j")["type"] == "Failed"
    until(lambda: len(pods(cluster, space)) == 1, "the other pod to go")
    (left,) = pods(cluster, space)
    assert (left["spec"]["nodeName"], left["status"]["reason"]) == (node, "Terminated")


def test_a_lost_node_keeps_its_pod_and_its_bill_until_it_is_removed(cluster: Cluster) -> None:
    """The Job is doomed once the pod's tolerations end, and fails only when the pod is gone."""
    space = cluster.namespace()
    submit(cluster, space, jobset("j", WAITS))
    node = running(cluster, space)[0]["spec"]["nodeName"]
    cluster.faults.play("node_lost", node=node)
    until(lambda: condition(cluster.get("jobs", "-n", space)[0], "FailureTarget"), "the Job to be doomed")
    until(lambda: len(pods(cluster, space)) == 1, "the other pod to go")
    (left,) = pods(cluster, space)
    assert left["metadata"]["deletionTimestamp"] and left["status"]["phase"] == "Running"
    assert condition(cluster.get("jobset", "j", "-n", space), "Failed") is None
    assert cluster.meter.of([node])[0]["ended_at"] is None
    cluster.faults.play("node_removed", node=node)
    assert cluster.meter.of([node])[0]["ended_at"] is not None
    assert ended(cluster, space, "j")["type"] == "Failed"  # the control plane looks for pods without nodes every minute


def waiting(cluster: Cluster, namespace: str) -> list[str]:
    """Return what the containers wait for."""
    states = [
        status["state"] for pod in pods(cluster, namespace) for status in pod["status"].get("containerStatuses", ())
    ]
    return [state["waiting"]["reason"] for state in states if "waiting" in state]


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


DELAY_S = 3.0  # of each piece; kubectl takes at most 10 s to agree on keys, with two of them


def test_the_way_to_the_api_server_breaks_for_one_user_alone(cluster: Cluster) -> None:
    place = f"/api/v1/namespaces/{cluster.namespace()}/pods"
    cluster.faults.way("closed")
    assert "refused" in cluster.kubectl("get", "--raw", place, check=False).stderr
    cluster.faults.way("silent")
    assert "exceeded" in cluster.kubectl("get", "--raw", place, "--request-timeout=1s", check=False).stderr
    cluster.faults.way("open")
    alone_s = seconds_of(cluster, place)
    cluster.faults.way("slow", delay_s=DELAY_S)
    assert seconds_of(cluster, place) >= alone_s + DELAY_S
    cluster.faults.way("open")
    cluster.kubectl("get", "--raw", place)


def test_everything_ends_with_the_process_that_a_cluster_is_for(tmp_path: Path, cluster: Cluster) -> None:
    place = tmp_path / "cluster"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as user:
        one = start(place, user.pid).for_one_test(tmp_path)
        space = one.namespace()
        submit(one, space, jobset("j", f"sleep 300 # {place}"))
        running(one, space)
        names = {process.name() for process in of(place)}
        assert {"etcd", "kube-apiserver", "kube-scheduler", "jobset", "kueue", "sh"} <= names
        user.kill()
    until(lambda: not of(place), "the end of its programs and pods")
    assert sorted(path.name for path in place.iterdir() if path.is_dir()) == ["logs"]


def seconds_of(cluster: Cluster, place: str) -> float:
    """Return how long kubectl takes to read this."""
    began = time.monotonic()
    cluster.kubectl("get", "--raw", place)
    return time.monotonic() - began


def of(place: Path) -> list[psutil.Process]:
    """Return the processes whose command line has the place."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(place) in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found
