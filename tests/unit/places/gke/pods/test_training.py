"""A real training with torch_xla in two pods: the same losses as of one pod that has both processes."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.jobfile import keys
from orchestrator.core.text import scripts
from orchestrator.places.gke.preparation import pack_code
from orchestrator.places.preparation import code
from orchestrator.remote.shipping.shipment import make_shipment
from tests.pods_fixture import Node, request
from tests.programs_fixture import needs_xla
from tests.unit.places.gke.pods.conftest import Followed
from tests.unit.places.gke.pods.test_ends import place

pytestmark = [pytest.mark.exhaustive, pytest.mark.torch, needs_xla]
JOB = """
name: mnist
train: {model: mnist_cnn, dataset: mnist, fallback: sample, epochs: 1, batch_size: 128, cores: all,
        emulated: {cores: 1, examples: 768, epochs: 1}}
"""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}  # and no network


def train(node: Node, seen: Followed, tmp_path: Path, job: str, cores: int, pods: int) -> list[Any]:
    """Train in so many pods, each with so many emulated cores; return the losses that worker 0 reports."""
    spec = keys.load(job, path="job.yaml")
    survey = code.survey(spec, tmp_path / "job.yaml", emulated=True)
    assert survey is not None
    archive = pack_code(make_shipment(survey, tmp_path / "store"), tmp_path / "code").path.read_bytes()
    names = tmp_path / "hosts"
    names.write_text("".join(f"127.0.0.1 tpujob-x-slice-0-{index}.tpujob-x\n" for index in range(pods)))
    for worker in range(pods):
        variables = place(worker, names, hosts=pods) | {
            "TPUJOB_POD_IP": "127.0.0.1",
            "TPUJOB_EMULATED_CORES": str(cores),
            "PJRT_DEVICE": "CPU",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        asked = request(("main", scripts.train_main("python3")), archive=archive)
        node.run(asked, worker, archive, **ONE_THREAD, **variables)
    seen.follow()
    status = seen.ended()
    assert status.all_succeeded, "\n".join(log.decode(errors="replace") for log in seen.logs.values())
    found = seen.collect()
    assert not found.problems and {file.worker for file in found.files} == set(range(pods))
    rows = [json.loads(line) for line in seen.result("artifacts/metrics.jsonl").splitlines()]
    assert [json.loads(line) for line in bytes(seen.metrics).splitlines()] == rows
    return [(row.get("step"), row.get("loss"), row.get("accuracy")) for row in rows]


def test_two_pods_train_with_the_losses_of_one_with_two_processes(
    node: Node, followed: Callable[..., Followed], tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    single = followed()
    single.place = tmp_path / "one"
    one = train(node, single, tmp_path, JOB.replace("cores: 1", "cores: 2"), cores=2, pods=1)
    node.all.clear()
    node.place = tmp_path / "pair"
    both = followed(2)
    two = train(node, both, tmp_path, JOB, cores=1, pods=2)
    assert len(two) > 2 and two == one
