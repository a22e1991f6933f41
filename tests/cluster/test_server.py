"""The API server and the way to it: away, slow, not for everyone, and ended with the tests."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.fixture import Cluster, start
from tests.cluster.jobsets import ended, jobset, pods, running, submit
from tests.waiting import until

pytestmark = pytest.mark.cluster


def test_pods_run_on_while_the_api_server_is_away(own_cluster: Cluster) -> None:
    cluster = own_cluster
    space = cluster.namespace()
    submit(cluster, space, jobset("j", "sleep 3; echo done"))
    before = [pod["metadata"]["uid"] for pod in running(cluster, space)]
    cluster.faults.play("server_killed")
    assert cluster.kubectl("get", "pods", check=False).returncode
    cluster.faults.play("server_started")
    until(lambda: cluster.kubectl("get", "pods", check=False).returncode == 0, "the API server")
    assert ended(cluster, space, "j")["type"] == "Completed"
    assert [pod["metadata"]["uid"] for pod in pods(cluster, space)] == before


def test_the_way_to_the_api_server_breaks_for_one_user_alone(cluster: Cluster) -> None:
    place = f"/api/v1/namespaces/{cluster.namespace()}/pods"
    cluster.faults.way("closed")
    assert "refused" in cluster.kubectl("get", "--raw", place, check=False).stderr
    cluster.faults.way("silent")
    assert "exceeded" in cluster.kubectl("get", "--raw", place, "--request-timeout=1s", check=False).stderr
    cluster.faults.way("slow", delay_s=0.5)
    began = time.monotonic()
    cluster.kubectl("get", "--raw", place)
    assert time.monotonic() - began >= 0.5
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
