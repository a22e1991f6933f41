"""A startup-script runs as the developer, on this machine; that of a watchdog proves that it can delete its slice."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloud_tpu_emulator.daemon import control
from cloud_tpu_emulator.vms.driver import SCRIPT_OFF
from orchestrator.hosts.fleet.fleet import Fleet
from orchestrator.places.tpu.place import PLACE as CLOUD_TPU
from orchestrator.promise.lease import claim_labels
from orchestrator.promise.lease.guest_reports import WATCHDOG_ATTRIBUTE, problem, read_watchdogs
from orchestrator.promise.lease.lease import Mode, Purpose, SliceName
from orchestrator.promise.lease.periods import GOOGLE
from orchestrator.promise.obtain.login_key import KeyPair, create_key, ssh_keys_metadata
from orchestrator.promise.obtain.startup_script import startup_script, watchdog_config, watchdog_sha256
from orchestrator.promise.watchdog import PROVERS
from orchestrator.text import names
from tests.cli_fixture import Tpujob
from tests.contract.hosts.fixture import workers_of
from tests.emulator.contract.conftest import ZONE, fetch
from tests.emulator.fixture import Emulator
from tests.fakes.leases import lease_on
from tests.waiting import HANG_S, has_ended, until

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


TIMINGS = GOOGLE.scaled(300)  # a heartbeat each 0.2 s, 3 s time to live
PARENT = "projects/emulated/locations/us-central1-a"
USER = "tpujob"
LONG_S = 3600.0  # limits that are not under test do not end the slice
FOUR = "v5litepod-16"
numbers = count(1)


@dataclass
class Node:
    """A READY node with the watchdog."""

    emulator: Emulator
    name: str
    key: KeyPair
    directory: Path

    def get(self) -> Any:
        return self.emulator.request("GET", f"/v2/{self.name}")

    def reports(self) -> list[dict[str, Any] | None]:
        """Return what each worker published."""
        output = self.emulator.request("POST", f"/v2/{self.name}:getGuestAttributes", {"queryPath": "tpujob/watchdog"})
        found = (worker["queryValue"]["items"] for worker in output["guestAttributes"])
        return [json.loads(items[0]["value"]) if items else None for items in found]

    def set_labels(self, **changes: Any) -> None:
        labels = self.get()["labels"] | {
            f"tpujob-{key.replace('_', '-')}": str(value) for key, value in changes.items()
        }
        self.emulator.request("PATCH", f"/v2/{self.name}?updateMask=labels", {"labels": labels})

    def processes(self, text: str) -> list[psutil.Process]:
        rows = {row["name"]: row["pids"] for row in self.emulator.processes()}
        found = []
        for pid in rows.get(self.name, []):
            with contextlib.suppress(psutil.Error):  # it ended since
                process = psutil.Process(pid)
                found += [process] if any(text in each for each in process.cmdline()) else []
        return found

    def fleet(self) -> Fleet:
        workers = list(workers_of(self.emulator, self.name.rpartition("/")[2]))
        where = self.directory / "known_hosts"
        return Fleet(workers, user=USER, key_path=self.key.private_path, known_hosts=where, on_notice=print)

    def bill(self) -> dict[str, Any]:
        return next(bill for bill in self.emulator.billing()["nodes"] if bill["name"] == self.name)


Make = Callable[..., Node]


@pytest.fixture
def make(shared_emulator: Emulator, tmp_path: Path) -> Iterator[Make]:
    nodes: list[Node] = []

    def made(
        accelerator_type: str = "v5litepod-4",
        mode: Mode = Mode.RUN,
        emulator: Emulator = shared_emulator,
        ttl_s: float = LONG_S,
        **timings: Any,
    ) -> Node:
        now, run = time.time(), f"run{next(numbers):07}"
        name = SliceName("emulated", "us-central1-a", f"tpujob-aaaaaa-{run}")
        purpose = Purpose.HOLD if mode is Mode.HOLD else Purpose.RUN
        lease = lease_on(name, now, purpose=purpose, accelerator_type=accelerator_type, deadline=now + 600)
        labels = claim_labels.labels(lease, now, GOOGLE) | {names.MODE: str(mode)}
        config = watchdog_config(lease, labels, TIMINGS, CLOUD_TPU.watched, idle_s=None) | {"ttl_s": ttl_s} | timings
        key = create_key(tmp_path / run)
        metadata = {"ssh-keys": ssh_keys_metadata(USER, key.public_line), "startup-script": startup_script(config)}
        body = {
            "acceleratorType": accelerator_type,
            "runtimeVersion": lease.runtime_version,
            "labels": labels,
            "metadata": metadata,
        }
        emulator.trusted.request("POST", f"/v2/{PARENT}/nodes?nodeId={name.node}", body)
        node = Node(emulator, f"{PARENT}/nodes/{name.node}", key, tmp_path)
        nodes.append(node)
        until(lambda: node.get()["state"] == "READY")
        return node

    yield made
    for node in nodes:
        if control.running(node.emulator.state_dir) and not is_absent(node):
            node.emulator.request("DELETE", f"/v2/{node.name}")


def armed(node: Node) -> bool:
    output = node.reports()
    return (
        problem(
            read_watchdogs(
                [{WATCHDOG_ATTRIBUTE: json.dumps(record)} for record in output if record is not None], len(output)
            )
        )
        is None
    )


def is_absent(node: Node) -> bool:
    return node.name not in {row["name"] for row in node.emulator.status()["nodes"]}


def test_the_watchdog_on_every_worker_is_armed_soon_after_ready(make: Make, shared_emulator: Emulator) -> None:
    node = make(FOUR)
    until(lambda: armed(node))
    labels = node.get()["labels"]
    proven = until(lambda: all((output := node.reports())[worker]["armed"] for worker in range(PROVERS)) and output)
    assert proven == [
        {
            **{"v": 1, "worker": worker, "armed": proves, "route": True, "permission": True if proves else None},
            **{
                "mode": "run",
                "claimed_until": int(labels["tpujob-claimed-until"]),
                "deadline": int(labels["tpujob-deadline"]),
            },
            **{"sha256": watchdog_sha256()},
        }
        for worker, proves in enumerate([True, True, True, False])
    ]
    calls = shared_emulator.request("GET", f"/_emulator/requests?node={node.name}-probe")["requests"]
    assert {(call["operation"], call["caller"]) for call in calls} == {("nodes.delete", "vm")}


def test_an_idle_held_slice_deletes_itself(make: Make) -> None:
    node = make(mode=Mode.HOLD, idle_s=1.0)
    until(lambda: is_absent(node))
    assert node.bill()["until"] - node.bill()["since"] >= 1.0


def test_the_watchdog_ends_with_its_vm_and_runs_after_the_next_boot(make: Make, shared_emulator: Emulator) -> None:
    node = make()
    until(lambda: armed(node))
    first = node.processes("watchdog.py")
    shared_emulator.request("POST", f"/v2/{node.name}:stop")
    until(lambda: node.get()["state"] == "STOPPED")
    assert all(has_ended(process.pid) for process in first)
    shared_emulator.request("POST", f"/v2/{node.name}:start")
    until(lambda: node.get()["state"] == "READY")
    node.set_labels(claimed_until=int(time.time()) + 500)
    until(lambda: node.reports()[0]["claimed_until"] == int(node.get()["labels"]["tpujob-claimed-until"]))  # type: ignore[index]


def stop(emulator: Emulator) -> None:
    """Every process of the VM ends: after it, and after a restart of this machine, the VM boots again."""
    assert control.stop(emulator.state_dir)


@pytest.mark.parametrize("end", [pytest.param(Emulator.kill, marks=pytest.mark.exhaustive), stop])
def test_the_watchdog_runs_on_after_the_end_of_the_daemon(
    make: Make, emulator: Emulator, end: Callable[[Emulator], None]
) -> None:
    node = make(emulator=emulator)
    until(lambda: armed(node))
    end(emulator)
    again = emulator.restarted()
    assert again.url == emulator.url
    node.emulator = again
    node.set_labels(claimed_until=int(time.time()) + 500)
    until(lambda: node.reports()[0]["claimed_until"] == int(node.get()["labels"]["tpujob-claimed-until"]))  # type: ignore[index]


# -- the account of the VMs --


def call(emulator: Emulator, token: str, method: str, path: str) -> tuple[int, str]:
    status, text, _ = fetch(f"{emulator.url}{path}", method, Authorization=f"Bearer {token}")
    return status, "" if status == 200 else json.loads(text)["error"]["message"]


def token_of(node: Node) -> str:
    fleet = node.fleet()
    url = "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/service-accounts/default/token"
    output = fleet.run(0, ["bash", "-c", f"curl -s -H Metadata-Flavor:Google {url}"]).stdout
    fleet.cancel()
    return str(json.loads(output)["access_token"])


def test_a_vm_may_get_and_delete_nodes_of_its_project_and_nothing_else(make: Make, shared_emulator: Emulator) -> None:
    emulator = shared_emulator
    with emulator.settings(startup_script=False):
        node = make()
    token = token_of(node)
    assert call(emulator, token, "GET", f"/v2/{node.name}") == (200, "")
    assert call(emulator, token, "DELETE", f"/v2/{node.name}-probe") == (
        404,
        f"Resource '{node.name}-probe' was not found",
    )
    for method, path in (
        ("GET", f"/v2/{PARENT}/nodes"),
        ("POST", f"/v2/{PARENT}/nodes?nodeId=x"),
        ("PATCH", f"/v2/{node.name}?updateMask=labels"),
        ("POST", f"/v2/{node.name}:stop"),
        ("GET", "/_emulator/status"),
        ("POST", "/_emulator/shutdown"),
        ("GET", f"/v2/{node.name.replace('emulated', 'another')}"),
    ):
        status, message = call(emulator, token, method, path)
        assert (status, message[:12]) == (403, "Permission '"), (method, path)
    with emulator.settings(vm_may=["get"]):
        assert call(emulator, token, "DELETE", f"/v2/{node.name}") == (
            403,
            f"Permission 'tpu.nodes.delete' denied on '{node.name}' (or it may not exist).",
        )


def test_a_forged_token_or_that_of_a_deleted_node_is_refused(make: Make, shared_emulator: Emulator) -> None:
    emulator = shared_emulator
    with emulator.settings(startup_script=False):
        node = make()
    token = token_of(node)
    uid = node.get()["id"]
    for forged in (f"emulated-{uid}", f"emulated-{uid}-", token[:-1], f"{token}0", "emulated-", ""):
        assert call(emulator, forged, "GET", f"/v2/{node.name}")[0] == 401
    assert call(emulator, token, "DELETE", f"/v2/{node.name}")[0] == 200
    until(lambda: is_absent(node))
    assert call(emulator, token, "GET", f"/v2/{node.name}")[0] == 401


def test_processes_of_ssh_sessions_can_be_distinguished(make: Make, shared_emulator: Emulator) -> None:
    emulator = shared_emulator
    with emulator.settings(startup_script=False):
        node = make()
    fleet = node.fleet()
    output = fleet.run(0, ["bash", "-c", "echo $SSH_CONNECTION"]).stdout.split()
    assert (len(output), output[0], output[2]) == (4, b"127.0.0.1", b"127.0.0.1")
    assert int(output[3]) == fleet.workers[0].port
    fleet.cancel()
