"""Another user of the same machine, and every other client: nothing of the emulated cloud may be theirs."""

import contextlib
import http.client
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloud_tpu_emulator.daemon import control
from cloud_tpu_emulator.daemon.control import Endpoint
from orchestrator.errors import CloudUnavailable
from orchestrator.places.google.credentials import EmulatorToken
from orchestrator.places.google.fetch import fetch
from orchestrator.places.tpu.api.client import TpuApi
from orchestrator.promise.lease.lease import SliceName
from tests import ROOT
from tests.cli_fixture import Tpujob
from tests.emulator.fixture import Emulator
from tests.waiting import HANG_S, ran, until

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


@pytest.mark.parametrize(("asked", "answers"), [
    ("GET /storage/v1/b/results/o", ["401", "200"]),
    ("GET /computeMetadata/v1/instance/service-accounts/default/token", ["401", "200"]),
    ("CONNECT tpu.googleapis.com:443", ["403", "200"]),  # of the proxy
])  # fmt: skip
def test_what_needs_no_token_answers_its_own_user_and_no_other(
    shared_emulator: Emulator, nobody: dict[str, Any], asked: str, answers: list[str]
) -> None:
    url = shared_emulator.url
    if asked.startswith("CONNECT"):
        url = shared_emulator.request("POST", "/_emulator/proxy", {})["url"]
    port = int(url.rpartition(":")[2])
    words = [str(port), f"{asked} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Metadata-Flavor: Google", ""]
    said = []
    for who in (nobody, {}):
        argv = ["/bin/bash", "-c", ASK, "bash", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, check=True, cwd="/", **who)
        said.append(done.stdout)
    assert said == answers


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
    "api": lambda url: TpuApi(url, EmulatorToken("secret"), emulated=True).get(NAME),
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


def ask(emulator: Emulator, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
    """Send a request with exactly these headers, as a browser or another user would."""
    content = b"" if body is None else json.dumps(body).encode()
    return send_to(int(emulator.url.rpartition(":")[2]), method, path, content, headers)


def send_to(port: int, method: str, path: str, content: bytes, headers: dict[str, str]) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(content)), **headers}.items():
        connection.putheader(name, value)
    connection.endheaders(content)
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def daemon(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "cloud_tpu_emulator", *arguments]
    return ran(argv, cwd=ROOT)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", *(pytest.param(host, marks=pytest.mark.exhaustive) for host in ("::", "10.0.0.1", "example.org", ""))],
)
def test_30_it_serves_loopback_only(tmp_path: Path, host: str) -> None:
    ended = daemon("--state-dir", str(tmp_path / "emulator"), "--host", host)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"The emulator serves loopback only, not {host}."
    assert not (tmp_path / "emulator" / "daemon.json").exists()


def test_30_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = daemon("--state-dir", str(tmp_path / "emulator"), "--port", port)
    assert ended.returncode == 1 and "in use" in ended.stderr.splitlines()[-1]


TOKEN = {"Authorization": "Bearer {token}"}
DOORS = [
    *(({}, 401), ({"Authorization": "Bearer wrong"}, 401)),
    *((TOKEN | {"Host": host}, 403) for host in ("evil.example", "127.0.0.1.evil.example", "[::1].evil.example")),
    *((TOKEN | {"Origin": origin}, 403) for origin in ("http://evil.example", "http://127.0.0.1", "null", "")),
    ({"Authorization": "Bearer guess", "Origin": "bot:iap-tunneler"}, 401),
]
PATHS = [
    *(("POST", f"{NODES}?nodeId=intruder"), ("DELETE", f"{NODES}/x"), ("GET", NODES)),
    *(("POST", "/_emulator/shutdown"), ("PATCH", "/_emulator/settings"), ("GET", "/_emulator/billing")),
    *(("OPTIONS", NODES), ("GET", "/../token"), ("GET", "/v4/connect"), ("GET", "/v4/reconnect?sid=x")),
]


@pytest.mark.parametrize(("headers", "status"), DOORS)
def test_30_every_path_has_the_same_three_checks(tpujob: Tpujob, headers: dict[str, str], status: int) -> None:
    emulator = tpujob.emulator
    given = {name: value.format(token=emulator.token) for name, value in headers.items()}
    for method, path in PATHS:
        with tpujob.creating_nothing():
            output, text = ask(emulator, method, path, BODY if method == "POST" else None, **given)
        assert output == status, (method, path, text)
        assert emulator.token not in text
        assert control.running(emulator.state_dir) == emulator.endpoint, "it still serves"


@pytest.fixture
def node(tpujob: Tpujob) -> str:
    """A node with a worker, so that every kind of server exists."""
    tpujob.emulator.request("POST", f"{NODES}?nodeId=doors", BODY)
    until(lambda: tpujob.emulator.request("GET", f"{NODES}/doors")["state"] == "READY", "the node")
    return "doors"


def test_no_process_of_it_listens_beyond_loopback(tpujob: Tpujob, node: str) -> None:
    process = psutil.Process(tpujob.emulator.endpoint.pid)
    doors = [
        connection.laddr.ip
        for each in (process, *process.children(recursive=True))
        for connection in each.net_connections(kind="inet")
        if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
    ]
    assert len(doors) >= 3, "the API, and a worker's SSH and metadata servers"
    assert set(doors) <= {"127.0.0.1", "::1"}


def test_everything_that_it_writes_is_readable_by_its_user_only(tpujob: Tpujob, node: str) -> None:
    directory = tpujob.state_dir
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE((directory / name).stat().st_mode) for name in ("token", "state.json")} == {0o600}
    assert len(tpujob.emulator.token) >= 43, "256 bits"
    host_keys = [path for path in directory.rglob("host_key*") if not path.name.endswith(".pub")]
    assert host_keys and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in host_keys)


BAD_BODIES = [
    pytest.param(b"[" * 200_000, {}, id="endless-depth"),
    pytest.param(b'{"a":' * 101 + b"1" + b"}" * 101, {}, id="too-deep"),
    pytest.param(b"{}\xff", {}, id="not-utf-8"),
    pytest.param(b'{"a": "\xe9"}', {"Content-Type": "application/json; charset=latin-1"}, id="latin-1"),
    pytest.param(b"{\xff", {"Content-Type": "application/json; charset=nonsense"}, id="unknown-charset"),
    pytest.param(b"garbage", {"Content-Encoding": "gzip"}, id="not-gzip"),
    pytest.param(b'{"name": "\\ud800"}', {}, id="half-a-character"),
    pytest.param(b'{"seconds": NaN}', {}, id="no-number"),
    pytest.param(b'{"seconds": ' + b"9" * 5000 + b"}", {}, id="long-number"),
    pytest.param(b"5", {}, id="no-object"),
]
TAKING_JSON = [
    *(("POST", f"{NODES}?nodeId=intruder"), ("PATCH", f"{NODES}/x?updateMask=labels")),
    *(("POST", f"{NODES}/x:simulateMaintenanceEvent".replace("v2", "v2alpha1")), ("POST", "/_emulator/faults")),
    *(("PATCH", "/_emulator/settings"), ("PUT", "/_emulator/rehearsal"), ("POST", "/_emulator/grpc")),
]


@pytest.mark.parametrize(("content", "headers"), BAD_BODIES)
def test_a_body_that_is_not_a_json_object_is_a_client_error_on_every_path(
    tpujob: Tpujob, content: bytes, headers: dict[str, str]
) -> None:
    emulator = tpujob.emulator
    port, given = int(emulator.url.rpartition(":")[2]), {"Authorization": f"Bearer {emulator.token}", **headers}
    for method, path in TAKING_JSON:
        with tpujob.creating_nothing():
            status, text = send_to(port, method, path, content, given)
        assert (status, json.loads(text)["error"]["status"]) == (400, "INVALID_ARGUMENT"), (method, path, text)


@pytest.mark.parametrize("charset", ["charset=nonsense", "charset=hex", "charset*=utf-8''x", "; ;="])
def test_json_is_utf_8_whatever_charset_a_header_names(tpujob: Tpujob, charset: str) -> None:
    """RFC 8259 has no such parameter."""
    headers = {"Authorization": f"Bearer {tpujob.emulator.token}", "Content-Type": f"application/json; {charset}"}
    port = int(tpujob.emulator.url.rpartition(":")[2])
    assert send_to(port, "PATCH", "/_emulator/settings", b"{}", headers)[0] == 200


ODD_VALUES = [
    ("POST", f"{NODES}/doors:getGuestAttributes", {"workerIds": "0"}, 400),
    ("POST", f"{NODES}/doors:getGuestAttributes", {"workerIds": ["9" * 5000]}, 200),
    ("POST", f"{NODES}/doors:simulateMaintenanceEvent".replace("v2", "v2alpha1"), {"workerIds": ["9" * 5000]}, 400),
    ("GET", f"/_emulator/requests?after={'9' * 5000}", None, 400),
    ("POST", "/_emulator/nodes/doors:worker", {"worker": 0, "condition": []}, 400),
    *(
        (
            *("POST", NODES.replace("/nodes", "/queuedResources?queuedResourceId=intruder")),
            {"tpu": {"nodeSpec": [{"nodeId": "x", "node": BODY}]}, "queueingPolicy": {"validUntilTime": time}},
            400,
        )
        for time in ("2026-13-01T00:00:00Z", "2026-01-01T00:00:00+99:99")
    ),
]


def test_an_invalid_value_is_a_client_error(tpujob: Tpujob, node: str) -> None:
    bearer = {"Authorization": f"Bearer {tpujob.emulator.token}"}
    for method, path, body, status in ODD_VALUES:
        output, text = ask(tpujob.emulator, method, path, body, **bearer)
        assert output == status, (path, body, text)


def test_its_log_has_no_token(tpujob: Tpujob, node: str) -> None:
    for path in tpujob.state_dir.glob("*.log"):
        assert tpujob.emulator.token not in path.read_text(errors="replace")
    argv = psutil.Process(tpujob.emulator.endpoint.pid).cmdline()
    assert not any(tpujob.emulator.token in word for word in argv)


def test_an_emulated_run_is_never_collected_in_the_real_cloud_nor_the_reverse(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger holds the cloud of each slice: a command for one cloud does not touch the other's."""
    assert tpujob("up", "held", "--zone", "us-central1-a").returncode == 0
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tpujob.directory / "none.json"))
    google = tpujob("down", "held", "--cloud", "google", "--project", "acme-project")
    assert google.returncode == 77, "that cloud cannot be read without credentials"
    assert "named 'held'" in google.stderr and not tpujob.requests("nodes.delete", "client")
    assert json.loads(tpujob("status", "--json", "--cloud", "emulated").stdout)["slices"][0]["name"] == "held"
    assert tpujob("down", "held", "--cloud", "emulated").returncode == 0
