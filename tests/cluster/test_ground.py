"""What the control plane, Kueue and the emulated nodes do by themselves, without tpujob: what its promises stand on."""

import subprocess
from typing import Any

import pytest

from tests.cluster.agent.nodes import NODE_POOL
from tests.cluster.fixture import Cluster
from tests.cluster.gke_fixture import MEET
from tests.cluster.jobsets import condition, ended, jobset, pods, running, submit
from tests.waiting import until

pytestmark = pytest.mark.cluster

STUCK = "tests.example/stuck"


def test_two_slices_complete_each_on_a_node_pool_and_each_pod_knows_its_place(cluster: Cluster) -> None:
    space = cluster.namespace()
    first = (
        "TPUJOB_WORKER=$([ $HOSTNAME = j-slice-0-0 ] && echo 0) TPUJOB_WORKERS=4 TPUJOB_COORDINATOR=j-slice-0-0.j:20000"
    )
    wait = "until getent hosts j-slice-0-0.j >/dev/null; do sleep 0.1; done"  # it may be the last that has an address
    script = f"echo $HOSTNAME $JOB_COMPLETION_INDEX; getent hosts $HOSTNAME.j; {wait}; {first} python3 -c '{MEET}'"
    submit(cluster, space, jobset("j", script, slices=2))
    assert ended(cluster, space, "j")["type"] == "Completed"
    found = pods(cluster, space)
    for pod, (number, host) in zip(found, [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True):
        first, second = cluster.logs(pod).splitlines()
        assert first == f"j-slice-{number}-{host} {host}"
        assert second.split()[0] == pod["status"]["podIP"]
    pool_of = {node["metadata"]["name"]: node["metadata"]["labels"][NODE_POOL] for node in cluster.nodes(space)}
    used = [pool_of[pod["spec"]["nodeName"]] for pod in found]
    assert used[0] == used[1] != used[2] == used[3]


def test_the_deadline_of_a_job_counts_while_its_pods_are_pending_and_deletes_them(cluster: Cluster) -> None:
    space = cluster.namespace()
    cluster.supply(space, none_left=True)
    submit(cluster, space, jobset("j", "true"))
    until(lambda: pods(cluster, space), "its first pod")
    (job,) = cluster.rows("jobs", space)
    limit = '{"spec":{"activeDeadlineSeconds":1}}'
    cluster.kubectl("patch", "job", job["metadata"]["name"], "-n", space, "--type=merge", "-p", limit)
    assert ended(cluster, space, "j")["type"] == "Failed"
    (job,) = cluster.rows("jobs", space)
    assert (condition(job, "Failed") or {})["reason"] == "DeadlineExceeded"
    assert pods(cluster, space) == []


def test_the_longest_time_of_execution_suspends_a_jobset_for_good(cluster: Cluster) -> None:
    """It is neither failed nor deleted: its `ttlSecondsAfterFinished` never begins."""
    space = cluster.namespace()
    document = jobset("j", "sleep 300", queue="tpu")
    document["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"] = "4"
    document["spec"]["ttlSecondsAfterFinished"] = 0
    submit(cluster, space, document)

    def over() -> Any:
        found = cluster.rows("workloads", space)
        return found and condition(found[0], "Evicted") and found[0]

    workload = until(over, "the end of its time")
    assert condition(workload, "Evicted")["reason"] == "DeactivatedDueToMaximumExecutionTimeExceeded"  # type: ignore[index]
    until(lambda: not pods(cluster, space), "the pods to go")
    found = cluster.get("jobset", "j", "-n", space)
    assert found["spec"]["suspend"] is True and condition(found, "Completed", "Failed") is None
    assert workload["spec"]["active"] is False


def test_a_pod_that_is_deleted_is_asked_to_end_and_followed_to_its_last_line_and_a_finalizer_keeps_it(
    cluster: Cluster,
) -> None:
    """A pod beside one that failed is deleted by its Job: what it says in its time of grace reaches those who follow."""
    pod = one_pod(cluster, "trap 'sleep 1; seq 2000; exit 9' TERM; echo first; sleep 300 & wait", [STUCK])
    name, space = pod["metadata"]["name"], pod["metadata"]["namespace"]
    words = ["kubectl", f"--kubeconfig={cluster.kubeconfig}", "logs", name, "-n", space, "--follow"]
    follower = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert follower.stdout is not None and follower.stdout.readline() == "first\n"
    cluster.kubectl("delete", "pod", name, "-n", space, "--wait=false")
    rest = follower.communicate()[0].splitlines()
    assert (len(rest), rest[-1], follower.returncode) == (2000, "2000", 0)
    (left,) = until(lambda: [each for each in pods(cluster, space) if each["status"]["phase"] == "Failed"], "its end")
    assert left["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 9
    assert cluster.logs(pod).endswith("2000\n")
    cluster.kubectl("patch", "pod", name, "-n", space, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')
    until(lambda: cluster.get("pod", name, "-n", space) is None, "the pod to go")


def test_a_log_that_is_cut_looks_complete(cluster: Cluster) -> None:
    pod = one_pod(cluster, "while sleep 0.1; do echo a line of some length; done")
    cluster.play("log_cut", namespace=pod["metadata"]["namespace"], after_bytes=300)
    cut = cluster.logs(pod, "--follow", "--timestamps")
    assert len(cut.encode()) == 300 and not cut.endswith("\n")
    assert cluster.logs(pod, "--timestamps").startswith(cut)


def one_pod(cluster: Cluster, script: str, finalizers: Any = ()) -> dict[str, Any]:
    """Start a script in a pod, and return that once it runs."""
    space, document = cluster.namespace(), jobset("j", script, "v5p-8")
    template = document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    template["metadata"] = {"finalizers": list(finalizers)}
    submit(cluster, space, document)
    return running(cluster, space, 1)[0]
