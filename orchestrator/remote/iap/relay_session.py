"""What one tunnel has sent, received and may send again, over all of its WebSockets. No I/O, no clock.

Both ends count bytes in each direction. After a cut, `/reconnect` names the bytes that this end has; the relay answers with
those that it has, and `take` returns nothing until then. What the relay has not confirmed is kept for that, up to a limit: a
tunnel beyond it goes on, but cannot be resumed.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from orchestrator.remote.iap import frames
from orchestrator.remote.iap.frames import BadFrame, Tag

ACK_AFTER_BYTES = 2 * frames.MAX_DATA_BYTES  # as gcloud: fewer would cost both ends time
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
        frame = frames.parse(message)
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
        return frames.ack(self.received)

    def wrap(self, content: bytes) -> bytes:
        """Return the message that sends `content`. It counts as sent, whether or not it arrives."""
        self._sent += len(content)
        if self._unconfirmed is not None:
            self._unconfirmed.append(content)
            if self._sent - self._confirmed > UNCONFIRMED_MOST_BYTES:
                self._unconfirmed = None
        return frames.data(content)

    def resend(self) -> Iterator[bytes]:
        """Yield the messages that repeat what the relay lacks. Call it once a reconnection is `connected`."""
        for content in tuple(self._unconfirmed or ()):
            yield frames.data(content)

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
