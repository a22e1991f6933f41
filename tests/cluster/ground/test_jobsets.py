"""What the control plane does with a JobSet by itself: the ground that the guarantee on a cluster stands on."""

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


def test_a_finalizer_that_is_stuck_keeps_the_jobset_but_not_its_pods(cluster: Cluster) -> None:
    space = cluster.namespace()
    document = jobset("j", WAITS)
    document["metadata"]["finalizers"] = ["tests.example/stuck"]
    submit(cluster, space, document)
    running(cluster, space)
    cluster.kubectl("delete", "jobset", "j", "-n", space, "--cascade=foreground", "--wait=false")
    until(lambda: not pods(cluster, space), "the pods to go")
    left = cluster.get("jobset", "j", "-n", space)
    assert left["metadata"]["deletionTimestamp"] and "tests.example/stuck" in left["metadata"]["finalizers"]
    cluster.kubectl("patch", "jobset", "j", "-n", space, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    until(lambda: cluster.get("jobset", "j", "-n", space) is None, "the JobSet to go")
