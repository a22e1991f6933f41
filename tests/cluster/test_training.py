"""`jobs/mnist-gke.yaml` on the real control plane, through Kueue: torch_xla in two pods, with the losses of a slice."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import ROOT
from tests.cluster.gke_fixture import Gke
from tests.programs_fixture import needs_xla

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.long, needs_xla]
NO_NETWORK = {"OMP_NUM_THREADS": "1", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}


def mnist(cores: int) -> dict[str, Any]:
    """Return the job of the repository, on fewer images. `cores`: of a worker of an emulated slice; a pod has one."""
    job: dict[Any, Any] = yaml.safe_load((ROOT / "jobs" / "mnist-gke.yaml").read_text(encoding="utf-8"))
    job["on"] = job.pop(True)  # YAML 1.1 takes the word for a truth value
    job["train"] |= {"fallback": "sample", "emulated": {"cores": cores, "examples": 768, "epochs": 1}}
    return {**job, "env": NO_NETWORK}


def losses(directory: Path) -> list[Any]:
    text = (directory / "worker0" / "artifacts" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return [(row.get("step"), row.get("loss"), row.get("accuracy")) for row in rows]


def test_two_pods_train_with_the_losses_of_the_same_job_on_a_slice(gke: Gke) -> None:
    on_cluster, on_slice = train_on_cluster(gke), train_on_slice(gke)
    assert len(losses(on_cluster)) > 2 and losses(on_cluster) == losses(on_slice)


def train_on_cluster(gke: Gke) -> Path:
    """Train on real images, which no ConfigMap holds, through Kueue."""
    job = mnist(cores=1) | {"bucket": "gs://my-bucket/runs"}
    job["gke"] |= {"namespace": gke.space, "queue": "tpu"}
    env = {**gke.storage(), "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}  # pods install nothing here
    done = gke("run", gke.job(yaml.safe_dump(job), "mnist-gke.yaml"), env=env)
    assert done.returncode == 0, done.text
    directory = gke.directory_of_run()
    jobset = next(yaml.safe_load_all((directory / "jobset.yaml").read_text()))
    assert jobset["spec"]["suspend"] and jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "tpu"
    assert "absent (checked" in done.text and gke.left() == []
    return directory


def train_on_slice(gke: Gke) -> Path:
    before = set((gke.directory / "runs").iterdir())
    job = mnist(cores=1)
    del job["gke"], job["on"]
    job["tpu"] = {"accelerator": job["tpu"]["accelerator"], "zone": "us-east5-a"}
    done = gke("run", gke.job(yaml.safe_dump({**job, "name": "slice"}), "slice.yaml"))
    assert done.returncode == 0, done.text
    (directory,) = set((gke.directory / "runs").iterdir()) - before
    return directory
