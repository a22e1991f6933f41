"""The real gcloud through the emulator's relay: Google's own client says whether it is one.

gcloud takes another relay by a hidden option of `start-iap-tunnel`, over TLS only, by a certificate that it is told to trust.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.cloud import tpu_v2

from orchestrator.emulator.daemon import control
from tests import ports
from tests.contract.conftest import Fault
from tests.emulator_fixture import Emulator
from tests.ports import serving
from tests.waiting import HANG_S, until

pytestmark = [pytest.mark.gcloud, pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")]
ZONE = "--zone=us-central1-a"
CONTENT = random.Random(15).randbytes(300_000)


@dataclass(frozen=True)
class Gcloud:
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
def gcloud(shared_emulator: Emulator, tmp_path: Path) -> Gcloud:
    relay, authorities = control.open_relay(shared_emulator.endpoint)
    path = f"{control.ssh_programs(shared_emulator.state_dir)}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path)}
    environment |= control.client_environment(shared_emulator.endpoint, shared_emulator.state_dir)
    assert environment["CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"] == authorities
    return Gcloud(environment | {"CLOUDSDK_CONFIG": str(tmp_path / "gcloud")}, relay)


@pytest.fixture
def instance(api: tpu_v2.TpuClient, create: Callable[..., tpu_v2.Node]) -> str:
    reply = api.get_guest_attributes(request={"name": create().name})
    items = reply.guest_attributes[0].query_value.items
    return next(str(item.value) for item in items if item.key == "hostname")


@pytest.fixture
def echo() -> Iterator[int]:
    with serving(ports.echo) as port:
        yield port


def exchange(process: subprocess.Popen[bytes], content: bytes, size: int = 8000) -> bytes:
    """Send it in pieces of that size, each read back before the next, and return what came back.

    Not all at once: gcloud's sending thread also acknowledges, through its own full queue, and then waits for itself for ever.
    gcloud ends a tunnel with its stdin, so that stays open meanwhile.
    """
    assert process.stdin is not None and process.stdout is not None
    back = b""
    for at in range(0, len(content), size):
        piece = content[at : at + size]
        process.stdin.write(piece)
        process.stdin.flush()
        back += process.stdout.read(len(piece))
    process.stdin.close()
    process.wait(HANG_S)
    return back


def test_gcloud_sends_and_receives_through_the_relay(gcloud: Gcloud, instance: str, echo: int) -> None:
    """300,000 bytes both ways."""
    process = gcloud.tunnel(instance, echo, "--listen-on-stdin")
    back = exchange(process, CONTENT)
    assert back == CONTENT, process.stderr.read().decode() if process.stderr else ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("track", ["beta", "alpha"])
def test_gcloud_of_other_tracks_does_so_too(gcloud: Gcloud, instance: str, echo: int, track: str) -> None:
    assert exchange(gcloud.tunnel(instance, echo, "--listen-on-stdin", track=track), CONTENT) == CONTENT


@pytest.mark.exhaustive
def test_gcloud_reconnects_after_a_cut_and_the_bytes_are_exact(
    gcloud: Gcloud, shared_emulator: Emulator, instance: str, echo: int, fault: Fault
) -> None:
    """In small pieces: with much under way gcloud itself mixes up the order, since it counts bytes before it passes them on."""
    fault("relay_cut", operation="relay.connect", after_bytes=10_500, when={"first": 1})
    fault("relay_cut", operation="relay.reconnect", after_bytes=7_300, when={"first": 1})
    sent = CONTENT[:30_000]
    assert exchange(gcloud.tunnel(instance, echo, "--listen-on-stdin"), sent, size=1000) == sent
    faults = shared_emulator.request("GET", "/_emulator/faults")["faults"]
    assert [row["hits"] for row in faults if row["kind"] == "relay_cut"] == [1, 1]


@pytest.mark.exhaustive
def test_gcloud_listens_on_a_port_and_tests_the_connection_first(gcloud: Gcloud, instance: str, echo: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = gcloud.tunnel(instance, echo, f"--local-host-port=127.0.0.1:{port}")

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
    gcloud: Gcloud, instance: str, echo: int, fault: Fault, close_code: int, words: str
) -> None:
    fault("relay_refuse", operation="relay.connect", close_code=close_code)
    _, errors = gcloud.tunnel(instance, echo, "--local-host-port=localhost:0").communicate(timeout=HANG_S)
    assert words in errors.decode()


@pytest.mark.exhaustive
def test_gcloud_is_refused_without_the_token(
    gcloud: Gcloud, shared_emulator: Emulator, instance: str, echo: int, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("not-the-token")
    stranger = Gcloud({**gcloud.environment, "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token")}, gcloud.relay)
    before = len(connections(shared_emulator))
    _, errors = stranger.tunnel(instance, echo).communicate(timeout=HANG_S)
    assert [row["status"] for row in connections(shared_emulator)[before:]] == [401]
    assert "Request is missing required authentication credential" in errors.decode()


@pytest.mark.exhaustive
@pytest.mark.skipif(
    shutil.which("ssh") is None or shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed"
)
def test_gcloud_logs_in_to_workers_through_the_relay(
    gcloud: Gcloud, shared_emulator: Emulator, create: Callable[..., tpu_v2.Node]
) -> None:
    """As users do it, with the alpha track: gcloud runs itself again as OpenSSH's ProxyCommand."""
    node = create()
    before = len(connections(shared_emulator))
    words = ("tpus", "tpu-vm", "ssh", node.name.rpartition("/")[2], ZONE, "--tunnel-through-iap", "--command=pwd")
    said, errors = gcloud.start(*words, track="alpha").communicate(timeout=HANG_S)
    assert b"/worker0/home" in said, errors.decode()
    assert len(connections(shared_emulator)) == before + 1


def connections(emulator: Emulator) -> list[dict[str, Any]]:
    rows = emulator.request("GET", "/_emulator/requests")["requests"]
    return [row for row in rows if row["path"].startswith("/v4/connect")]
