"""Tunnels through the emulator's relay, exact whatever is cut, behind a proxy, and to workers without an address."""

import contextlib
import gc
import logging
import os
import random
import shutil
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cloud_tpu_emulator.daemon.control import DaemonRefused
from orchestrator.errors import ConfigError, TunnelRefused, Unreachable
from orchestrator.hosts.iap.dialer import GOOGLE, Relay, dial
from orchestrator.hosts.iap.relay_session import RelayTarget
from orchestrator.hosts.ssh.dial import Direct
from orchestrator.hosts.ssh.proxy_command import Piped
from orchestrator.places.vms.reach import Reach
from orchestrator.promise.lease.cloud_api import WorkerAddress
from tests.contract.hosts.fixture import NODES, USER, Slice, one, slice_of, through_bastion  # noqa: F401
from tests.contract.hosts.scripted_relay import ScriptedRelay, certificate, proxy, scripted
from tests.contract.hosts.scripted_relay import echo as echo_frames
from tests.emulator.fixture import Emulator, Fault
from tests.fakes.api import FixedToken
from tests.waiting import HANG_S, echo, held_port, read_all, serving, until

Backend = Callable[[Callable[[socket.socket], object]], int]
MEGABYTE = random.Random(15).randbytes(1 << 20)


@pytest.fixture
def relay(shared_emulator: Emulator) -> Relay:
    return Relay(FixedToken(shared_emulator.token), f"{shared_emulator.url.replace('http', 'ws', 1)}/v4", emulated=True)


@pytest.fixture
def instance(one: Slice) -> str:  # noqa: F811
    said = one.emulator.request("POST", f"{NODES}/{one.node}:getGuestAttributes", {})
    items = said["guestAttributes"][0]["queryValue"]["items"]
    return next(str(item["value"]) for item in items if item["key"] == "hostname")


@pytest.fixture
def backend() -> Iterator[Backend]:
    """Start a server on a port of the VM."""
    with contextlib.ExitStack() as servers:
        yield lambda serve: servers.enter_context(serving(serve))


@pytest.fixture
def closed() -> Iterator[int]:
    """A port that refuses connections, and that no other program gets."""
    with held_port() as number:
        yield number


def send_a_megabyte(near: socket.socket) -> None:
    near.sendall(MEGABYTE)


def target(instance: str, port: int = 22) -> RelayTarget:
    return RelayTarget("emulated", "us-central1-a", instance, port)


def shown(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    """All that is said of an error, wherever."""
    text = "".join(traceback.format_exception(error)) + repr(error) + caplog.text + str(getattr(error, "hint", ""))
    chain: BaseException | None = error
    while chain is not None:
        text += repr(chain) + repr(vars(chain))
        chain = chain.__cause__ or chain.__context__
    return text


def test_bytes_are_exact_over_a_tunnel_that_is_cut_three_times(
    relay: Relay, instance: str, backend: Backend, fault: Fault, shared_emulator: Emulator
) -> None:
    fault("relay_cut", operation="relay.connect", after_bytes=100_001, when={"first": 1})
    fault("relay_cut", operation="relay.reconnect", after_bytes=300_000, when={"first": 2})
    with dial(relay, target(instance, backend(echo))) as tunnel:
        threading.Thread(target=tunnel.sendall, args=(MEGABYTE,), daemon=True).start()
        tunnel.settimeout(HANG_S)
        back = bytearray()
        while len(back) < len(MEGABYTE) and (piece := tunnel.recv(65536)):
            back += piece
    assert bytes(back) == MEGABYTE
    faults = shared_emulator.request("GET", "/_emulator/faults")["faults"]
    assert [row["hits"] for row in faults if row["kind"] == "relay_cut"] == [1, 2]


def test_a_tunnel_that_cannot_be_resumed_in_time_ends(
    relay: Relay, instance: str, backend: Backend, fault: Fault
) -> None:
    fault("relay_cut", operation="relay.connect", after_bytes=50_000)
    fault("relay_reject", operation="relay.reconnect", status=503)
    with dial(relay, target(instance, backend(send_a_megabyte)), reconnect_s=0.3) as tunnel:
        came = read_all(tunnel)
    assert len(came) <= 50_000 and MEGABYTE.startswith(came)  # what was under way is lost with the cut


@pytest.mark.parametrize("close_code", [4001, 4010, 4033, 4074])
def test_a_tunnel_that_the_relay_closes_ends_without_another_try(
    relay: Relay, instance: str, backend: Backend, fault: Fault, shared_emulator: Emulator, close_code: int
) -> None:
    fault("relay_close", operation="relay.connect", after_bytes=10, close_code=close_code)
    before = len(reconnections(shared_emulator))
    with dial(relay, target(instance, backend(send_a_megabyte))) as tunnel:
        assert read_all(tunnel) == MEGABYTE[:10]
    assert len(reconnections(shared_emulator)) == before


@pytest.mark.parametrize("expired", [True, False])
def test_a_token_that_has_expired_or_that_the_relay_wants_anew_is_renewed_once(
    shared_emulator: Emulator, relay: Relay, instance: str, backend: Backend, fault: Fault, expired: bool
) -> None:
    tokens = FixedToken("expired" if expired else shared_emulator.token, shared_emulator.token)
    if not expired:
        fault("relay_refuse", operation="relay.connect", close_code=4004, when={"first": 1})
    with dial(Relay(tokens, relay.url, emulated=True), target(instance, backend(send_a_megabyte))) as tunnel:
        assert read_all(tunnel) == MEGABYTE
    assert tokens.renewed == 1


@pytest.mark.parametrize(("status", "kind"), [(401, TunnelRefused), (403, TunnelRefused), (503, Unreachable)])
def test_an_http_refusal_is_final_or_worth_another_try_by_its_status(
    relay: Relay, instance: str, fault: Fault, status: int, kind: type[Exception]
) -> None:
    fault("relay_reject", operation="relay.connect", status=status)
    with pytest.raises(kind, match=str(status)):
        dial(relay, target(instance))


def test_a_port_without_a_server_is_worth_another_try_and_names_the_firewall_rule(
    relay: Relay, instance: str, closed: int
) -> None:
    with pytest.raises(Unreachable, match=r"4003: failed to connect to backend") as error:
        dial(relay, target(instance, closed))
    assert "35.235.240.0/20" in str(error.value.hint)


def test_an_instance_that_is_not_known_yet_is_worth_another_try(relay: Relay) -> None:
    with pytest.raises(Unreachable, match="4047: Failed to lookup instance"):
        dial(relay, target("t1v-n-00000000-w-0"))


def test_a_relay_that_never_answers_is_left_in_time(relay: Relay, instance: str, fault: Fault) -> None:
    fault("relay_silent", operation="relay.connect", after_bytes=0)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="does not answer in time"):
        dial(relay, target(instance), open_s=0.3)
    assert time.monotonic() - began < HANG_S


def test_a_relay_that_is_not_there_is_named(relay: Relay, closed: int) -> None:
    gone = Relay(relay.tokens, f"ws://127.0.0.1:{closed}/v4", emulated=True)
    with pytest.raises(Unreachable, match=f"127.0.0.1:{closed}, the relay of IAP, cannot be reached"):
        dial(gone, target("x"))


@pytest.mark.parametrize(("url", "emulated"), [
    ("wss://tunnel.example.com/v4", False), ("ws://tunnel.cloudproxy.app/v4", False),
    ("ws://127.0.0.1:1/v4", False), ("wss://tunnel.cloudproxy.app/v4", True), ("ws://192.0.2.1:1/v4", True),
])  # fmt: skip
def test_a_token_goes_to_googles_relay_or_to_loopback_and_nowhere_else(url: str, emulated: bool) -> None:
    with pytest.raises(ConfigError, match="gets no token"):
        Relay(FixedToken("t"), url, emulated=emulated)


def test_the_token_is_in_no_message_no_traceback_and_no_log(
    relay: Relay, instance: str, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    fault("relay_reject", operation="relay.connect", status=403)
    with pytest.raises(TunnelRefused) as refused:
        dial(relay, target(instance))
    assert relay.tokens.token() not in shown(refused.value, caplog)


def test_a_forked_child_keeps_no_tunnel_open(relay: Relay, instance: str, backend: Backend) -> None:
    ended = threading.Event()
    tunnel = dial(relay, target(instance, backend(lambda near: (echo(near), ended.set()))))
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        tunnel.close()
        assert ended.wait(HANG_S)
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def test_many_tunnels_need_one_thread_and_leave_no_descriptor(relay: Relay, instance: str, backend: Backend) -> None:
    port = backend(echo)
    dial(relay, target(instance, port)).close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    opened = [dial(relay, target(instance, port)) for _ in range(20)]
    assert sum(thread.name == "iap-tunnels" for thread in threading.enumerate()) == 1
    for number, tunnel in enumerate(opened):
        tunnel.sendall(b"%d" % number)
        assert tunnel.recv(10) == b"%d" % number
        tunnel.close()
    del tunnel, opened

    def few() -> bool:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())) <= before

    until(few)


def reconnections(emulator: Emulator) -> list[str]:
    rows = emulator.request("GET", "/_emulator/requests")["requests"]
    return [row["path"] for row in rows if row["path"].startswith("/v4/reconnect")]


numbers = count(1)


def node(**network: Any) -> dict[str, Any]:
    shape = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}
    return {**shape, "networkConfig": {"network": "default", **network}}


HIDDEN = node(enableExternalIps=False)


@pytest.fixture(scope="module")
def hidden(shared_emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slice]:
    with slice_of(shared_emulator, "v5litepod-16", tmp_path_factory.mktemp("hidden"), **HIDDEN) as made:
        yield made


def test_the_api_shows_no_external_address(hidden: Slice, shared_emulator: Emulator) -> None:
    endpoints = shared_emulator.request("GET", f"{NODES}/{hidden.node}")["networkEndpoints"]
    assert endpoints == [{"ipAddress": "127.0.0.1", "port": 8470}] * 4


def test_a_program_of_this_machine_does_not_reach_them(hidden: Slice) -> None:
    with pytest.raises(Unreachable, match="worker0 to worker3 of 4 could not be reached"):
        hidden.fleet(dialer=Direct()).connect(0.2)


def test_a_machine_in_their_network_reaches_them(hidden: Slice, shared_emulator: Emulator) -> None:
    inside = tuple(WorkerAddress(w.index, "", w.port, w.host_key, "127.0.0.1") for w in hidden.workers)
    with shared_emulator.settings(client_inside=True):
        fleet = hidden.fleet(inside, dialer=Direct(internal=True))
        fleet.connect(HANG_S)
        assert fleet.run(3, ["true"]).rc == 0


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
def test_64_workers_connect_and_connect_again_through_a_bastion_that_drops_no_login(
    shared_emulator: Emulator, tmp_path: Path
) -> None:
    with slice_of(shared_emulator, "v5litepod-256", tmp_path, **HIDDEN) as many:
        fleet = many.fleet(dialer=Piped(through_bastion(shared_emulator, many.key, tmp_path), USER))
        for _ in range(2):
            fleet.connect(HANG_S)
            bastion = shared_emulator.request("GET", "/_emulator/bastion")
            assert bastion["dropped"] == 0
            assert bastion["most_starting"] > 1
            for connection in fleet._connections:
                connection.shut_socket()
            until(lambda: not any(connection._connection.is_connected for connection in fleet._connections))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
def test_a_worker_that_does_not_listen_yet_is_what_openssh_says_of_it_behind_a_bastion(
    hidden: Slice, tmp_path: Path
) -> None:
    with held_port() as port, pytest.raises(Unreachable, match=r"failed: channel 0: .*Connection refused"):
        booting = replace(hidden.workers[0], port=port)
        hidden.fleet([booting], dialer=Piped(through_bastion(hidden.emulator, hidden.key, tmp_path), USER)).connect(0.0)


@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
def test_a_bastion_that_refuses_the_key_is_quoted(hidden: Slice, tmp_path: Path) -> None:
    command = through_bastion(hidden.emulator, hidden.key, tmp_path, keys=[])
    with pytest.raises(Unreachable, match=r"the way to it failed: jump@127\.0\.0\.1: Permission denied"):
        hidden.fleet(hidden.workers[:1], dialer=Piped(command, USER)).connect(0.0)


@pytest.mark.parametrize(("setting", "body", "constraint"), [
    ("forbid_external_ips", node(enableExternalIps=True), "constraints/compute.vmExternalIpAccess"),
    ("require_os_login", node(enableExternalIps=False), "constraints/compute.requireOsLogin"),
])  # fmt: skip
def test_a_create_that_a_policy_forbids_names_the_constraint(
    shared_emulator: Emulator, setting: str, body: dict[str, Any], constraint: str
) -> None:
    queued = {"tpu": {"nodeSpec": [{"parent": NODES.removeprefix("/v2/").removesuffix("/nodes"), "nodeId": "no"}]}}
    queued["tpu"]["nodeSpec"][0]["node"] = body  # type: ignore[assignment]
    with shared_emulator.settings(**{setting: True}):
        for path, sent in (
            (f"{NODES}?nodeId=forbidden", body),
            (f"{NODES.replace('nodes', 'queuedResources')}?queuedResourceId=forbidden", queued),
        ):
            with pytest.raises(DaemonRefused, match=constraint) as refused:
                shared_emulator.request("POST", path, sent)
            assert refused.value.args
    assert all("forbidden" not in row["name"] for row in shared_emulator.status()["nodes"])


@pytest.mark.parametrize(("setting", "body"), [
    ("forbid_external_ips", node(enableExternalIps=False)),
    ("require_os_login", node() | {"metadata": {"enable-oslogin": "TRUE"}}),
])  # fmt: skip
def test_a_create_that_a_policy_allows_is_accepted(
    shared_emulator: Emulator, setting: str, body: dict[str, Any]
) -> None:
    name = f"allowed{next(numbers)}"
    with shared_emulator.settings(**{setting: True}):
        shared_emulator.request("POST", f"{NODES}?nodeId={name}", body)
    until(lambda: shared_emulator.request("GET", f"{NODES}/{name}")["state"] == "READY")
    shared_emulator.request("DELETE", f"{NODES}/{name}")


HOST, TOKEN, LOGIN, SECRET = "tunnel.cloudproxy.app", "ya29.the-token", "bWU6czNjcjN0IQ==", "s3cr3t%21"
TARGET = RelayTarget("p", "us-central1-a", "vm-0")
Behind = tuple[str, list[bytes], ScriptedRelay]  # the address of a proxy, what it heard, and the relay that it leads to


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "all_proxy", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    """A proxy that leads to a relay with a certificate for Google's host, signed by `ca.pem`."""
    context, _ = certificate(tmp_path, HOST)
    with scripted(echo_frames, context) as relay, proxy(relay.port) as (address, heads):
        yield address, heads, relay


def of_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Relay:
    """Return the relay that a command dials on Google's cloud, with a token of the test's."""
    monkeypatch.setattr("orchestrator.places.google.credentials.GoogleToken", lambda *_: FixedToken(TOKEN))
    return Reach(lambda: None, lambda _: tmp_path).relay()


@pytest.mark.parametrize("authorities", ["REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_tunnel_goes_through_the_proxy_of_the_environment_which_sees_no_token(
    behind: Behind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, authorities: str
) -> None:
    address, heads, relay = behind
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@{address}")
    monkeypatch.setenv(authorities, str(tmp_path / "ca.pem"))
    with dial(of_environment(monkeypatch, tmp_path), TARGET) as tunnel:
        tunnel.settimeout(HANG_S)
        tunnel.sendall(b"through the proxy")
        assert tunnel.recv(64) == b"through the proxy"
    (asked,) = heads
    assert asked.startswith(f"CONNECT {HOST}:443 HTTP/1.".encode())
    assert f"Proxy-Authorization: Basic {LOGIN}".encode() in asked and b"Bearer" not in asked
    ((path, headers),) = relay.requests
    assert headers["Authorization"] == f"Bearer {TOKEN}" and path.startswith("/v4/connect?project=p&")
    assert "Proxy-Authorization" not in headers
    assert not any(secret in caplog.text for secret in (TOKEN, LOGIN, SECRET, "s3cr3t"))


@pytest.mark.parametrize("answer", ["407 Proxy Authentication Required", "403 Forbidden", "502 Bad Gateway"])
def test_a_proxy_that_refuses_is_named_without_its_login(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: str
) -> None:
    caplog.set_level(logging.DEBUG)
    with proxy(0, f"HTTP/1.1 {answer}\r\n\r\n".encode()) as (address, _):
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@{address}")
        with pytest.raises(Unreachable) as error:
            dial(of_environment(monkeypatch, tmp_path), TARGET)
    assert f"the proxy {address} answers {answer[:3]} (HTTPS_PROXY)" in error.value.message
    assert not any(secret in shown(error.value, caplog) for secret in (TOKEN, LOGIN, SECRET, "s3cr3t"))


def test_a_certificate_that_is_not_trusted_ends_before_the_token_leaves(
    behind: Behind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address, _, relay = behind
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HTTPS_PROXY", f"http://{address}")
    with pytest.raises(Unreachable, match=r"certificate.*REQUESTS_CA_BUNDLE") as error:
        dial(of_environment(monkeypatch, tmp_path), TARGET)
    assert relay.requests == [] and TOKEN not in shown(error.value, caplog)


@pytest.mark.parametrize(
    "url", ["socks5://me:s3cr3t@127.0.0.1:1", "https://me:s3cr3t@127.0.0.1:1", "http://me:s3cr3t@"]
)
def test_a_proxy_of_another_kind_is_refused_without_its_login(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", url)
    with pytest.raises(Exception, match="of an unsupported kind") as error:
        of_environment(monkeypatch, tmp_path)
    assert "s3cr3t" not in shown(error.value, caplog)


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
@pytest.mark.parametrize("value", [HOST, ".cloudproxy.app", "*"])
def test_no_proxy_leaves_the_relay_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert of_environment(monkeypatch, tmp_path).proxy == "http://proxy.example:3128"
    monkeypatch.setenv(name, value)
    assert of_environment(monkeypatch, tmp_path).proxy is None


def test_without_variables_there_is_no_proxy_and_googles_relay_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = of_environment(monkeypatch, tmp_path)
    assert (found.url, found.proxy) == (GOOGLE, None)


def test_a_proxys_login_is_not_part_of_what_a_relay_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@proxy.example:3128")
    assert "s3cr3t" not in repr(of_environment(monkeypatch, tmp_path))
