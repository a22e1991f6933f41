"""The other commands on a cluster: submit, attach, cancel, export, a sweep, the Python API, and the rights of the page."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.catalog import gke
from orchestrator.places.gke.objects.manifest import documents
from orchestrator.places.gke.preparation import to_yaml
from orchestrator.places.google.objects import Objects
from tests.cluster.fixture import Cluster
from tests.cluster.gke_fixture import HOLD, MEET, Gke, block
from tests.cluster.jobsets import ended, jobset, pods, submit
from tests.fakes.cluster_jobs import CAPACITIES, job
from tests.unit.api.jobs.test_exporting import World, world
from tests.unit.places.gke.objects.test_manifest import FRAGMENT
from tests.waiting import until

pytestmark = pytest.mark.cluster

RESULT = f'{HOLD}echo "{{\\"step\\": 1, \\"loss\\": 0.5}}" >>"$TPUJOB_ARTIFACTS/metrics.jsonl"\necho after\n'


def test_a_run_that_is_submitted_is_shown_attached_to_and_compared(gke: Gke) -> None:
    submitted = gke("submit", gke.write(RESULT, name="hello"))  # a process of its own collects
    run = submitted.stdout.strip()
    until(lambda: "begun" in gke("logs", run).stdout, "its log")
    assert gke.only_run()["lease"]["node"] in gke("status").stdout
    gke.let_go()
    done = gke("attach", run)
    assert done.returncode == 0 and "worker0 | after" in done.stdout and "absent (checked" in done.text, done.text
    assert gke.left() == []
    assert "begun\nafter\n" in gke("logs", run).stdout.replace("worker0 | ", "")
    shown = json.loads(gke("show", run, "--json").stdout)
    assert (shown["state"], shown["lease"]["state"]) == ("succeeded", "gone")
    assert "0.5" in gke("compare", run).stdout
    assert gke("report", run).returncode == 0
    assert run in gke("cost", "--by", "run").stdout


def test_another_machine_finds_runs_by_their_labels_reads_follows_collects_and_cancels_them(gke: Gke) -> None:
    gke.change("from orchestrator.places.gke.api import client as c; c.SETTLES_S = 1.0")
    other = gke.other()
    for each in (gke, other):
        each.env |= gke.storage()
    (gke.directory / "code").mkdir()
    (gke.directory / "code/large").write_bytes(os.urandom(2 << 20))
    keys: dict[str, Any] = {"bucket": "gs://my-bucket/runs", "code": "code"}
    run = gke.submit(f"{HOLD}head -c 3000000 /dev/urandom >$TPUJOB_ARTIFACTS/big", name="hello", **keys)
    until(lambda: other("logs", "hello").stdout == "worker0 | begun\n", "its log on the other machine")
    (shown,) = json.loads(other("status", "--json").stdout)["slices"]
    assert (shown["run"], shown["yours"]) == (run, True)
    until(lambda: gke.let_go() or gke.jobsets()[0]["status"].get("terminalState"), "the end of the job")
    gke.cluster.kubectl("delete", "pods", "--all", "-n", gke.space)  # and their logs; the bucket has the results
    done = other("attach", "hello")
    assert done.returncode == 0 and "absent (checked" in done.text and gke.left() == [], done.text
    (big := other.directory / f"runs/hello-{run}/worker0/artifacts/big").unlink()
    done = other("collect", run)  # nothing is left on the cluster
    assert done.returncode == 0 and big.stat().st_size == 3_000_000, done.text
    assert other.only_run()["state"] == "succeeded"
    assert "was deleted" in gke("attach", run).text, "the first one to collect has deleted it"
    run = gke.submit(HOLD, name="hello", **keys)
    assert "absent (checked" in other("cancel", run).text and gke.left() == []
    kept = [
        each.name for each in Objects(emulator=gke.env["STORAGE_EMULATOR_HOST"]).list(f"gs://my-bucket/runs/{run}/")
    ]
    assert not [name for name in kept if name.endswith("code.tar.gz")], kept


def test_hosts_of_four_chips_are_not_put_on_an_idle_host_of_eight(gke: Gke) -> None:
    other = jobset("eight", "true", "v6e-8", machine_type="ct6e-standard-8t")
    submit(gke.cluster, gke.space, other)
    assert ended(gke.cluster, gke.space, "eight")["type"] == "Completed"
    keys: dict[str, Any] = {"tpu": {"accelerator": "v6e-8"}, "gke": {"machine_type": "ct6e-standard-4t"}}
    done = gke.run(f"python3 -c '{MEET}'", queue=None, **keys)
    assert done.returncode == 0 and "2 nodes (gke-v6e-8-2-pool-" in done.text, done.text


POD = {
    "metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}},
    "priorityClassName": "system-cluster-critical",  # which is there without an admin
    "tolerations": [{"key": "team", "operator": "Exists"}],
    "volumes": [{"name": "data", "emptyDir": {}}, {"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}],
    "containers": [{
        "name": "job", "resources": {"requests": {"cpu": "2"}}, "env": [{"name": "GREETING", "value": "hi"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }],
}  # fmt: skip


def test_what_a_job_says_of_its_pod_is_in_it_and_flex_start_nodes_take_it(gke: Gke) -> None:
    script = f'{HOLD}echo "$GREETING" >/data/a\ncat /data/a\n'
    tpu = {"provisioning": "flex-start"}
    command = gke.running(script, gke={"pod": POD}, tpu=tpu, env={"OTHER": "x"})
    (pod,) = gke.pods()
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert pod["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
    assert (spec["priorityClassName"], container["resources"]["requests"]["cpu"]) == ("system-cluster-critical", "2")
    tolerated = {each["key"] for each in spec["tolerations"]}
    assert {"google.com/tpu", "team", "cloud.google.com/gke-flex-start"} <= tolerated
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}} in spec["volumes"]
    gke.let_go()
    done = gke.end(command)
    assert done.returncode == 0 and "worker0 | hi" in done.text, done.text


def test_a_pod_is_merged_as_kubectl_patches_it(tmp_path: Path) -> None:
    job_of = documents(job())[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    (tmp_path / "pod.json").write_text(json.dumps({"apiVersion": "v1", "kind": "Pod", **job_of}))
    patch = {"metadata": FRAGMENT["metadata"], "spec": {key: FRAGMENT[key] for key in FRAGMENT if key != "metadata"}}
    words = ("kubectl", "patch", "--local", "-f", str(tmp_path / "pod.json"), "--type=strategic", "-o", "json", "-p")
    done = subprocess.run([*words, json.dumps(patch)], text=True, capture_output=True, check=True)
    wanted = json.loads(done.stdout)
    found = documents(job(pod=(FRAGMENT,)))[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert by_name(found["spec"]) == by_name(wanted["spec"])
    assert found["metadata"] == wanted["metadata"]


def by_name(part: Any) -> Any:
    """The same without an order in lists whose items have names, and with quantities as Kubernetes writes them."""
    if isinstance(part, dict):
        return {key: by_name(value) for key, value in part.items()}
    if not isinstance(part, list):
        return str(part)
    return sorted(map(by_name, part), key=lambda each: json.dumps(each, sort_keys=True))


def test_pod_security_baseline_admits_the_usual_pod(cluster: Cluster) -> None:
    """What it refuses is said, too: `test_faults.SECURES`."""
    space = cluster.namespace()
    cluster.kubectl("label", "namespace", space, "pod-security.kubernetes.io/enforce=baseline")
    made = documents(job(namespace=space))[0]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **made, "metadata": {"name": "p", "namespace": space}}
    cluster.kubectl("create", "--dry-run=server", "-f", "-", given=pod)


def test_what_no_pod_can_is_refused_with_the_reason(gke: Gke) -> None:
    run = gke.submit(HOLD)
    name = gke.only_run()["lease"]["node"]
    for words in (("ssh", name), ("stop", name), ("extend", run, "--by", "1h")):
        done = gke(*words)
        assert done.returncode == 64 and "cluster" in done.stderr, (words, done.text)
    done = gke("up", name, "--accelerator", "tpu7x-8")
    assert done.returncode == 64 and "GKE" in done.stderr, done.text
    assert gke("down", name).returncode == 0 and gke.left() == []


def test_a_sweep_submits_all_and_kueue_runs_as_many_as_there_is_quota_for(gke: Gke) -> None:
    gke.space = gke.cluster.namespace(quota=4)
    job = gke.write(f"{HOLD}echo lr $LR", env={"LR": "${params.lr}"}, matrix={"lr": [1, 2, 3]}, parallel=3)
    command = gke.begin("run", job)
    command.until_true(lambda: len(gke.jobsets()) == 3, "all three JobSets")
    command.until_true(gke.pods, "the pod of one")
    waiting = [each for each in gke.jobsets() if each["spec"]["suspend"]]
    assert len(waiting) == 2 and len(gke.pods()) == 1, "the quota is that of one"
    until(lambda: gke.let_go() or command.process.poll() is not None, "the end of the sweep")
    done = command.end()
    assert done.returncode == 0, done.text
    logs = [path.read_text() for path in (gke.directory / "runs").glob("*/logs/worker0.log")]
    assert sorted(logs) == [f"begun\nlr {each}\n" for each in (1, 2, 3)]
    assert gke.left() == []


FIXTURES = (world,)

MULTISLICE = ("NUM_SLICES", "SLICE_ID", "COORDINATOR_ADDRESS")
PRINTED = ("TPUJOB_WORKER", "GREETING", *(f"MEGASCALE_{each}" for each in MULTISLICE))

SMALLEST = {
    (form.accelerator, form.machine_type): form.kind.name for name in reversed(gke.types()) for form in gke.slices(name)
}


@pytest.mark.parametrize("queue", [None, "tpu"])
def test_the_objects_of_every_machine_type_and_capacity_are_accepted(cluster: Cluster, queue: str | None) -> None:
    space, made = cluster.namespace(), list[dict[str, Any]]()
    for (_, machine_type), name in SMALLEST.items():
        form = gke.lookup(name, machine_type)
        for capacity in CAPACITIES.values():
            if form.flex_start or not capacity.ends_nodes:
                one = job(name, machine_type=machine_type, slices=2, capacity=capacity, queue=queue, namespace=space)
                made += documents(one)
    said = cluster.kubectl("create", "--dry-run=server", "-f", "-", given=to_yaml(made)).stdout
    assert said.count("created (server dry run)") == len(made) > 60


def test_what_is_exported_is_taken_as_json_and_runs_and_its_comment_says_how_to_delete_it(
    cluster: Cluster, world: World
) -> None:
    space = cluster.namespace()
    world.write(f"{MEET}print(*(os.environ[name] for name in {PRINTED}))\n", "src/hello.py")
    text = (
        "on: gke\nname: hello\ntpu: {accelerator: v5p-16, slices: 2}\ncode: src\nenv: {GREETING: hi}\n"
        f"command: python3 hello.py\ngke: {{image: 'python:3.12', namespace: {space}, queue: tpu}}\n"
    )
    found = world.export(text)
    cluster.kubectl("create", "--dry-run=server", "-f", "-", given=json.dumps(found.as_json()))
    cluster.kubectl("create", "-f", "-", given=str(found))
    name = found.documents[0]["metadata"]["name"]
    assert ended(cluster, space, name)["type"] == "Completed"
    logs = "".join(map(cluster.logs, pods(cluster, space)))
    lines = [line for line in logs.splitlines() if not line.startswith("::tpujob ")]
    first = f"{name}-slice-0-0.{name}"  # the pod that all find
    assert lines == [f"{number} hi 2 {number // 2} {first}" for number in range(4)]
    (delete,) = [line.partition("kubectl ")[2] for line in found.comment if "kubectl delete" in line]
    cluster.kubectl(*delete.split())
    label = f"tpujob-run={found.run}"
    until(lambda: cluster.get("jobsets,jobs,pods,configmaps", "-n", space, "-l", label) == [], "everything to go")


@pytest.fixture
def own(gke: Gke) -> Iterator[str]:
    """A name for what is in no namespace. It is deleted after the test."""
    name = f"page-{gke.space}"
    yield name
    for kind in ("clusterqueue", "resourceflavor"):
        gke.cluster.kubectl("delete", kind, name, "--ignore-not-found", "--wait=false")


def test_a_user_with_the_rights_and_the_queue_of_the_page_has_a_first_run(gke: Gke, own: str) -> None:
    namespace, *documents = block("kind: ClusterQueue")
    (job,) = block("name: mnist-gke")
    there = f"namespace: {namespace['metadata']['name']}"
    documents = list(yaml.safe_load_all(yaml.safe_dump_all(documents).replace(there, f"namespace: {gke.space}")))
    by_kind = {each["kind"]: each for each in documents}
    for each in documents:
        if each["kind"] in ("ResourceFlavor", "ClusterQueue"):
            each["metadata"]["name"] = own
    by_kind["ClusterQueue"]["spec"]["resourceGroups"][0]["flavors"][0]["name"] = own
    by_kind["LocalQueue"]["metadata"]["name"], by_kind["LocalQueue"]["spec"]["clusterQueue"] = own, own
    user = gke.way.user(gke.space, [])  # who may do nothing but for the role of the page
    by_kind["RoleBinding"]["subjects"] = [{"kind": "ServiceAccount", "name": user.stem, "namespace": gke.space}]
    gke.cluster.kubectl("create", "-f", "-", given=documents)
    done = gke.run(
        f"""python3 -c '{MEET}'; echo "$TPUJOB_WORKER $GREETING" >"$TPUJOB_ARTIFACTS/me\"""",
        *("--watch-nodes", "--env", "GREETING"),  # in a Secret
        env={"KUBECONFIG": str(user), "GREETING": "hello"},
        queue=own,
        tpu=job["tpu"],
        gke={"pod": {"containers": [{"name": "job", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}},
    )
    assert done.returncode == 0, done.text
    results = [gke.directory_of_run() / f"worker{each}/artifacts/me" for each in range(4)]
    assert [each.read_text() for each in results] == [f"{each} hello\n" for each in range(4)]
    assert "absent (checked" in done.text and gke.left() == []
    assert "you may not read nodes" in done.text
