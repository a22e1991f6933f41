"""The daemon: one per state directory, found, stopped, killed and restarted."""

import json
import multiprocessing
import os
import resource
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from google.cloud import tpu_v2

from cloud_tpu_emulator.daemon import control
from tests.cli_fixture import Cli
from tests.emulator.contract.conftest import ZONE, Machine, client_for, finish, machines, node_body
from tests.emulator.fixture import Emulator
from tests.waiting import has_ended, ran, until

BODY = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}


def node_with_login(emulator: Emulator, login_key: Path, ssh_keys: str) -> tuple[tpu_v2.Node, Machine]:
    api = client_for(emulator)
    node = finish(api.create_node(parent=ZONE, node_id="n", node=node_body(metadata={"ssh-keys": ssh_keys})))
    return node, machines(api, node.name, login_key)[0]


def left_running(machine: Machine) -> int:
    """Return the pid of a process that goes on without its login."""
    return int(machine.output("setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!"))


def test_with_a_full_disk_it_lives_refuses_what_it_cannot_save_and_saves_it_once_there_is_room(cli: Cli) -> None:
    """A limit on the size of the daemon's files stands for a full disk: half of its state is written."""
    assert cli("emulator", "up").returncode == 0
    emulator = Emulator(control.ensure_running(cli.emulator_directory), cli.emulator_directory)
    emulator.patch_settings(machines=False)

    def create(name: str) -> None:
        emulator.request("POST", f"/v2/{ZONE}/nodes?nodeId={name}", BODY)

    create("first")
    until(lambda: [node["state"] for node in emulator.status()["nodes"]] == ["READY"])
    pid, size = emulator.endpoint.pid, (emulator.state_dir / "state.json").stat().st_size
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    for call in (lambda: create("second"), lambda: emulator.patch_settings(stop_s=7.0)):
        with pytest.raises(control.DaemonRefused, match=r"503 .*The emulator cannot save its state: File too large"):
            call()
    until(lambda: [node["state"] for node in emulator.status()["nodes"]] == ["READY", "READY"])
    shown = cli("emulator", "status")
    assert (
        shown.returncode == 0 and "its state cannot be saved (File too large), so it refuses every call" in shown.stdout
    )
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    until(lambda: emulator.status()["unsaved_because"] == "")
    emulator.kill()
    again = emulator.restarted()
    assert [node["state"] for node in again.status()["nodes"]] == ["READY", "READY"]
    operations = again.request("GET", f"/v2/{ZONE}/operations")["operations"]
    assert [operation["done"] for operation in operations] == [True, True]
    resource.prlimit(again.endpoint.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    assert control.stop(again.state_dir)


def test_clients_that_start_at_the_same_time_share_one_daemon(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.map(control.ensure_running, [tmp_path] * 8)
    assert {*found} == {control.running(tmp_path)}
    assert control.stop(tmp_path)


def test_stop_is_true_once_and_then_there_is_nothing_to_stop(tmp_path: Path) -> None:
    assert control.running(tmp_path) is None
    assert not control.stop(tmp_path)
    pid = control.ensure_running(tmp_path).pid
    assert control.stop(tmp_path)
    assert control.running(tmp_path) is None
    until(lambda: has_ended(pid))
    assert not control.stop(tmp_path)


def test_a_daemon_whose_directory_was_removed_ends_and_leaves_that_of_the_next_one_alone(tmp_path: Path) -> None:
    state_dir = tmp_path / "emulator"
    first = control.ensure_running(state_dir)
    shutil.rmtree(state_dir)
    second = control.ensure_running(state_dir)
    assert second.pid != first.pid
    until(lambda: has_ended(first.pid), "the end of the daemon without a directory")
    assert control.running(state_dir) == second
    assert control.stop(state_dir)


def test_it_runs_in_a_session_of_its_own(shared_emulator: Emulator) -> None:
    """Ctrl-C in the terminal of the client that started it must not reach it."""
    assert os.getsid(shared_emulator.endpoint.pid) not in (os.getsid(0), 0)


def test_a_daemon_that_cannot_start_reports_why(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("not JSON")
    with pytest.raises(RuntimeError, match=r"did not start: .*state\.json is damaged or of another version"):
        control.ensure_running(tmp_path)


def test_a_second_daemon_on_the_same_directory_refuses(shared_emulator: Emulator) -> None:
    argv = [sys.executable, "-m", "cloud_tpu_emulator", "--state-dir", str(shared_emulator.state_dir)]
    done = ran(argv)
    assert done.returncode == 1
    assert "already running" in done.stderr
    assert shared_emulator.status()["pid"] == shared_emulator.endpoint.pid


def test_delays_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUJOB_EMULATOR_PROVISION_S", "7.5")
    monkeypatch.setenv("TPUJOB_EMULATOR_DELETE_S", "0.25")
    monkeypatch.setenv("TPUJOB_EMULATED_SPEED", "300")
    endpoint = control.ensure_running(tmp_path)
    settings = control.request(endpoint, "GET", "/_emulator/settings")
    assert control.stop(tmp_path)
    assert (settings["provision_s"], settings["delete_s"]) == (7.5, 0.25)
    assert settings["notice_s"] == 30, "a job saves its work no faster at a higher speed of the emulated cloud"


def test_it_ends_when_idle_but_not_while_there_is_a_node(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/emulator/unit/test_state.py checks how long it waits."""
    node = finish(client_for(emulator).create_node(parent=ZONE, node_id="held", node=node_body()))
    assert control.stop(emulator.state_dir)
    monkeypatch.setenv("TPUJOB_EMULATOR_IDLE_S", "0.05")
    again = emulator.restarted()
    again.request("DELETE", f"/v2/{node.name}")  # whatever that took
    until(lambda: has_ended(again.endpoint.pid), "the end of an idle daemon")  # it saves its state last of all
    assert control.running(emulator.state_dir) is None
    assert json.loads((emulator.state_dir / "state.json").read_text())["nodes"] == []


def test_after_a_kill_the_next_daemon_has_the_same_nodes_ports_keys_and_jobs(
    emulator: Emulator, login_key: Path, ssh_keys: str
) -> None:
    api = client_for(emulator.trusted)
    script = "echo boot >> $HOME/boots"
    body = node_body(metadata={"ssh-keys": ssh_keys, "startup-script": script}, labels={"a": "b"})
    created = api.create_node(parent=ZONE, node_id="survivor", node=body)
    node = finish(created)
    before = machines(api, node.name, login_key)[0]
    job = left_running(before)
    until(lambda: before.run("cat boots").stdout == b"boot\n")
    billed = emulator.billing()["nodes"][0]

    emulator.kill()
    assert not has_ended(job)
    again = emulator.restarted()

    assert again.endpoint.pid != emulator.endpoint.pid
    assert again.token == emulator.token
    api = client_for(again)
    assert api.get_node(name=node.name) == node
    assert machines(api, node.name, login_key)[0] == before
    assert before.output(f"kill -0 {job} && cat boots") == "boot"
    assert api.get_operation({"name": created.operation.name}).done
    row = again.billing()["nodes"][0]
    assert (row["since"], row["until"]) == (billed["since"], None)
    assert row["node_seconds"] > billed["node_seconds"]
    finish(api.delete_node(name=node.name))
    assert has_ended(job)
    assert again.billing()["totals"]["running"] == 0


def test_a_create_or_delete_continues_after_a_kill_of_the_daemon(emulator: Emulator) -> None:
    api = client_for(emulator)
    node = finish(api.create_node(parent=ZONE, node_id="leaving", node=node_body()))
    emulator.patch_settings(provision_s=0.2, delete_s=0.2)
    creating = api.create_node(parent=ZONE, node_id="coming", node=node_body())
    deleting = api.delete_node(name=node.name)
    emulator.kill()
    api = client_for(emulator.restarted())
    for operation in (creating, deleting):
        until(lambda name=operation.operation.name: api.get_operation({"name": name}).done)
    assert [row.name for row in api.list_nodes(parent=ZONE)] == [f"{ZONE}/nodes/coming"]


@pytest.mark.exhaustive
def test_a_daemon_killed_while_stopping_a_node_still_ends_its_processes(
    emulator: Emulator, login_key: Path, ssh_keys: str
) -> None:
    node, machine = node_with_login(emulator, login_key, ssh_keys)
    job = left_running(machine)
    emulator.kill()
    saved = json.loads((emulator.state_dir / "state.json").read_text())
    saved["nodes"][0] |= {"state": "STOPPING", "due": saved["now"], "operation": "none", "power": "on"}
    (emulator.state_dir / "state.json").write_text(json.dumps(saved))
    api = client_for(emulator.restarted())
    until(lambda: api.get_node(name=node.name).state == tpu_v2.Node.State.STOPPED)
    assert has_ended(job)


@pytest.mark.exhaustive
def test_another_port_is_used_when_the_old_one_is_in_use(emulator: Emulator, login_key: Path, ssh_keys: str) -> None:
    node, before = node_with_login(emulator, login_key, ssh_keys)
    emulator.kill()
    with socket.create_server(("127.0.0.1", before.port)):
        api = client_for(emulator.restarted())
        after = machines(api, node.name, login_key)[0]
    assert after.port != before.port
    assert after.host_key == before.host_key
    assert after.output("echo here") == "here"


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_stop_ends_the_processes_of_the_vms_also_of_a_killed_daemon_and_keeps_the_nodes(
    emulator: Emulator, login_key: Path, ssh_keys: str, killed: bool
) -> None:
    _, machine = node_with_login(emulator, login_key, ssh_keys)
    job = left_running(machine)
    if killed:
        emulator.kill()
    assert not has_ended(job)
    assert control.stop(emulator.state_dir)
    assert has_ended(job)
    again = emulator.restarted()
    assert [node["state"] for node in again.status()["nodes"]] == ["READY"]


def test_without_machines_the_api_is_the_same_and_nothing_runs(shared_emulator: Emulator) -> None:
    api = client_for(shared_emulator)

    def row() -> dict[str, Any]:
        return next(row for row in shared_emulator.processes() if row["name"] == node.name)

    with shared_emulator.settings(machines=False):
        body = node_body(metadata={"startup-script": "sleep 60"})
        node = finish(api.create_node(parent=ZONE, node_id="airy", node=body))
        assert node.state == tpu_v2.Node.State.READY
        assert (row()["pids"], row()["ports"]) == ([], [])
        assert finish(api.stop_node(request={"name": node.name})).state == tpu_v2.Node.State.STOPPED
    finish(api.start_node(request={"name": node.name}))
    assert len(row()["ports"]) == 2
    uid = node.id
    with shared_emulator.settings(machines=False):  # an existing node keeps its VMs, and they end with it
        finish(api.delete_node(name=node.name))
    until(lambda: not [*(shared_emulator.state_dir / "vms").glob(f"{uid}*")], "the end of its files")
