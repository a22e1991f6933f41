"""What the control plane and Kueue do with a JobSet by themselves: the ground of the guarantee on a cluster."""

from typing import Any

import pytest

from tests.cluster.fixture import Cluster
from tests.cluster.jobsets import condition, ended, events, jobset, phases, pods, running, submit
from tests.waiting import until

pytestmark = pytest.mark.cluster

WAITS = "trap 'echo asked to end; exit 9' TERM; echo begun; sleep 300 & wait"
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}


def test_two_slices_complete_and_each_pod_knows_its_place(cluster: Cluster) -> None:
    space = cluster.namespace()
    script = "echo $HOSTNAME $JOB_COMPLETION_INDEX $TPU_WORKER_ID $TPU_WORKER_HOSTNAMES; getent hosts $HOSTNAME.j"
    document = jobset("j", script, slices=2)
    document["metadata"]["annotations"] = EXCLUSIVE
    submit(cluster, space, document)
    assert ended(cluster, space, "j")["type"] == "Completed"
    found = pods(cluster, space)
    assert [pod["status"]["phase"] for pod in found] == ["Succeeded"] * 4
    for pod, (number, host) in zip(found, [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True):
        names = ",".join(f"j-slice-{number}-{each}.j" for each in (0, 1))
        first, second = cluster.kubectl("logs", pod["metadata"]["name"], "-n", space).stdout.splitlines()
        assert first == f"j-slice-{number}-{host} {host} {host} {names}"
        assert second.split()[0] == pod["status"]["podIP"]
    pool_of = {row["node"]: row["pool"] for row in cluster.meter.rows()}
    used = [pool_of[pod["spec"]["nodeName"]] for pod in found]
    assert used[0] == used[1] != used[2] == used[3], "each slice is a node pool"


def test_a_pod_ends_at_its_own_deadline_and_stays(cluster: Cluster) -> None:
    space = cluster.namespace()
    submit(cluster, space, jobset("j", WAITS, hosts=1, topology="2x2x1", pod_limit_s=2))
    assert ended(cluster, space, "j")["type"] == "Failed"
    (pod,) = pods(cluster, space)
    assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "DeadlineExceeded")


def test_a_pod_that_is_deleted_is_asked_to_end_and_has_its_code_and_its_log_while_a_finalizer_keeps_it(
    cluster: Cluster,
) -> None:
    space = cluster.namespace()
    document = jobset("j", WAITS, hosts=1, topology="2x2x1", grace_s=30)
    template = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    template["metadata"] = {"finalizers": ["tests.example/stuck"]}
    submit(cluster, space, document)
    (pod,) = running(cluster, space, 1)
    name = pod["metadata"]["name"]
    until(lambda: cluster.kubectl("logs", name, "-n", space).stdout == "begun\n", "its first line")
    cluster.kubectl("delete", "pod", name, "-n", space, "--wait=false")
    until(lambda: phases(cluster, space) == ["Failed"], "its end")
    (left,) = pods(cluster, space)
    assert left["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 9
    assert cluster.kubectl("logs", name, "-n", space).stdout == "begun\nasked to end\n"
    cluster.kubectl("patch", "pod", name, "-n", space, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    until(lambda: cluster.get("pod", name, "-n", space) is None, "the pod to go")


def test_the_deadline_of_a_job_counts_while_its_pods_are_pending_and_deletes_them(cluster: Cluster) -> None:
    space = cluster.namespace()
    cluster.faults.play("no_capacity", namespace=space)
    submit(cluster, space, jobset("j", WAITS, hosts=4, accelerator="tpu-v6e-slice", topology="4x4", job_limit_s=600))
    until(lambda: "FailedScaleUp" in events(cluster, space), "the autoscaler's word")
    assert set(phases(cluster, space)) == {"Pending"}
    (job,) = cluster.get("jobs", "-n", space)
    sooner = '{"spec":{"activeDeadlineSeconds":1}}'  # from the same beginning on
    cluster.kubectl("patch", "job", job["metadata"]["name"], "-n", space, "--type=merge", "-p", sooner)
    assert ended(cluster, space, "j")["type"] == "Failed"
    (job,) = cluster.get("jobs", "-n", space)
    assert (condition(job, "Failed") or {})["reason"] == "DeadlineExceeded"
    assert pods(cluster, space) == []


def test_one_failed_pod_ends_the_others_and_their_objects(cluster: Cluster) -> None:
    """Of the Job that failed first, the pods that failed stay; of all others nothing does, nor do their logs."""
    space = cluster.namespace()
    script = f"[ $(hostname) = j-slice-0-0 ] && {{ sleep 1; exit 3; }}; {WAITS}"
    submit(cluster, space, jobset("j", script, slices=2))
    failed = ended(cluster, space, "j")
    assert (failed["type"], failed["reason"]) == ("Failed", "ReachedMaxRestarts") and "j-slice-0" in failed["message"]
    until(lambda: len(pods(cluster, space)) == 1, "the pods that did not fail to go")
    (left,) = pods(cluster, space)
    assert left["metadata"]["name"].startswith("j-slice-0-0-")
    assert left["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_a_finished_jobset_is_deleted_with_all_that_it_owns_after_its_ttl(cluster: Cluster) -> None:
    space = cluster.namespace()
    uid = submit(cluster, space, jobset("j", "true", ttl_s=1))
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "j", "uid": uid}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "j", "ownerReferences": [owner]}}
    cluster.kubectl("create", "-n", space, "-f", "-", given=files)
    for what in ("jobset/j", "configmap/j"):
        until(lambda what=what: cluster.get(what, "-n", space) is None, f"{what} to go")  # type: ignore[misc]
    assert cluster.get("jobs,pods,services", "-n", space) == []


def test_a_delete_with_another_uid_is_refused_and_one_in_the_foreground_takes_the_pods_first(cluster: Cluster) -> None:
    space = cluster.namespace()
    uid = submit(cluster, space, jobset("j", WAITS, grace_s=3))
    running(cluster, space)
    place = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{space}/jobsets/j"
    wrong = cluster.delete(place, {"propagationPolicy": "Foreground", "preconditions": {"uid": "another"}})
    assert (wrong["code"], wrong["reason"]) == (409, "Conflict")
    going = cluster.delete(place, {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}})
    assert going["metadata"]["finalizers"] == ["foregroundDeletion"]
    until(lambda: cluster.get("jobset", "j", "-n", space) is None, "the JobSet to go")
    assert cluster.get("jobs,pods,services", "-n", space) == []


SLEEPS = "sleep 300"
ONE_SLICE = 8  # chips


@pytest.mark.parametrize(
    ("quota", "accelerator", "why"),
    [(0, "tpu-v5p-slice", "request (8) > maximum capacity (0)"), (64, "tpu-v99", "doesn't match node affinity")],
    ids=["no-quota", "no-such-flavor"],
)
def test_a_jobset_that_is_never_admitted_has_no_pod_and_its_workload_says_why(
    cluster: Cluster, quota: int, accelerator: str, why: str
) -> None:
    space = cluster.namespace(quota=quota)
    submit(cluster, space, jobset("j", SLEEPS, queue="tpu", accelerator=accelerator))
    until(lambda: why in waits_for(cluster, space, "j"), "the reason")
    assert pods(cluster, space) == []


def test_the_longest_time_of_execution_suspends_a_jobset_for_good(cluster: Cluster) -> None:
    """It is neither failed nor deleted: its `ttlSecondsAfterFinished` never begins."""
    space = cluster.namespace()
    limit = {"kueue.x-k8s.io/max-exec-time-seconds": "4"}
    submit(cluster, space, jobset("j", SLEEPS, queue="tpu", labels=limit, ttl_s=0))
    over = until(lambda: condition(workload(cluster, space, "j"), "Evicted"), "the end of its time") or {}
    assert over["reason"] == "DeactivatedDueToMaximumExecutionTimeExceeded"
    until(lambda: not pods(cluster, space), "the pods to go")
    found = cluster.get("jobset", "j", "-n", space)
    assert found["spec"]["suspend"] is True and condition(found, "Completed", "Failed") is None
    assert workload(cluster, space, "j")["spec"]["active"] is False


def test_one_that_is_preempted_by_priority_is_run_again_by_kueue(cluster: Cluster) -> None:
    space = cluster.namespace(quota=ONE_SLICE)
    submit(cluster, space, jobset("j", SLEEPS, queue="tpu", labels={"kueue.x-k8s.io/priority-class": "low"}))
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
