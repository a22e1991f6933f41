"""The real gcloud works on the emulator, and through its relay: Google's own client says whether it is one."""

import contextlib
import os
import random
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.cloud import tpu_v2

from cloud_tpu_emulator.daemon import control
from tests import waiting
from tests.emulator.contract.api.gcloud_commands import ALPHA, BOTH, NOT_HERE, SCENARIOS, Step
from tests.emulator.contract.conftest import Create
from tests.emulator.fixture import Emulator, Fault
from tests.waiting import HANG_S, ran, serving, until

pytestmark = [pytest.mark.gcloud, pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")]
ZONE = "--zone=us-central1-a"
SHAPE = ("--accelerator-type=v5litepod-4", "--version=v2-alpha-tpuv5-lite")
Gcloud = Callable[..., subprocess.CompletedProcess[str]]
NEEDS_OPENSSH = {"ssh and scp", "queued resources"}


@pytest.fixture
def gcloud(shared_emulator: Emulator, tmp_path: Path) -> Gcloud:
    environment = shared_emulator.for_gcloud(tmp_path)

    def run(*words: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        argv = ["gcloud", *prefix, "compute", "tpus", *words]
        return ran(argv, env=environment)

    return run


@pytest.fixture
def slow_maintenance(shared_emulator: Emulator) -> Iterator[None]:
    """A long notice: gcloud is too slow for that of other tests."""
    with shared_emulator.settings(notice_s=60):
        yield


def stories() -> list[object]:
    return [
        pytest.param(name, track, id=f"{track}: {name}")
        for name, steps in SCENARIOS.items()
        for track in BOTH
        if any(track in step.tracks for step in steps)
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "track"), stories())
def test_every_command_of_a_scenario_has_the_expected_output(
    gcloud: Gcloud, slow_maintenance: None, tmp_path: Path, name: str, track: str
) -> None:
    if name in NEEDS_OPENSSH and not (shutil.which("ssh") and shutil.which("ssh-keygen")):
        pytest.skip("OpenSSH is not installed")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").write_text("hello\n")
    (tmp_path / "file").write_text("hello\n")
    names = {"n": track, "file": str(tmp_path / "file"), "folder": str(tmp_path / "folder")}
    for step in SCENARIOS[name]:
        if track in step.tracks:
            take(step, gcloud, names, (ALPHA,) if track == ALPHA else ())


def take(step: Step, gcloud: Gcloud, names: dict[str, str], prefix: tuple[str, ...]) -> None:
    expected = step.prints.format_map(names)

    def says_it() -> bool:
        done = gcloud(*words_of(step, names), prefix=prefix)
        output = done.stdout + done.stderr
        assert (done.returncode != 0) is step.fails, f"{shlex.join(done.args)}\n{output}"
        assert step.patient or expected in output, f"{shlex.join(done.args)}\n{output}"
        return expected in output

    until(says_it, f"{expected!r} of {shlex.join(words_of(step, names))}")


def words_of(step: Step, names: dict[str, str]) -> list[str]:
    arguments = shlex.split(step.arguments.format_map(names))
    return [*step.command.split(), *arguments, *([f"--zone={step.zone}"] if step.zone else [])]


def test_every_command_of_this_gcloud_is_in_the_contract_or_listed_as_missing() -> None:
    """gcloud keeps one file for each of its commands."""
    binary = shutil.which("gcloud")
    assert binary is not None
    found = {root for root in Path(binary).resolve().parents if (root / "lib" / "surface").is_dir()}
    found |= {Path("/usr/lib/google-cloud-sdk")} if not found else set()
    surface = next(iter(found)) / "lib" / "surface" / "compute" / "tpus"
    if not surface.is_dir():
        pytest.skip("this gcloud keeps its commands somewhere else")
    files = [path for path in surface.rglob("*") if path.suffix in (".py", ".yaml") and path.stem != "__init__"]
    commands = {" ".join(path.relative_to(surface).with_suffix("").parts).replace("_", "-") for path in files}
    known = {step.command for steps in SCENARIOS.values() for step in steps}
    missing = {name.strip() for names in NOT_HERE for name in names.split(",")}
    assert {name for name in commands - known if name not in missing and name.split()[0] not in missing} == set()
    assert known - commands == set()


@pytest.mark.exhaustive
def test_a_stockout_reads_as_on_the_real_cloud(gcloud: Gcloud, fault: Fault) -> None:
    fault("stockout", match={"node": "g2"})
    done = gcloud("tpu-vm", "create", "g2", ZONE, *SHAPE)
    assert done.returncode == 1
    assert '"code": 8' in done.stderr
    assert 'There is no more capacity in the zone \\"us-central1-a\\"' in done.stderr


@pytest.mark.exhaustive
def test_ssh_works_without_the_wrapper_when_the_port_is_given(gcloud: Gcloud, shared_emulator: Emulator) -> None:
    assert gcloud("tpu-vm", "create", "g3", ZONE, *SHAPE).returncode == 0
    [node] = [row for row in shared_emulator.status()["nodes"] if row["name"].endswith("/g3")]
    output = gcloud("tpu-vm", "ssh", "g3", ZONE, f"--ssh-flag=-p {node['ssh_ports'][0]}", "--command=pwd")
    assert f"/{node['uid']}/worker0/home" in output.stdout, output.stderr
    assert gcloud("tpu-vm", "delete", "g3", ZONE, "--async").returncode == 0


CONTENT = random.Random(15).randbytes(300_000)


@dataclass(frozen=True)
class RelayedGcloud:
    """gcloud in an environment of its own, which trusts the relay's certificate."""

    environment: dict[str, str]
    relay: str

    def start(self, *words: str, track: str = "") -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        argv = ["gcloud", *([track] if track else []), "compute", *words]
        return subprocess.Popen(argv, env=self.environment, stdin=pipe, stdout=pipe, stderr=pipe)

    def tunnel(self, instance: str, port: int, *words: str, track: str = "") -> subprocess.Popen[bytes]:
        """Start a tunnel between a port of an instance and stdin and stdout."""
        override = f"--iap-tunnel-url-override={self.relay}"
        return self.start("start-iap-tunnel", instance, str(port), ZONE, override, *words, track=track)


@pytest.fixture
def relayed(shared_emulator: Emulator, tmp_path: Path) -> RelayedGcloud:
    relay, authorities = control.open_relay(shared_emulator.endpoint)
    path = f"{control.ssh_programs(shared_emulator.state_dir)}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path)}
    environment |= control.client_environment(shared_emulator.endpoint, shared_emulator.state_dir)
    assert environment["CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"] == authorities
    return RelayedGcloud(environment | {"CLOUDSDK_CONFIG": str(tmp_path / "gcloud")}, relay)


@pytest.fixture
def instance(api: tpu_v2.TpuClient, create: Create) -> str:
    reply = api.get_guest_attributes(request={"name": create().name})
    items = reply.guest_attributes[0].query_value.items
    return next(str(item.value) for item in items if item.key == "hostname")


@pytest.fixture
def echo() -> Iterator[int]:
    with serving(waiting.echo) as port:
        yield port


def exchange(process: subprocess.Popen[bytes], content: bytes, size: int = 8000) -> bytes:
    """Send it in pieces of that size, each read back before the next, and return what came back.

    Not all at once: gcloud's sending thread also acknowledges, through its own full queue, and then waits for itself for ever.
    gcloud ends a tunnel with its stdin, so that stays open meanwhile.
    """
    back = b""
    for at in range(0, len(content), size):
        piece = content[at : at + size]
        process.stdin.write(piece)
        process.stdin.flush()
        back += process.stdout.read(len(piece))
    process.stdin.close()
    process.wait(HANG_S)
    return back


def test_gcloud_sends_and_receives_through_the_relay(relayed: RelayedGcloud, instance: str, echo: int) -> None:
    """300,000 bytes both ways."""
    process = relayed.tunnel(instance, echo, "--listen-on-stdin")
    back = exchange(process, CONTENT)
    assert back == CONTENT, process.stderr.read().decode() if process.stderr else ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("track", ["beta", "alpha"])
def test_gcloud_of_other_tracks_does_so_too(relayed: RelayedGcloud, instance: str, echo: int, track: str) -> None:
    assert exchange(relayed.tunnel(instance, echo, "--listen-on-stdin", track=track), CONTENT) == CONTENT


@pytest.mark.exhaustive
def test_gcloud_reconnects_after_a_cut_and_the_bytes_are_exact(
    relayed: RelayedGcloud, shared_emulator: Emulator, instance: str, echo: int, fault: Fault
) -> None:
    """In small pieces: with much under way gcloud itself mixes up the order, since it counts bytes before it passes them on."""
    fault("relay_cut", operation="relay.connect", after_bytes=10_500, when={"first": 1})
    fault("relay_cut", operation="relay.reconnect", after_bytes=7_300, when={"first": 1})
    sent = CONTENT[:30_000]
    assert exchange(relayed.tunnel(instance, echo, "--listen-on-stdin"), sent, size=1000) == sent
    faults = shared_emulator.request("GET", "/_emulator/faults")["faults"]
    assert [row["hits"] for row in faults if row["kind"] == "relay_cut"] == [1, 1]


@pytest.mark.exhaustive
def test_gcloud_listens_on_a_port_and_tests_the_connection_first(
    relayed: RelayedGcloud, instance: str, echo: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = relayed.tunnel(instance, echo, f"--local-host-port=127.0.0.1:{port}")

    def connection() -> socket.socket | None:
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
        return None

    try:
        with until(connection) as near:  # type: ignore[union-attr]
            near.sendall(b"hello")
            assert near.recv(5) == b"hello"
    finally:
        process.terminate()
        process.wait(HANG_S)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("close_code", "words"), [
    (4033, "Error while connecting [4033: 'not authorized']"),
    (4003, "Error while connecting [4003: 'failed to connect to backend']. (Failed to connect to port"),
    (4047, "Error while connecting [4047: 'Failed to lookup instance']"),
])  # fmt: skip
def test_gcloud_says_why_the_relay_refuses(
    relayed: RelayedGcloud, instance: str, echo: int, fault: Fault, close_code: int, words: str
) -> None:
    fault("relay_refuse", operation="relay.connect", close_code=close_code)
    _, errors = relayed.tunnel(instance, echo, "--local-host-port=localhost:0").communicate(timeout=HANG_S)
    assert words in errors.decode()


@pytest.mark.exhaustive
def test_gcloud_is_refused_without_the_token(
    relayed: RelayedGcloud, shared_emulator: Emulator, instance: str, echo: int, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("not-the-token")
    stranger = RelayedGcloud(
        {**relayed.environment, "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token")}, relayed.relay
    )
    before = len(connections(shared_emulator))
    _, errors = stranger.tunnel(instance, echo).communicate(timeout=HANG_S)
    assert [row["status"] for row in connections(shared_emulator)[before:]] == [401]
    assert "Request is missing required authentication credential" in errors.decode()


@pytest.mark.exhaustive
@pytest.mark.skipif(
    shutil.which("ssh") is None or shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed"
)
def test_gcloud_logs_in_to_workers_through_the_relay(
    relayed: RelayedGcloud, shared_emulator: Emulator, create: Create
) -> None:
    """As users do it, with the alpha track: gcloud runs itself again as OpenSSH's ProxyCommand."""
    node = create()
    before = len(connections(shared_emulator))
    words = ("tpus", "tpu-vm", "ssh", node.name.rpartition("/")[2], ZONE, "--tunnel-through-iap", "--command=pwd")
    said, errors = relayed.start(*words, track="alpha").communicate(timeout=HANG_S)
    assert b"/worker0/home" in said, errors.decode()
    assert len(connections(shared_emulator)) == before + 1


def connections(emulator: Emulator) -> list[dict[str, Any]]:
    rows = emulator.request("GET", "/_emulator/requests")["requests"]
    return [row for row in rows if row["path"].startswith("/v4/connect")]
