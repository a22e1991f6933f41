"""The real gcloud, a client that we did not write, works on the emulator in the environment that `control` gives it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator import control
from tests.emulator_fixture import Emulator

pytestmark = [
    pytest.mark.gcloud,
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
]
ZONE = "--zone=us-central1-a"
SHAPE = ("--accelerator-type=v5litepod-4", "--version=v2-alpha-tpuv5-lite")
Gcloud = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gcloud(shared_emulator: Emulator, tmp_path: Path) -> Gcloud:
    environment = control.gcloud_environment(shared_emulator.endpoint, shared_emulator.state_dir)

    def run(*words: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["gcloud", *prefix, "compute", "tpus", *words],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_node_lives_its_whole_life(gcloud: Gcloud) -> None:
    done = gcloud("tpu-vm", "create", "g1", ZONE, *SHAPE, "--spot", "--labels=owner=ada")
    assert (done.returncode, "Created tpu [g1]." in done.stderr) == (0, True), done.stderr
    listed = answer(gcloud("tpu-vm", "list", "--zone=-", "--format=json"))
    assert ["g1", "READY"] in [[row["name"].rpartition("/")[2], row["state"]] for row in listed]
    assert "Request issued" in gcloud("tpu-vm", "stop", "g1", ZONE).stderr
    node = answer(gcloud("tpu-vm", "describe", "g1", ZONE, "--format=json"))
    assert (node["state"], node["labels"], node["schedulingConfig"]["spot"]) == ("STOPPED", {"owner": "ada"}, True)
    assert gcloud("tpu-vm", "start", "g1", ZONE).returncode == 0
    assert "Deleted tpu [g1]." in gcloud("tpu-vm", "delete", "g1", ZONE).stderr
    gone = gcloud("tpu-vm", "describe", "g1", ZONE)
    assert gone.returncode == 1
    assert "NOT_FOUND: Resource 'projects/emulated/locations/us-central1-a/nodes/g1' was not found" in gone.stderr


def test_what_is_offered_can_be_listed(gcloud: Gcloud) -> None:
    types = answer(gcloud("accelerator-types", "list", ZONE, "--format=json"))
    same = answer(gcloud("tpu-vm", "accelerator-types", "list", ZONE, "--format=json"))
    assert "v5litepod-16" in [row["type"] for row in types]
    assert types == same
    old = answer(gcloud("versions", "list", ZONE, "--format=json"))
    new = answer(gcloud("tpu-vm", "versions", "list", ZONE, "--format=json"))
    assert [row["version"] for row in old] == [row["version"] for row in new]
    places = answer(gcloud("locations", "list", "--format=json"))
    assert "us-central1-a" in [row["locationId"] for row in places]


def test_a_stockout_reads_as_on_the_real_cloud(gcloud: Gcloud, shared_emulator: Emulator) -> None:
    shared_emulator.patch_settings(no_capacity=["us-central1-a/v5litepod-4"])
    try:
        done = gcloud("tpu-vm", "create", "g2", ZONE, *SHAPE)
    finally:
        shared_emulator.patch_settings(no_capacity=[])
    assert done.returncode == 1
    assert '"code": 8' in done.stderr
    assert 'There is no more capacity in the zone \\"us-central1-a\\"' in done.stderr


def test_the_alpha_track_and_ssh_with_gclouds_own_key_work(gcloud: Gcloud, shared_emulator: Emulator) -> None:
    done = gcloud("tpu-vm", "create", "g3", ZONE, *SHAPE, "--provisioning-model=spot", prefix=("alpha",))
    assert done.returncode == 0, done.stderr
    path = "/v2/projects/emulated/locations/us-central1-a/nodes/g3"
    items = shared_emulator.request("POST", f"{path}:getGuestAttributes", {})["guestAttributes"][0]["queryValue"][
        "items"
    ]
    port = next(item["value"] for item in items if item["key"] == "ssh-port")
    said = gcloud("tpu-vm", "ssh", "g3", ZONE, f"--ssh-flag=-p {port}", "--command=echo $TPUJOB_EMULATED_NODE")
    assert "emulated/us-central1-a/g3/" in said.stdout, said.stderr
    assert gcloud("tpu-vm", "delete", "g3", ZONE, prefix=("alpha",)).returncode == 0
