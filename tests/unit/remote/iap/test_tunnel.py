"""A tunnel with a relay that is a script: what it does when nothing can be sent, and what it says when it cannot open."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import WSMessage, WSMsgType

from orchestrator.errors import RemoteError, TunnelRefused, Unreachable
from orchestrator.remote.iap import tunnel as tunnel_module
from orchestrator.remote.iap.relay_session import RelaySession, RelayTarget
from orchestrator.remote.iap.tunnel import Closed, Tunnel
from tests.waiting import HANG_S

SID = struct.pack(">HI3s", 1, 3, b"sid")
OPENED = WSMessage(WSMsgType.BINARY, SID, None)


def resumed(count: int) -> WSMessage:
    return WSMessage(WSMsgType.BINARY, struct.pack(">HQ", 2, count), None)


def closing(code: int, reason: str = "") -> WSMessage:
    return WSMessage(WSMsgType.CLOSE, code, reason)


@dataclass
class Script:
    """One WebSocket: the messages that it brings, and whether it takes any. After them it waits."""

    messages: list[WSMessage]
    takes: bool = True
    sent: list[bytes] = field(default_factory=list)

    async def receive(self) -> WSMessage:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop(0)

    async def send_bytes(self, content: bytes) -> None:
        if not self.takes:
            await asyncio.Event().wait()
        self.sent.append(content)


@dataclass
class Played:
    """What became of a tunnel: the error of its opening, what came out of it, and the paths of its WebSockets."""

    error: BaseException | None
    output: bytes
    paths: list[str]
    fresh: list[bool]


def play(*scripts: Script | Exception, sends: bytes = b"", open_s: float = HANG_S, reconnect_s: float = 0.0) -> Played:
    """Run a tunnel over these WebSockets to its end; `sends` is written to its socket once it is open."""

    async def run() -> Played:
        rest, paths, fresh_ones = list(scripts), [], []

        @contextlib.asynccontextmanager
        async def open_websocket(path: str, *, fresh: bool) -> AsyncIterator[Any]:
            paths.append(path.partition("?")[0])
            fresh_ones.append(fresh)
            script = rest.pop(0)
            if isinstance(script, Exception):
                raise script
            yield script

        theirs, ours = socket.socketpair()
        ours.setblocking(False)
        session = RelaySession(RelayTarget("p", "z", "vm-0"))
        tunnel = Tunnel(session, ours, open_websocket, open_s=open_s, reconnect_s=reconnect_s)
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(tunnel.run(opened))
        with theirs:
            await asyncio.wait((opened,))
            if sends:
                theirs.sendall(sends)
            await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), HANG_S)
            theirs.setblocking(False)
            output = b""
            with contextlib.suppress(BlockingIOError):
                output = theirs.recv(65536)
        return Played(opened.exception(), output, paths, fresh_ones)

    return asyncio.run(run())


def data(content: bytes) -> WSMessage:
    return WSMessage(WSMsgType.BINARY, struct.pack(f">HI{len(content)}s", 4, len(content), content), None)


def test_a_relay_that_takes_nothing_counts_as_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_module, "SEND_S", 0.01)
    again = Script([resumed(0), closing(4010)])
    played = play(Script([OPENED], takes=False), again, sends=b"hello", reconnect_s=HANG_S)
    assert played.paths == ["/connect", "/reconnect"]
    assert again.sent[0] == struct.pack(">HI5s", 4, 5, b"hello")


@pytest.mark.parametrize(
    "message", [WSMessage(WSMsgType.TEXT, "hello", None), data(b"x")._replace(data=b"\0\4"), OPENED]
)
def test_a_relay_that_breaks_the_protocol_ends_the_tunnel(message: WSMessage) -> None:
    played = play(Script([OPENED, message]), reconnect_s=HANG_S)
    assert played.error is None and played.paths == ["/connect"]


def test_a_session_that_is_still_in_use_is_asked_for_again() -> None:
    cut = WSMessage(WSMsgType.CLOSED, None, None)
    played = play(
        Script([OPENED, cut]),
        Script([closing(4002, "session in use")]),
        Script([resumed(0), closing(1000)]),
        reconnect_s=HANG_S,
    )
    assert played.paths == ["/connect", "/reconnect", "/reconnect"]


def test_a_sign_in_that_the_relay_asks_for_in_the_middle_takes_a_fresh_token() -> None:
    played = play(Script([OPENED, closing(4004)]), Script([resumed(0), closing(1000)]), reconnect_s=HANG_S)
    assert (played.paths, played.fresh) == (["/connect", "/reconnect"], [False, True])


def test_a_token_is_renewed_once_and_not_for_ever() -> None:
    played = play(Closed(http=401), Closed(http=401))
    assert isinstance(played.error, TunnelRefused)
    assert played.fresh == [False, True]


@pytest.mark.parametrize(("end", "kind", "words"), [
    (closing(4033, "not authorized"), TunnelRefused, "vm-0: the relay of IAP refuses (4033: not authorized)"),
    (closing(4003), Unreachable, "vm-0: the relay of IAP refuses (4003)"),
    (closing(4000, "\x1b[31mred\x07"), Unreachable, "(4000: red"),
    (WSMessage(WSMsgType.CLOSED, None, None), Unreachable, "vm-0: the relay of IAP cut the connection"),
    (data(b"x"), Unreachable, "vm-0: the relay of IAP breaks its protocol: DATA first"),
])  # fmt: skip
def test_a_tunnel_that_does_not_open_says_why(end: WSMessage, kind: type[RemoteError], words: str) -> None:
    error = play(Script([end])).error
    assert isinstance(error, kind)
    assert words in error.message and error.message.isprintable()


def test_a_bug_is_no_refusal_of_the_relay() -> None:
    assert isinstance(play(ZeroDivisionError()).error, ZeroDivisionError)
