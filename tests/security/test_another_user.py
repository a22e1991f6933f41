"""Another user of the same machine: the loopback interface is theirs, too, and nothing of the emulated cloud may be.

Played by real processes of another uid, where the tests run as root. They are bash and OpenSSH, since that user may not be
able to read this Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.emulator.daemon import control
from orchestrator.emulator.daemon.control import Endpoint
from orchestrator.errors import CloudUnavailable
from orchestrator.places.google.credentials import EmulatorToken, emulator_credentials
from orchestrator.places.google.fetch import fetch
from orchestrator.places.tpu.api.client import TpuApi
from orchestrator.places.tpu.api.light_client import LightApi
from tests.cli_fixture import Tpujob
from tests.emulator_fixture import Emulator
from tests.waiting import HANG_S, until

NODES = "/v2/projects/emulated/locations/us-central1-a/nodes"
BODY = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}
NOBODY = 65534
# One request, and the status of its answer; the connection stays open until that has come.
ASK = 'exec 3<>"/dev/tcp/127.0.0.1/$1"; printf "%s\\r\\n" "${@:2}" >&3; read -r -u 3 _ status _; printf %s "$status"'
# The same, but gone as soon as it is sent.
SHOUT = 'exec 3<>"/dev/tcp/127.0.0.1/$1"; printf "%s\\r\\n" "${@:2}" >&3; exec 3>&-'
ARMED = json.dumps({"v": 1, "armed": True, "route": True, "permission": True, "mode": "run"})


@dataclass(frozen=True)
class Worker:
    """The only worker of a node, seen from this machine."""

    tpujob: Tpujob
    node: str

    @property
    def ports(self) -> set[int]:
        (row,) = [row for row in self.tpujob.emulator.processes() if row["name"].endswith(self.node)]
        return set(row["ports"])

    @property
    def guest_attributes(self) -> dict[str, str]:
        found = self.tpujob.emulator.request("POST", f"{NODES}/{self.node}:getGuestAttributes", {})
        items = found["guestAttributes"][0]["queryValue"]["items"]
        return {f"{item['namespace']}/{item['key']}": item["value"] for item in items}

    @property
    def metadata_port(self) -> int:
        (port,) = self.ports - {int(self.guest_attributes["tpujob-emulator/ssh-port"])}
        return port


@pytest.fixture
def worker(tpujob: Tpujob) -> Iterator[Worker]:
    tpujob.emulator.request("POST", f"{NODES}?nodeId=shared", BODY)
    until(lambda: tpujob.emulator.request("GET", f"{NODES}/shared")["state"] == "READY", "the node")
    yield Worker(tpujob, "shared")


def send(script: str, port: int, method: str, path: str, body: str = "", **who: Any) -> str:
    """As the user of these tests, or as `NOBODY`."""
    head = [f"{method} /computeMetadata/v1/{path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Metadata-Flavor: Google"]
    words = [*head, f"Content-Length: {len(body)}", "", body]
    argv = ["/bin/bash", "-c", script, "bash", str(port), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=False, cwd="/", **who)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def nobody() -> dict[str, Any]:
    if os.geteuid() != 0:
        pytest.skip("only root can act as another user")
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


FORGED = [
    ("PUT", "instance/guest-attributes/hostkeys/ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIA=="),
    ("PUT", "instance/guest-attributes/tpujob-emulator/ssh-port", "2222"),
    ("PUT", "instance/guest-attributes/tpujob/watchdog", ARMED),
]
REQUESTS = [
    *(("GET", "instance/service-accounts/default/token", ""), ("GET", "instance/attributes/ssh-keys", "")),
    *(("GET", "?recursive=true", ""), ("GET", "", "")),
    *FORGED,
    ("PUT", "instance/guest-attributes/a/b", "x"),
]


def test_a_worker_answers_its_own_user_and_no_other(worker: Worker, nobody: dict[str, Any]) -> None:
    before, port = worker.guest_attributes, worker.metadata_port
    for method, path, body in REQUESTS:
        assert send(ASK, port, method, path, body, **nobody) == "403", (method, path)
    assert worker.guest_attributes == before
    assert send(ASK, port, *REQUESTS[0]) == "200"
    assert send(ASK, port, *REQUESTS[-1]) == "200"
    assert worker.guest_attributes == before | {"a/b": "x"}


def test_a_bucket_answers_its_own_user_and_no_other(shared_emulator: Emulator, nobody: dict[str, Any]) -> None:
    """Clients of an emulated Cloud Storage send no token."""
    port = int(shared_emulator.url.rpartition(":")[2])
    words = [str(port), "GET /storage/v1/b/results/o HTTP/1.1", f"Host: 127.0.0.1:{port}", ""]
    said = []
    for who in (nobody, {}):
        argv = ["/bin/bash", "-c", ASK, "bash", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=True, cwd="/", **who)
        said.append(done.stdout)
    assert said == ["401", "200"]


def test_what_another_user_sends_and_runs_away_from_changes_nothing(worker: Worker, nobody: dict[str, Any]) -> None:
    """A socket that no process holds any more is root's to the kernel, and root may be the user of this emulator."""
    before, port = worker.guest_attributes, worker.metadata_port
    for _ in range(20):
        send(SHOUT, port, *REQUESTS[-2], **nobody)
    assert send(ASK, port, *REQUESTS[-1]) == "200", "it answers, so it has read what came before"
    assert worker.guest_attributes == before | {"a/b": "x"}


def test_not_even_its_own_user_writes_what_clients_trust(worker: Worker) -> None:
    before, port = worker.guest_attributes, worker.metadata_port
    for path in (
        "hostkeys/ssh-ed25519",
        "hostkeys/hostname",
        "hostkeys/new",
        "hostkeys%2Fssh-ed25519",
        "tpujob-emulator/ssh-port",
    ):
        assert send(ASK, port, "PUT", f"instance/guest-attributes/{path}", "x") == "403", path
    assert worker.guest_attributes == before


@pytest.mark.exhaustive
def test_a_run_ends_well_beside_another_user_who_says_to_be_its_worker(tpujob: Tpujob, nobody: dict[str, Any]) -> None:
    """From the moment that the worker has ports, before it is READY, until it is gone."""
    said: set[str] = set()
    over = threading.Event()

    def forge() -> None:
        while not over.is_set():
            for port in [port for row in tpujob.emulator.processes() for port in row["ports"]]:
                with contextlib.suppress(AssertionError):  # a port that is just being closed
                    said.update(send(ASK, port, method, path, body, **nobody) for method, path, body in FORGED)

    forger = threading.Thread(target=forge)
    forger.start()
    try:
        with tpujob.emulator.settings(provision_s=1.0):
            run = tpujob("run", tpujob.job("tpu: {zone: us-central1-a}\ncommand: echo by $(id -u)\n"))
    finally:
        over.set()
        forger.join()
    assert run.returncode == 0 and f"by {os.geteuid()}" in run.stdout, run.text
    assert "403" in said and "200" not in said


def test_another_user_cannot_read_what_the_emulator_writes(worker: Worker, nobody: dict[str, Any]) -> None:
    directory = worker.tpujob.state_dir
    for path in (directory, directory / "token", directory / "vms", directory / "state.json"):
        done = subprocess.run(["/bin/cat", str(path)], capture_output=True, check=False, cwd="/", **nobody)
        assert done.returncode != 0 and b"denied" in done.stderr, path


# -- at the port of an emulator that died ----------------------------------------------------------------------------


@pytest.fixture
def squatter(nobody: dict[str, Any]) -> Iterator[tuple[int, Callable[[], bytes]]]:
    """A server of another user: its port, and what it has read once its only client is gone."""
    told, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with socket.create_server(("127.0.0.1", 0)) as server:
                os.write(tells, b"%d\n" % server.getsockname()[1])
                server.settimeout(HANG_S)
                connection, _ = server.accept()
                while data := connection.recv(1 << 16):
                    os.write(tells, data)
        finally:
            os._exit(0)
    os.close(tells)
    with os.fdopen(told, "rb") as heard:
        yield int(heard.readline()), heard.read
    os.waitpid(pid, 0)


NAME = SliceName("emulated", "us-central1-a", "x")
CLIENTS: dict[str, Callable[[str], object]] = {
    "light": lambda url: LightApi(url, EmulatorToken("secret"), emulated=True).get(NAME),
    "whole": lambda url: TpuApi(url, emulator_credentials("secret"), emulated=True).get(NAME),
    "admin": lambda url: control.request(Endpoint(url, "secret", 1, "secret"), "GET", "/_emulator/status"),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_no_client_sends_a_token_to_another_users_server(
    squatter: tuple[int, Callable[[], bytes]], client: str
) -> None:
    port, heard = squatter
    with pytest.raises((CloudUnavailable, PermissionError), match="a process of another user answers there"):
        CLIENTS[client](f"http://127.0.0.1:{port}")
    assert heard() == b""


def test_a_token_that_a_vm_sent_to_another_users_server_opens_nothing_in_the_next_emulator(emulator: Emulator) -> None:
    def asked_with(token: str) -> str:
        headers = {"Authorization": f"Bearer {token}"}
        reply = fetch("GET", f"{emulator.restarted().url}{NODES}/x", None, headers, timeout_s=HANG_S, proxies=False)
        return str(json.loads(reply.body).get("state", reply.status))

    emulator.request("POST", f"{NODES}?nodeId=x", BODY)
    until(lambda: emulator.request("GET", f"{NODES}/x")["state"] == "READY", "the node")
    before = vm_token(emulator)
    assert asked_with(before) == "READY"
    control.stop(emulator.state_dir)
    assert asked_with(before) == "401"
    assert asked_with(vm_token(emulator.restarted())) == "READY"


def vm_token(emulator: Emulator) -> str:
    """As a program on its only worker gets it."""
    (node,) = json.loads((emulator.state_dir / "state.json").read_text())["nodes"]
    url = f"http://127.0.0.1:{node['hosts'][0]['metadata_port']}/computeMetadata/v1/instance/service-accounts/default/token"
    reply = fetch("GET", url, None, {"Metadata-Flavor": "Google"}, timeout_s=HANG_S, proxies=False)
    return str(json.loads(reply.body)["access_token"])
