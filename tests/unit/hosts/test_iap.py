"""A tunnel through the relay of IAP: the bytes of its messages, what is sent again after a cut, and what it refuses."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import WSMessage, WSMsgType
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import RemoteError, TunnelRefused, Unreachable
from orchestrator.hosts.iap import relay_session
from orchestrator.hosts.iap import tunnel as tunnel_module
from orchestrator.hosts.iap.relay_session import BadFrame, Frame, RelaySession, RelayTarget, Tag
from orchestrator.hosts.iap.tunnel import Closed, Tunnel
from tests.waiting import HANG_S


@pytest.mark.parametrize(("message", "frame"), [
    (struct.pack(">HI3s", 1, 3, b"sid"), Frame(Tag.CONNECT_SUCCESS_SID, array=b"sid")),
    (struct.pack(">HQ", 2, 77), Frame(Tag.RECONNECT_SUCCESS_ACK, count=77)),
    (struct.pack(">HI2s", 4, 2, b"ab"), Frame(Tag.DATA, array=b"ab")),
    (struct.pack(">HI2sx", 4, 2, b"ab"), Frame(Tag.DATA, array=b"ab")),
    (struct.pack(">HQ", 7, 5), Frame(Tag.ACK, count=5)),
])  # fmt: skip
def test_each_message_of_the_relay_is_read(message: bytes, frame: Frame) -> None:
    assert relay_session.parse(message) == frame


@pytest.mark.parametrize("tag", [0, 3, 8, 10, 65535])
def test_a_message_that_means_nothing_to_a_client_is_skipped(tag: int) -> None:
    assert relay_session.parse(struct.pack(">HII", tag, 4003, 0)) is None


@pytest.mark.parametrize(
    "message", [b"", b"\0", b"\0\4\0", b"\0\4\0\0\0\5hi", b"\0\4\0\0\0\0", b"\0\7\0\0\0\1", b"\0\1"]
)
def test_a_message_that_is_cut_short_is_an_error(message: bytes) -> None:
    with pytest.raises(BadFrame):
        relay_session.parse(message)


TARGET = RelayTarget("my-project", "us-central1-a", "t1v-n-0a-w-0")
SID = struct.pack(">HI5s", 1, 5, b"s/i&d")


def data(content: bytes) -> bytes:
    return struct.pack(f">HI{len(content)}s", 4, len(content), content)


def ack(count: int, tag: int = 7) -> bytes:
    return struct.pack(">HQ", tag, count)


def connected() -> RelaySession:
    session = RelaySession(TARGET)
    session.begin()
    session.take(SID)
    return session


def test_a_new_tunnel_names_the_instance_as_gcloud_does() -> None:
    path = urlsplit(RelaySession(TARGET).begin())
    assert path.path == "/connect"
    assert {name: value for name, [value] in parse_qs(path.query).items()} == {
        "project": "my-project",
        "port": "22",
        "newWebsocket": "True",
        "zone": "us-central1-a",
        "instance": "t1v-n-0a-w-0",
        "interface": "nic0",
    }


def test_a_reconnection_names_the_session_and_what_has_arrived() -> None:
    session = connected()
    session.take(data(b"twelve bytes"))
    path = urlsplit(session.begin())
    assert path.path == "/reconnect"
    found = {name: value for name, [value] in parse_qs(path.query).items()}
    assert found == {"sid": "s/i&d", "ack": "12", "newWebsocket": "True", "zone": "us-central1-a"}


def test_bytes_of_the_relay_arrive_in_order() -> None:
    session = connected()
    assert [session.take(data(piece)) for piece in (b"a", b"bc", b"d")] == [b"a", b"bc", b"d"]
    assert session.received == 4


def test_an_ack_is_due_once_more_than_two_messages_are_not_acknowledged() -> None:
    session = connected()
    piece = data(b"x" * relay_session.MAX_DATA_BYTES)
    session.take(piece)
    session.take(piece)
    assert session.ack_due() is None
    session.take(data(b"y"))
    assert session.ack_due() == ack(2 * relay_session.MAX_DATA_BYTES + 1)
    assert session.ack_due() is None


def test_a_cut_resends_what_was_not_confirmed_and_nothing_else() -> None:
    session = connected()
    for piece in (b"first", b"second", b"third"):
        session.wrap(piece)
    session.take(ack(7))
    session.begin()
    session.take(ack(9, tag=2))
    assert list(session.resend()) == [data(b"nd"), data(b"third")]


def test_a_tunnel_with_too_much_unconfirmed_goes_on_and_cannot_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_session, "UNCONFIRMED_MOST_BYTES", 10)
    session = connected()
    session.wrap(b"0123456789")
    assert session.resumable
    session.wrap(b"more")
    session.take(ack(14))
    assert not session.resumable
    assert session.wrap(b"on") == data(b"on")


@pytest.mark.parametrize(
    "lie",
    [ack(6), ack(2), SID, ack(5, tag=2), b"\0\4\0\0"],
    ids=["more than was sent", "less than before", "a second session", "an answer to no question", "half a message"],
)
def test_a_relay_that_lies_ends_the_session(lie: bytes) -> None:
    session = connected()
    session.wrap(b"abcde")
    session.take(ack(3))
    with pytest.raises(BadFrame):
        session.take(lie)


@pytest.mark.parametrize(("again", "lie"), [(False, data(b"x")), (False, ack(0)), (False, ack(0, tag=2)), (True, SID)])
def test_nothing_comes_before_the_session_and_no_other_one_after_a_reconnection(again: bool, lie: bytes) -> None:
    session = connected() if again else RelaySession(TARGET)
    session.begin()
    with pytest.raises(BadFrame):
        session.take(lie)


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=20), max_size=20),
    cuts=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 30)), max_size=6),
)
def test_bytes_are_exact_whatever_is_cut_and_lost(pieces: list[bytes], cuts: list[tuple[int, int]]) -> None:
    """A relay that loses the end of what was sent at each cut, and says how much it has."""
    session, arrived, sent = connected(), bytearray(), bytearray()
    lost = dict(cuts)
    for number, piece in enumerate(pieces):
        arrived += relay_session.parse(session.wrap(piece)).array  # type: ignore[union-attr]
        sent += piece
        if number in lost:
            confirmed = len(sent) - sum(len(m) - 6 for m in session.resend())
            del arrived[max(confirmed, len(arrived) - lost[number]) :]
            session.begin()
            session.take(ack(len(arrived), tag=2))
            for message in session.resend():
                arrived += relay_session.parse(message).array  # type: ignore[union-attr]
        elif number % 3 == 0:
            session.take(ack(len(arrived)))
    assert bytes(arrived) == bytes(sent)


SHORT_SID = struct.pack(">HI3s", 1, 3, b"sid")
OPENED = WSMessage(WSMsgType.BINARY, SHORT_SID, None)


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


def data_message(content: bytes) -> WSMessage:
    return WSMessage(WSMsgType.BINARY, struct.pack(f">HI{len(content)}s", 4, len(content), content), None)


def test_a_relay_that_takes_nothing_counts_as_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_module, "SEND_S", 0.01)
    again = Script([resumed(0), closing(4010)])
    played = play(Script([OPENED], takes=False), again, sends=b"hello", reconnect_s=HANG_S)
    assert played.paths == ["/connect", "/reconnect"]
    assert again.sent[0] == struct.pack(">HI5s", 4, 5, b"hello")


@pytest.mark.parametrize(
    "message", [WSMessage(WSMsgType.TEXT, "hello", None), data_message(b"x")._replace(data=b"\0\4"), OPENED]
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
    (data_message(b"x"), Unreachable, "vm-0: the relay of IAP breaks its protocol: DATA first"),
])  # fmt: skip
def test_a_tunnel_that_does_not_open_says_why(end: WSMessage, kind: type[RemoteError], words: str) -> None:
    error = play(Script([end])).error
    assert isinstance(error, kind)
    assert words in error.message and error.message.isprintable()


def test_a_bug_is_no_refusal_of_the_relay() -> None:
    assert isinstance(play(ZeroDivisionError()).error, ZeroDivisionError)
