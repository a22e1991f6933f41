"""Tunnels through the emulator's relay: exact bytes whatever is cut, refusals in their own words, and SSH on top."""

import contextlib
import gc
import logging
import os
import random
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError, TunnelRefused, Unreachable
from orchestrator.remote.iap.dialer import Relay, dial
from orchestrator.remote.iap.relay_session import RelayTarget
from tests.contract.conftest import Fault
from tests.contract.remote.fixture import NODES, USER, Slice, one  # noqa: F401
from tests.emulator_fixture import Emulator
from tests.ports import echo, held_port, read_all, serving
from tests.unit.places.stub_api import FixedToken
from tests.waiting import HANG_S, until

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
