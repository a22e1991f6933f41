"""What `tpujob export` prints, on a real control plane: it is accepted and runs, and its comment says how to delete it."""

import json
import subprocess
from typing import Any

import pytest

from orchestrator.catalog import gke
from orchestrator.places.gke.objects.manifest import documents
from orchestrator.places.gke.objects.yaml_text import to_yaml
from tests.cluster.fixture import Cluster
from tests.cluster.jobsets import ended, pods
from tests.unit.client.jobs.test_exporting import World, world
from tests.unit.places.gke.objects.jobs import CAPACITIES, job
from tests.waiting import until

pytestmark = pytest.mark.cluster
FIXTURES = (world,)

PRINTED = (
    "TPUJOB_WORKER",
    "GREETING",
    *(f"MEGASCALE_{each}" for each in ("NUM_SLICES", "SLICE_ID", "COORDINATOR_ADDRESS")),
)

SMALLEST = {
    (form.accelerator, form.machine_type): form.kind.name for name in reversed(gke.types()) for form in gke.slices(name)
}


def created(cluster: Cluster, *words: str, given: str) -> str:
    """Give kubectl the YAML of the product, and return what it says."""
    line = ["kubectl", f"--kubeconfig={cluster.kubeconfig}", *words, "-f", "-"]
    done = subprocess.run(line, input=given, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("queue", [None, "tpu"])
def test_the_objects_of_every_machine_type_and_capacity_are_accepted(cluster: Cluster, queue: str | None) -> None:
    space, made = cluster.namespace(), list[dict[str, Any]]()
    for (_, machine_type), name in SMALLEST.items():
        form = gke.lookup(name, machine_type)
        assert form is not None
        for capacity in CAPACITIES.values():
            if form.flex_start or not capacity.ends_nodes:
                one = job(name, machine_type=machine_type, slices=2, capacity=capacity, queue=queue, namespace=space)
                made += documents(one)
    said = created(cluster, "create", "--dry-run=server", given=to_yaml(made))
    assert said.count("created (server dry run)") == len(made) > 60


def test_kubectl_takes_an_export_as_json(cluster: Cluster, world: World) -> None:
    text = "on: gke\nname: hello\ntpu: {accelerator: v5p-8}\ncommand: echo hi\ngke: {image: 'python:3.12'}\n"
    said = created(cluster, "create", "--dry-run=server", given=json.dumps(world.export(text).as_json()))
    assert said.count("created (server dry run)") == 2


def test_what_is_exported_runs_and_its_comment_says_how_to_delete_it(cluster: Cluster, world: World) -> None:
    space = cluster.namespace()
    world.write(f"import os\nprint(*(os.environ[name] for name in {PRINTED}))\n", "src/hello.py")
    text = (
        "on: gke\nname: hello\ntpu: {accelerator: v5p-16, slices: 2}\ncode: src\nenv: {GREETING: hi}\n"
        f"command: python3 hello.py\ngke: {{image: 'python:3.12', namespace: {space}, queue: tpu}}\n"
    )
    found = world.export(text)
    created(cluster, "apply", "--server-side", given=str(found))
    name = found.documents[0]["metadata"]["name"]
    assert ended(cluster, space, name)["type"] == "Completed"
    logs = [cluster.kubectl("logs", pod["metadata"]["name"], "-n", space).stdout for pod in pods(cluster, space)]
    lines = [line for log in logs for line in log.splitlines() if not line.startswith("::tpujob ")]
    first = f"{name}-slice-0-0.{name}"  # the pod that all find
    assert lines == [f"{number} hi 2 {number // 2} {first}" for number in range(4)]
    (delete,) = [line.partition("kubectl ")[2] for line in found.comment if "kubectl delete" in line]
    cluster.kubectl(*delete.split())
    label = f"tpujob-run={found.run}"
    until(lambda: cluster.get("jobsets,jobs,pods,configmaps", "-n", space, "-l", label) == [], "everything to go")
