"""What Kueue does with a JobSet: admission, quota, and the time that it lets one run."""

from typing import Any

import pytest

from tests.cluster.fixture import Cluster
from tests.cluster.jobsets import condition, ended, jobset, pods, running, submit
from tests.waiting import until

pytestmark = pytest.mark.cluster

WAITS = "sleep 300"
ONE_SLICE = 8  # chips


def test_a_jobset_waits_for_the_quota_of_another_and_runs_when_that_has_ended(cluster: Cluster) -> None:
    space = cluster.namespace(quota=ONE_SLICE)
    submit(cluster, space, jobset("first", WAITS, queue="tpu"))
    running(cluster, space)
    submit(cluster, space, jobset("second", "true", queue="tpu"))
    until(lambda: "insufficient unused quota" in waits_for(cluster, space, "second"), "the reason")
    assert cluster.get("jobset", "second", "-n", space)["spec"]["suspend"] is True
    cluster.kubectl("delete", "jobset", "first", "-n", space, "--wait=false")
    assert ended(cluster, space, "second")["type"] == "Completed"


@pytest.mark.parametrize(
    ("quota", "accelerator", "why"),
    [(0, "tpu-v5p-slice", "request > maximum capacity (8 > 0)"), (64, "tpu-v99", "doesn't match node affinity")],
    ids=["no-quota", "no-such-flavor"],
)
def test_a_jobset_that_is_never_admitted_has_no_pod_and_its_workload_says_why(
    cluster: Cluster, quota: int, accelerator: str, why: str
) -> None:
    space = cluster.namespace(quota=quota)
    submit(cluster, space, jobset("j", WAITS, queue="tpu", accelerator=accelerator))
    until(lambda: why in waits_for(cluster, space, "j"), "the reason")
    assert pods(cluster, space) == []


def test_the_longest_time_of_execution_suspends_a_jobset_for_good(cluster: Cluster) -> None:
    """It is neither failed nor deleted: its `ttlSecondsAfterFinished` never begins."""
    space = cluster.namespace()
    limit = {"kueue.x-k8s.io/max-exec-time-seconds": "4"}
    submit(cluster, space, jobset("j", WAITS, queue="tpu", labels=limit, ttl_s=0))
    over = until(lambda: condition(workload(cluster, space, "j"), "Evicted"), "the end of its time") or {}
    assert over["reason"] == "DeactivatedDueToMaximumExecutionTimeExceeded"
    until(lambda: not pods(cluster, space), "the pods to go")
    found = cluster.get("jobset", "j", "-n", space)
    assert found["spec"]["suspend"] is True and condition(found, "Completed", "Failed") is None
    assert workload(cluster, space, "j")["spec"]["active"] is False


def test_one_that_is_preempted_by_priority_is_run_again_by_kueue(cluster: Cluster) -> None:
    space = cluster.namespace(quota=ONE_SLICE)
    submit(cluster, space, jobset("j", WAITS, queue="tpu", labels={"kueue.x-k8s.io/priority-class": "low"}))
    first = {pod["metadata"]["uid"] for pod in running(cluster, space)}
    submit(cluster, space, jobset("urgent", "true", queue="tpu", labels={"kueue.x-k8s.io/priority-class": "high"}))
    evicted = until(lambda: condition(workload(cluster, space, "j"), "Evicted"), "the preemption") or {}
    assert evicted["reason"] == "Preempted"
    assert ended(cluster, space, "urgent")["type"] == "Completed"
    until(lambda: run_by(cluster, space, "j") - first, "it to run again in new pods", lambda found: len(found) == 2)


def run_by(cluster: Cluster, namespace: str, name: str) -> set[str]:
    """Return the UIDs of the pods of a JobSet that run."""
    label = "jobset.sigs.k8s.io/jobset-name"
    found = [pod for pod in pods(cluster, namespace) if pod["metadata"]["labels"][label] == name]
    return {pod["metadata"]["uid"] for pod in found if pod["status"]["phase"] == "Running"}


def workload(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    """Return Kueue's Workload of a JobSet; empty until there is one."""
    found = cluster.get("workloads", "-n", namespace)
    return next((each for each in found if each["metadata"]["ownerReferences"][0]["name"] == name), {})


def waits_for(cluster: Cluster, namespace: str, name: str) -> str:
    """Return why it is not admitted."""
    conditions = workload(cluster, namespace, name).get("status", {}).get("conditions") or ()
    return next(
        (each["message"] for each in conditions if each["type"] == "QuotaReserved" and each["status"] == "False"), ""
    )
