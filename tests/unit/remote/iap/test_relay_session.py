"""What a tunnel sends again after a cut, and which answers of a relay it refuses."""

import struct
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.remote.iap import frames, relay_session
from orchestrator.remote.iap.frames import BadFrame
from orchestrator.remote.iap.relay_session import RelaySession, RelayTarget

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
    piece = data(b"x" * frames.MAX_DATA_BYTES)
    session.take(piece)
    session.take(piece)
    assert session.ack_due() is None
    session.take(data(b"y"))
    assert session.ack_due() == ack(2 * frames.MAX_DATA_BYTES + 1)
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


@pytest.mark.parametrize("early", [data(b"x"), ack(0), ack(0, tag=2)])
def test_nothing_comes_before_the_session(early: bytes) -> None:
    session = RelaySession(TARGET)
    session.begin()
    with pytest.raises(BadFrame):
        session.take(early)


def test_a_reconnection_is_answered_with_the_old_session() -> None:
    session = connected()
    session.begin()
    with pytest.raises(BadFrame):
        session.take(SID)


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=20), max_size=20),
    cuts=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 30)), max_size=6),
)
def test_bytes_are_exact_whatever_is_cut_and_lost(pieces: list[bytes], cuts: list[tuple[int, int]]) -> None:
    """A relay that loses the end of what was sent at each cut, and says how much it has."""
    session, arrived, sent = connected(), bytearray(), bytearray()
    lost = dict(cuts)
    for number, piece in enumerate(pieces):
        arrived += frames.parse(session.wrap(piece)).array  # type: ignore[union-attr]
        sent += piece
        if number in lost:
            confirmed = len(sent) - sum(len(m) - 6 for m in session.resend())
            del arrived[max(confirmed, len(arrived) - lost[number]) :]
            session.begin()
            session.take(ack(len(arrived), tag=2))
            for message in session.resend():
                arrived += frames.parse(message).array  # type: ignore[union-attr]
        elif number % 3 == 0:
            session.take(ack(len(arrived)))
    assert bytes(arrived) == bytes(sent)
