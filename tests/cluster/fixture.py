"""The fixture `cluster`: one real control plane for all tests of a session, with what its admin sets up for TPU jobs."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
import ssl
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import psutil
import pytest
import yaml

from orchestrator.places.gke.api.kube_api import path_of
from tests import ROOT
from tests.cluster.agent import sandbox
from tests.cluster.agent.nodes import OF_NAMESPACE
from tests.cluster.kubectl import kubectl, written
from tests.cluster.versions import cache, missing
from tests.waiting import HANG_S, until

if TYPE_CHECKING:
    from tests.cluster.plane.control_plane import ControlPlane


NAMESPACE, QUEUE = "default", "tpu"
ACCELERATORS = ("tpu-v4-podslice", "tpu-v5-lite-podslice", "tpu-v5p-slice", "tpu-v6e-slice", "tpu7x")
QUOTA = 64  # chips of each accelerator
PRIORITIES = {"low": 100, "high": 1000}
COVERED = ("google.com/tpu", "cpu", "memory")
KUEUE = "kueue.x-k8s.io/v1beta2"
GROUP = "tpujob-users"


def install(plane: ControlPlane) -> None:
    """Create flavors, priorities, the queue of the namespace `default`, and give the users' group its rights."""
    kubectl(plane.admin, "create", "clusterrolebinding", GROUP, "--clusterrole=cluster-admin", f"--group={GROUP}")
    made = []
    for accelerator in ACCELERATORS:
        labels = {"nodeLabels": {"cloud.google.com/gke-tpu-accelerator": accelerator}}
        tolerations = {"tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]}
        made.append(_object(KUEUE, "ResourceFlavor", accelerator) | {"spec": labels | tolerations})
    for name, value in PRIORITIES.items():
        made.append(_object(KUEUE, "WorkloadPriorityClass", name) | {"value": value, "description": f"{name} priority"})
    plane.create([*made, *queues(NAMESPACE, QUOTA)])


def queues(namespace: str, chips: int) -> tuple[dict[str, Any], ...]:
    """Return the ClusterQueue and the LocalQueue `tpu` of a namespace, with so many chips of each accelerator."""
    quota = {"google.com/tpu": str(chips), "cpu": "10000", "memory": "100Ti"}
    flavors = [
        {"name": accelerator, "resources": [{"name": name, "nominalQuota": quota[name]} for name in COVERED]}
        for accelerator in ACCELERATORS
    ]
    spec = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceGroups": [{"coveredResources": list(COVERED), "flavors": flavors}],
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    return (
        _object(KUEUE, "ClusterQueue", f"tpu-{namespace}") | {"spec": spec},
        _object(KUEUE, "LocalQueue", QUEUE, namespace) | {"spec": {"clusterQueue": f"tpu-{namespace}"}},
    )


def _object(version: str, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **place}}


@dataclass
class Cluster:
    """A cluster, and a user of it. `directory`: its logs."""

    kubeconfig: Path
    directory: Path
    _agent: str
    _gate: int
    _spaces: list[str] = field(default_factory=list)

    def play(self, kind: str, **said: Any) -> None:
        """Play a fault: `tests/cluster/agent/faults.py` has them all."""
        post(self._agent, "/faults", kind=kind, **said)

    def turn(self, way: str) -> None:
        """Change the way of this test's user to the API server: `open`, `closed` or `silent`."""
        self.play("way", gate=self._gate, way=way)

    def supply(self, namespace: str, **settings: float) -> None:
        """`idle_s`: how long nodes stay once idle; `none_left`: none can be had."""
        self.play("supply", namespace=namespace, **settings)

    def kubectl(self, *words: str, given: Any = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the user."""
        return kubectl(self.kubeconfig, *words, given=given, check=check)

    def get(self, *words: str) -> Any:
        """Return what `kubectl get … -o json` prints; of a list, its items. None: not found."""
        done = self.kubectl("get", *words, "-o", "json", check=False)
        if done.returncode and "NotFound" in done.stderr:
            return None
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return found["items"] if found["kind"] == "List" else found

    def rows(self, kind: str, namespace: str, labels: str = "") -> list[dict[str, Any]]:
        """Return what `get` returns of all of a kind, by name. It starts no program: tests ask again and again."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        where, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        tls = _tls(where["certificate-authority"], user["client-certificate"], user["client-key"])
        url, asked = where["server"] + path_of(kind, namespace), {"labelSelector": labels}
        answer = httpx2.get(url, params=asked, timeout=HANG_S, trust_env=False, verify=tls)
        return sorted(answer.raise_for_status().json()["items"], key=lambda row: str(row["metadata"]["name"]))

    def nodes(self, namespace: str) -> list[dict[str, Any]]:
        """Return the nodes that were made for pods of a namespace: they bill while they are there."""
        return self.rows("nodes", "", f"{OF_NAMESPACE}={namespace}")

    def logs(self, pod: dict[str, Any], *words: str) -> str:
        return self.kubectl("logs", pod["metadata"]["name"], "-n", pod["metadata"]["namespace"], *words).stdout

    def namespace(self, quota: int = QUOTA) -> str:
        """Return a new namespace with a queue `tpu` of so many chips of each accelerator. It is deleted after the test."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        annotations = {"scheduler.alpha.kubernetes.io/node-selector": f"{OF_NAMESPACE}={name}"}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "annotations": annotations}}
        self._spaces.append(name)
        self.kubectl("create", "-f", "-", given=[space, *queues(name, quota)])
        until(lambda: self.get("serviceaccount", "default", "-n", name), "the namespace's service account")
        return name

    def user(self, namespace: str, rules: Sequence[dict[str, Any]]) -> Path:
        """Return a kubeconfig of a user who may do only this in the namespace."""
        name, there = "user", ("-n", namespace)
        role = _object("rbac.authorization.k8s.io/v1", "Role", name, namespace) | {"rules": list(rules)}
        self.kubectl("create", "serviceaccount", name, *there)
        self.kubectl("create", "-f", "-", given=role)
        self.kubectl("create", "rolebinding", name, f"--role={name}", f"--serviceaccount={namespace}:{name}", *there)
        token = self.kubectl("create", "token", name, *there).stdout.strip()
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"] = [{"name": name, "user": {"token": token}}]
        config["contexts"][0]["context"] |= {"user": name, "namespace": namespace}
        return written(self.kubeconfig.with_name(f"{name}.kubeconfig"), config)

    def requests(self, namespace: str) -> list[dict[str, Any]]:
        """Return what users asked for in a namespace, as the API server's audit log has it, with the bodies that were sent."""
        whole, _, _ = (self.directory / "logs" / "audit.log").read_bytes().rpartition(b"\n")  # the rest is half written
        lines = whole.splitlines()
        return [each for each in map(json.loads, lines) if each.get("objectRef", {}).get("namespace") == namespace]

    def tidy(self) -> None:
        """Let go of the namespaces: the control plane empties them."""
        self.turn("open")
        for name in self._spaces:
            self.kubectl("delete", "namespace", name, "--wait=false", check=False)
            self.kubectl("delete", "clusterqueue", f"tpu-{name}", "--wait=false", check=False)
        self._spaces.clear()

    def left_to_read(self) -> str:
        """Return what is in the namespaces of a test that failed."""
        found = [f"the logs of the control plane: {self.directory}"]
        self.turn("open")
        for name in self._spaces:
            for what in (("jobsets,jobs,pods,workloads", "-o", "wide"), ("events",)):
                found.append(self.kubectl("get", *what, "-n", name, check=False).stdout)
        return "\n".join(found)


@functools.cache
def _tls(authority: str, certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(certificate, key)
    return context


def post(agent: str, path: str, **body: Any) -> Any:
    """Ask the agent. HTTPStatusError if it cannot; its log says why."""
    return httpx2.post(agent + path, json=body, timeout=HANG_S, trust_env=False).raise_for_status().json()


@dataclass(frozen=True)
class Started:
    """A cluster that runs."""

    kubeconfig: Path
    directory: Path
    agent: str

    def for_one_test(self, place: Path) -> Cluster:
        """Return it with a way to its API server that no other test has, and a kubeconfig for it."""
        gate = int(post(self.agent, "/gates")["gate"])
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{gate}"
        return Cluster(written(place / "kubeconfig", config), self.directory, self.agent, gate)


def start(directory: Path, while_pid: int) -> Started:
    """Start one, or return that which runs there already. It ends with the process of that number. Skips where none can run."""
    if why := lacking():
        pytest.skip(why)
    said, log = directory / "cluster.json", directory / "cluster.log"
    if not said.exists():
        directory.mkdir()
        words = [sys.executable, "-m", "tests.cluster", f"--directory={directory}", f"--while-pid={while_pid}"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        until(lambda: said.exists() or process.poll() is not None, f"the cluster; its logs are in {directory}")
        assert said.exists(), f"the cluster did not start: {log.read_text()}"
    found = json.loads(said.read_text())
    return Started(Path(found["kubeconfig"]), directory, f"http://127.0.0.1:{found['agent']}")


def lacking() -> str:
    """Return what this machine lacks for a cluster; empty if one can run."""
    if lacks := [each for each in ("kubectl", "openssl") if shutil.which(each) is None]:
        return f"this machine has no {lacks[0]}"
    if missing():
        return f"{', '.join(missing())} not in {cache()}: make cluster"
    return "" if sandbox.how() else "this machine lets no process have namespaces (unshare): no pod can run here"


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Started:
    """One for all processes of xdist; it ends with the process that started them."""
    alone = worker_id == "master"
    base = tmp_path_factory.getbasetemp() if alone else tmp_path_factory.getbasetemp().parent
    with (base / "cluster.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return start(base / "cluster", os.getpid() if alone else os.getppid())


@pytest.fixture
def cluster(shared_cluster: Started, tmp_path: Path) -> Iterator[Cluster]:
    """The cluster, with namespaces, faults and a way to its API server that are this test's alone."""
    one = shared_cluster.for_one_test(tmp_path)
    yield one
    one.tidy()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster for one test, which may do what all others would notice. Nothing but logs outlives the process it is for."""
    place = tmp_path / "cluster"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as user:
        yield start(place, user.pid).for_one_test(tmp_path)
        names = {process.name() for process in _of(place)}
        user.kill()
    assert {"etcd", "kube-apiserver", "kube-scheduler", "jobset", "kueue", "sh"} <= names, names
    until(lambda: not _of(place), "the end of its programs and pods")
    assert sorted(path.name for path in place.iterdir() if path.is_dir()) == ["logs"]


def _of(place: Path) -> list[psutil.Process]:
    """Return the processes whose command line has the place."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(place) in word for word in process.cmdline()):
                found.append(process)
    return found
