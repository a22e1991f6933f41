"""Nodes that come, bill, break and go, and the pods that are on them."""

import pytest

from tests.cluster.fixture import Cluster
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


def test_an_evicted_pod_fails_with_that_reason_and_takes_its_jobset_along(cluster: Cluster) -> None:
    space = cluster.namespace()
    submit(cluster, space, jobset("j", WAITS))
    first, _ = running(cluster, space)
    cluster.faults.play("evicted", namespace=space, pod=first["metadata"]["name"])
    assert ended(cluster, space, "j")["type"] == "Failed"
    until(lambda: len(pods(cluster, space)) == 1, "the other pod to go")
    (left,) = pods(cluster, space)
    assert (left["metadata"]["name"], left["status"]["reason"]) == (first["metadata"]["name"], "Evicted")
    assert (condition(left, "DisruptionTarget") or {})["reason"] == "TerminationByKubelet"


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
