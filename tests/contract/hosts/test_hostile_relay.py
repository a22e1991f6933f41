"""Relays that break the protocol, and servers behind a tunnel or a command that never become SSH: the client ends in time."""

import asyncio

import pytest
from aiohttp import web

from orchestrator.errors import TunnelRefused, Unreachable
from orchestrator.hosts.iap.dialer import Relay, dial
from orchestrator.hosts.iap.relay_session import RelayTarget
from orchestrator.hosts.ssh import connection
from orchestrator.hosts.ssh.dial import Relayed
from orchestrator.hosts.ssh.proxy_command import Piped
from tests.contract.hosts.fixture import USER, Slice, one  # noqa: F401
from tests.contract.hosts.scripted_relay import ScriptedRelay, data, resumed, scripted, sid
from tests.contract.hosts.test_dial import proxies
from tests.fakes.api import FixedToken
from tests.waiting import read_all, until

pytestmark = pytest.mark.ci
TARGET = RelayTarget("p", "us-central1-a", "vm-0")
NO_SERVER = "no SSH server answers|no answer in time"  # the latter where a slow machine brings no byte in HANDSHAKE_S


def relay_of(server: ScriptedRelay) -> Relay:
    return Relay(FixedToken("secret-token"), server.url, emulated=True)


async def forever(_: ScriptedRelay, websocket: web.WebSocketResponse) -> None:
    await asyncio.Event().wait()


def test_a_redirection_is_not_followed_and_nothing_goes_there() -> None:
    with scripted(forever) as elsewhere:

        async def redirect(_: ScriptedRelay, request: web.Request) -> web.StreamResponse:
            raise web.HTTPFound(f"http://127.0.0.1:{elsewhere.port}{request.path_qs}")

        with scripted(forever, before=redirect) as server, pytest.raises(TunnelRefused, match="302"):
            dial(relay_of(server), TARGET)
        assert elsewhere.requests == []


def test_a_huge_message_ends_the_tunnel() -> None:
    async def play(_: ScriptedRelay, websocket: web.WebSocketResponse) -> None:
        await websocket.send_bytes(sid())
        await websocket.send_bytes(data(bytes(1 << 21)))
        await asyncio.Event().wait()

    with scripted(play) as server, dial(relay_of(server), TARGET, reconnect_s=0.3) as tunnel:
        assert read_all(tunnel) == b""


def test_a_relay_that_resumes_and_cuts_again_and_again_is_given_up_in_time() -> None:
    async def play(server: ScriptedRelay, websocket: web.WebSocketResponse) -> None:
        await websocket.send_bytes(sid() if len(server.requests) == 1 else resumed(0))
        if websocket._req is not None and websocket._req.transport is not None:
            websocket._req.transport.abort()

    with scripted(play) as server, dial(relay_of(server), TARGET, reconnect_s=1.0) as tunnel:
        assert read_all(tunnel) == b""
        assert len(server.requests) < 20


def test_a_relay_that_never_becomes_ssh_is_left_in_time(
    one: Slice,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def drip(_: ScriptedRelay, websocket: web.WebSocketResponse) -> None:
        await websocket.send_bytes(sid())
        while True:
            await websocket.send_bytes(data(b"x"))
            await asyncio.sleep(0.05)

    monkeypatch.setattr(connection, "HANDSHAKE_S", 0.5)
    with scripted(drip) as server:
        dialer = Relayed(relay_of(server), "p", "us-central1-a")
        with pytest.raises(Unreachable, match=NO_SERVER):
            one.fleet(known_hosts="drip_hosts", dialer=dialer).connect(0.0)


# -- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "words"), [
    ("sleep 1000", "no answer in time"), ("cat /dev/zero", NO_SERVER),
    ("sh -c 'while :; do printf x; sleep 0.05; done'", NO_SERVER), ("yes", "worker0"),
], ids=["silent", "garbage", "drip", "lines"])  # fmt: skip
def test_a_command_that_never_becomes_ssh_is_ended_in_time(
    one: Slice,  # noqa: F811
    command: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pytest.TempPathFactory,
) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_S", 0.5)
    marked = f"env MARK={tmp_path} {command}"
    with pytest.raises(Unreachable, match=words):
        one.fleet(known_hosts="never_hosts", dialer=Piped(marked, USER)).connect(0.0)
    until(lambda: not proxies(tmp_path), "the end of the command")  # type: ignore[arg-type]
