"""The API server and the way to it: away, slow, not for everyone, and ended with the tests."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.fixture import Cluster, start
from tests.cluster.jobsets import ended, jobset, running, submit
from tests.waiting import until

pytestmark = pytest.mark.cluster

DELAY_S = 3.0  # of each piece; kubectl takes at most 10 s to agree on keys, with two of them


def test_pods_run_on_while_the_api_server_is_away(own_cluster: Cluster) -> None:
    cluster = own_cluster
    space = cluster.namespace()
    own = f"300.{time.time_ns()}"  # no other process has this argument
    submit(cluster, space, jobset("j", f"exec sleep {own}", grace_s=1))
    before = [pod["metadata"]["uid"] for pod in running(cluster, space)]
    programs = until(lambda: asleep(own), "their programs", lambda found: len(found) == 2)
    cluster.faults.play("server_killed")
    assert cluster.kubectl("get", "pods", check=False).returncode
    cluster.faults.play("server_started")
    until(lambda: cluster.kubectl("get", "pods", check=False).returncode == 0, "the API server")
    assert [pod["metadata"]["uid"] for pod in running(cluster, space)] == before
    assert asleep(own) == programs
    cluster.kubectl("delete", "pods", "--all", "-n", space, "--wait=false")
    assert ended(cluster, space, "j")["type"] == "Failed"
    until(lambda: not asleep(own), "the end of their programs")


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


def test_a_user_may_do_no_more_than_its_role_says(cluster: Cluster) -> None:
    space = cluster.namespace()
    own = cluster.user(space, [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
    allowed = subprocess.run(
        ["kubectl", f"--kubeconfig={own}", "get", "pods"], capture_output=True, text=True, check=False
    )
    refused = subprocess.run(
        ["kubectl", f"--kubeconfig={own}", "get", "jobsets"], capture_output=True, text=True, check=False
    )
    assert allowed.returncode == 0
    assert "Forbidden" in refused.stderr


def test_the_audit_log_has_what_a_user_sent(cluster: Cluster) -> None:
    space = cluster.namespace()
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}, "data": {"file": "hello"}}
    cluster.kubectl("create", "-n", space, "-f", "-", given=files)
    sent = [
        each for each in cluster.requests(space) if each["verb"] == "create" and each["objectRef"]["name"] == "files"
    ]
    assert [each["requestObject"]["data"] for each in sent] == [{"file": "hello"}]


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


def asleep(own: str) -> set[int]:
    """Return the processes that sleep for so many seconds."""
    return {each.pid for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", own]}


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
