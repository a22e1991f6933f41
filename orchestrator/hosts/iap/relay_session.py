"""The protocol of the relay: its messages, and what one tunnel has sent, received and may send again. No I/O, no clock.

Both ends count bytes in each direction. After a cut, `/reconnect` names the bytes that this end has; the relay answers with
those that it has, and `take` returns nothing until then. What the relay has not confirmed is kept for that, up to a limit: a
tunnel beyond it goes on, but cannot be resumed.

CONNECT_SUCCESS_SID (1) and DATA (4) carry an array with its length, RECONNECT_SUCCESS_ACK (2) and ACK (7) a number of bytes.
Other tags exist (10 is LONG_CLOSE) and carry nothing that a client needs: like Google's own clients, `parse` skips them.
"""

import struct
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import urlencode

SUBPROTOCOL = "relay.tunnel.cloudproxy.app"
MAX_DATA_BYTES = 16384  # of one DATA message
_TAG, _LENGTH, _COUNT = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")


class Tag(IntEnum):
    CONNECT_SUCCESS_SID = 1
    RECONNECT_SUCCESS_ACK = 2
    DATA = 4
    ACK = 7


class BadFrame(ValueError):
    """The relay broke its own protocol."""


@dataclass(frozen=True, slots=True)
class Frame:
    """`array` of the tags that carry one, else `count`."""

    tag: Tag
    array: bytes = b""
    count: int = 0


def data(content: bytes) -> bytes:
    """Return the DATA message of 1 to MAX_DATA_BYTES bytes."""
    assert 0 < len(content) <= MAX_DATA_BYTES, "one message holds 1 to 16,384 bytes"
    return _TAG.pack(Tag.DATA) + _LENGTH.pack(len(content)) + content


def ack(received: int) -> bytes:
    """Return the ACK message for `received` bytes since the tunnel began."""
    return _TAG.pack(Tag.ACK) + _COUNT.pack(received)


def parse(message: bytes) -> Frame | None:
    """Return the message's content; None for a tag that means nothing to a client. Raises BadFrame if it is too short."""
    try:
        (number,) = _TAG.unpack_from(message)
        if number in (Tag.RECONNECT_SUCCESS_ACK, Tag.ACK):
            return Frame(Tag(number), count=_COUNT.unpack_from(message, _TAG.size)[0])
        if number not in (Tag.CONNECT_SUCCESS_SID, Tag.DATA):
            return None
        (length,) = _LENGTH.unpack_from(message, _TAG.size)
    except struct.error as error:
        raise BadFrame(f"a message of {len(message)} bytes") from error
    array = message[_TAG.size + _LENGTH.size :][:length]
    if not 0 < length == len(array):
        raise BadFrame(f"an array of {len(array)} bytes that is said to have {length}")
    return Frame(Tag(number), array)


ACK_AFTER_BYTES = 2 * MAX_DATA_BYTES  # as gcloud: fewer would cost both ends time
UNCONFIRMED_MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class RelayTarget:
    """A port of a VM, by the names of Compute Engine."""

    project: str
    zone: str
    instance: str
    port: int = 22
    interface: str = "nic0"


class RelaySession:
    """Call `begin` for each WebSocket, `take` for each of its messages, `wrap` for what is to be sent."""

    def __init__(self, target: RelayTarget) -> None:
        self.target = target
        self.connected = False  # this WebSocket's first answer has come
        self.received = 0  # bytes, as are all counts
        self._sid: bytes | None = None
        self._acked = 0
        self._sent = self._confirmed = 0
        self._unconfirmed: deque[bytes] | None = deque()  # None: too much was left unconfirmed

    @property
    def begun(self) -> bool:
        """Whether the relay has opened the tunnel: only then there is something to resume."""
        return self._sid is not None

    @property
    def progress(self) -> int:
        """The bytes that arrived, in both directions together."""
        return self.received + self._confirmed

    @property
    def resumable(self) -> bool:
        return self.begun and self._unconfirmed is not None

    def begin(self) -> str:
        """Return path and query of the next WebSocket, below the relay's own path."""
        self.connected = False
        query: Mapping[str, object]
        if self._sid is None:
            where = {"zone": self.target.zone, "instance": self.target.instance, "interface": self.target.interface}
            query = {"project": self.target.project, "port": self.target.port, "newWebsocket": True, **where}
            return f"/connect?{urlencode(query)}"
        self._acked = self.received
        query = {"sid": self._sid, "ack": self.received, "newWebsocket": True, "zone": self.target.zone}
        return f"/reconnect?{urlencode(query)}"

    def take(self, message: bytes) -> bytes:
        """Return the bytes that this message brings from the VM; often none. Raises BadFrame."""
        frame = parse(message)
        if frame is None:
            return b""
        if (frame.tag in (Tag.DATA, Tag.ACK)) is not self.connected:
            raise BadFrame(f"{frame.tag.name} {'again' if self.connected else 'first'}")
        if frame.tag is Tag.DATA:
            self.received += len(frame.array)
            return frame.array
        if frame.tag is Tag.CONNECT_SUCCESS_SID:
            if self._sid is not None:
                raise BadFrame("another tunnel in answer to a reconnection")
            self._sid = frame.array
        elif self._sid is None:
            raise BadFrame("a reconnection to a tunnel that never began")
        else:
            self._confirm(frame.count)
        self.connected = True
        return b""

    def ack_due(self) -> bytes | None:
        """Return the ACK that is to be sent now; None: not yet."""
        if self.received - self._acked <= ACK_AFTER_BYTES:
            return None
        self._acked = self.received
        return ack(self.received)

    def wrap(self, content: bytes) -> bytes:
        """Return the message that sends `content`. It counts as sent, whether or not it arrives."""
        self._sent += len(content)
        if self._unconfirmed is not None:
            self._unconfirmed.append(content)
            if self._sent - self._confirmed > UNCONFIRMED_MOST_BYTES:
                self._unconfirmed = None
        return data(content)

    def resend(self) -> Iterator[bytes]:
        """Yield the messages that repeat what the relay lacks. Call it once a reconnection is `connected`."""
        for content in tuple(self._unconfirmed or ()):
            yield data(content)

    def _confirm(self, count: int) -> None:
        if not self._confirmed <= count <= self._sent:
            raise BadFrame(f"{count} bytes confirmed, after {self._confirmed}, of {self._sent} sent")
        left = count - self._confirmed
        self._confirmed = count
        while self._unconfirmed and left:
            first = self._unconfirmed.popleft()
            if len(first) > left:
                self._unconfirmed.appendleft(first[left:])
            left -= min(left, len(first))
