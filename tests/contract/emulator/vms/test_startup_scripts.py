"""A startup-script runs as the developer, on this machine: only that of tpujob's own client, unless it is asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable

import pytest

from orchestrator.emulator.daemon import control
from orchestrator.emulator.vms.driver import SCRIPT_OFF
from tests.cli_fixture import Tpujob
from tests.contract.emulator.conftest import ZONE
from tests.emulator_fixture import Emulator
from tests.waiting import HANG_S, until

PLAIN = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}
Start = Callable[[Emulator, str, str], object]


def created(emulator: Emulator, name: str, script: str) -> None:
    body = PLAIN | {"metadata": {"startup-script": script}}
    emulator.request("POST", f"/v2/{ZONE}/nodes?nodeId={name}", body)


def queued(emulator: Emulator, name: str, script: str) -> None:
    spec = {"parent": ZONE, "nodeId": name, "node": PLAIN | {"metadata": {"startup-script": script}}}
    emulator.request("POST", f"/v2/{ZONE}/queuedResources?queuedResourceId={name}", {"tpu": {"nodeSpec": [spec]}})


def created_by_gcloud(emulator: Emulator, name: str, script: str) -> None:
    shape = ("--zone=us-central1-a", "--accelerator-type=v5litepod-4", "--version=v2-alpha-tpuv5-lite")
    argv = ["gcloud", "compute", "tpus", "tpu-vm", "create", name, *shape, f"--metadata=startup-script={script}"]
    environment = os.environ | control.gcloud_environment(emulator.endpoint, emulator.state_dir)
    subprocess.run(argv, env=environment, check=True, capture_output=True, timeout=HANG_S)


def put_into_a_node_of_tpujob(emulator: Emulator, name: str, script: str) -> None:
    created(emulator.trusted, name, "true")
    until(lambda: state(emulator, name) == "READY" and [*emulator.state_dir.glob("vms/*/worker0/startup-script")])
    metadata = {"metadata": {"startup-script": script}}
    emulator.request("PATCH", f"/v2/{ZONE}/nodes/{name}?updateMask=metadata", metadata)
    for verb, reached in (("stop", "STOPPED"), ("start", "READY")):
        emulator.request("POST", f"/v2/{ZONE}/nodes/{name}:{verb}", {})
        until(lambda reached=reached: state(emulator, name) == reached)


def state(emulator: Emulator, name: str) -> str:
    return str(emulator.request("GET", f"/v2/{ZONE}/nodes/{name}")["state"])


GCLOUD = [pytest.mark.gcloud, pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")]


@pytest.mark.parametrize(
    "start", [created, queued, put_into_a_node_of_tpujob, pytest.param(created_by_gcloud, marks=GCLOUD)]
)
def test_that_of_another_client_does_not_run_and_this_is_said(tpujob: Tpujob, start: Start) -> None:
    emulator, hit, name = tpujob.emulator, tpujob.directory / "hit", start.__name__.replace("_", "-")
    start(emulator, name, f"echo hit > {hit}")
    said = f"{ZONE}/nodes/{name}: {SCRIPT_OFF}"
    until(lambda: said in (emulator.state_dir / "daemon.log").read_text(), "the boot of the VM")
    assert not hit.exists()
    calls = tpujob("emulator", "requests").stdout.splitlines()
    (create,) = (line for line in calls if f"nodeId={name}" in line or f"ResourceId={name}" in line)
    assert create.endswith(f"\t{SCRIPT_OFF}") is (start is not put_into_a_node_of_tpujob)
    status = tpujob("emulator", "status").stdout
    assert "startup-scripts of other clients than tpujob do not run on this machine" in status
    assert [line for line in status.splitlines() if f"/{name}\t" in line and line.endswith(f"\t{SCRIPT_OFF}")]


def test_on_a_terminal_the_status_fits(tpujob: Tpujob) -> None:
    created(tpujob.emulator, "shown", "echo")
    until(lambda: any(line.startswith("shown ") for line in tpujob.on_80_columns("emulator", "status")), "the node")
    status = tpujob.on_80_columns("emulator", "status")
    assert max(map(len, status)) <= 80 and any(line.startswith("NODE ") for line in status), status


@pytest.mark.parametrize("start", [created, queued])
def test_all_run_once_up_is_told_so(tpujob: Tpujob, start: Start) -> None:
    on = tpujob("emulator", "up", "--startup-scripts")
    assert "startup-scripts of all clients run on this machine (`tpujob emulator up --no-" in on.stderr
    hit = tpujob.directory / "hit"
    start(tpujob.emulator, "guest", f"echo hit > {hit}")
    until(hit.exists)
    status = tpujob("emulator", "status").stdout
    assert "startup-scripts of all clients run" in status
    calls = [*status.splitlines(), *tpujob("emulator", "requests").stdout.splitlines()]
    assert not [line for line in calls if "guest" in line and SCRIPT_OFF in line]
    assert "run on this machine" not in tpujob("emulator", "up", "--no-startup-scripts").stderr
    assert SCRIPT_OFF not in tpujob("emulator", "status").stdout, "it did run"


@pytest.mark.parametrize(("name", "copied_as", "starts"), [
    ("token", None, True), ("tpujob-token", None, True), ("tpujob-token", "elsewhere", True), ("token", "token", False),
])  # fmt: skip
def test_on_an_emulator_that_its_environment_names_tpujob_has_its_watchdog_or_says_that_none_starts(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch, name: str, copied_as: str | None, starts: bool
) -> None:
    file = tpujob.state_dir / name
    monkeypatch.setenv("TPUJOB_ENDPOINT", tpujob.emulator.url)
    copy = shutil.copy(file, tpujob.directory / copied_as) if copied_as else file
    monkeypatch.setenv("TPUJOB_TOKEN_FILE", str(copy))
    with tpujob.starting_no_emulator():
        done = tpujob("up", "held", "--accelerator", "v5e-8", "--zone", "us-central1-a", "--ttl", "10m")
        assert done.returncode == 0 and ("no watchdog starts" in done.stderr) is not starts, done.text
        log, watchdog = tpujob.state_dir / "daemon.log", "vms/*/worker0/watchdog/watchdog.py"
        until(lambda: [*tpujob.state_dir.glob(watchdog)] if starts else SCRIPT_OFF in log.read_text(), "the boot")
        assert tpujob("down", "held").returncode == 0


def test_a_node_of_an_emulator_that_marked_none_boots_without_its_script_and_this_is_said(emulator: Emulator) -> None:
    """It ran the scripts of every client, so it is not known whose this one is."""
    ran = emulator.state_dir / "ran"
    created(emulator.trusted, "old", f"echo boot >> {ran}; exec sleep 600")
    until(ran.exists)
    assert control.stop(emulator.state_dir)
    saved = emulator.state_dir / "state.json"
    nodes = json.loads(saved.read_text())
    del nodes["nodes"][0]["trusted"]
    saved.write_text(json.dumps(nodes))
    again = emulator.restarted()
    until(lambda: SCRIPT_OFF in (emulator.state_dir / "daemon.log").read_text(), "the boot of the VM")
    assert ran.read_text() == "boot\n" and again.status()["nodes"][0]["startup_script"] == SCRIPT_OFF
