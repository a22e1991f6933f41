"""The agent of one connection, seen from here: streams to its verbs over one channel, as `vm/agent/serve.py` describes them.

No thread belongs to a link. Of the threads that wait for something, one reads what comes, for all streams, and the next one
goes on when it has what it waited for. Waits and sends raise what the channel raises (OSError, EOFError, paramiko's own), and
RemoteError for bytes that make no sense; `WorkerCall` translates them.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.errors import RemoteError
from orchestrator.hosts.ssh import agent
from orchestrator.text.terminal import printable

if TYPE_CHECKING:
    import paramiko

# As in vm/agent/serve.py.
HEADER = struct.Struct(">cII")
WINDOW_BYTES = 4 << 20
GRANT_BYTES = WINDOW_BYTES // 4
SIGNALS = 256

FRAME_PACKETS = 8  # of data, so that other streams have their turn
RECEIVE_BYTES = 256 << 10
PACKET_HEAD_BYTES = 64  # that paramiko leaves in a packet for other things than data
CHATTER_BYTES = 64 << 10
LOOK_S = 0.5  # a channel has one timeout for all its threads: each looks at its own deadline so often
CLOSE_S = 5.0  # for the end of a stream to leave: then the connection is closed, as half a frame may have left
STATUS_S = 5.0  # for the exit status, once the output has ended
ERROR_BYTES = 4096
PRINTING = "start-up files of its login shell (~/.bashrc) must not leave a program running that prints"


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How an agent ended. `rc` is None where the connection was cut, or the agent killed; `why` is printable."""

    rc: int | None
    why: str
    spoke: bool  # False: the worker could not start it


class AgentStream:
    """One verb. Used by one thread, but for `close`."""

    def __init__(self, link: AgentLink, number: int) -> None:
        self.link, self.number = link, number
        self.arrived = bytearray()
        self.credit = WINDOW_BYTES  # for what is sent
        self.exit_code: int | None = None  # 256 and more: a signal
        self.closed = False
        self._taken = 0  # since credit was granted last

    @property
    def ended(self) -> bool:
        return self.exit_code is not None or self.closed or self.link.end is not None

    def send(self, data: bytes, deadline: float) -> bool:
        """Send it as the verb takes it; return False when the verb has ended. Raises TimeoutError."""
        at = 0
        while at < len(data):
            size = self.link.reserve(self, min(len(data) - at, self.link.frame_bytes), deadline)
            if not size:
                return False
            self.link.write(b"D", self.number, size, data, at, deadline=deadline)
            at += size
        return True

    def end_input(self, deadline: float) -> None:
        if not self.ended:
            self.link.write(b"F", self.number, 0, deadline=deadline)

    def receive(self, deadline: float) -> bytearray:
        """Return what arrived since the last call; empty once the verb, or the agent, has ended. Raises TimeoutError."""
        self.link.wait(lambda: bool(self.arrived) or self.ended, deadline)
        data = self.link.take(self)
        self._taken += len(data)
        if self._taken >= GRANT_BYTES and not self.ended:
            self.link.write(b"C", self.number, self._taken, deadline=deadline)
            self._taken = 0
        return data

    def close(self) -> None:
        """End the stream; the verb notices when it writes or reads next. Callable from any thread."""
        self.link.close_stream(self)


class AgentLink:
    """Safe to use from several threads."""

    def __init__(self, channel: paramiko.Channel, name: str, timeout_s: float) -> None:
        """Start the agent on a new channel. `name` is that of the worker."""
        self.channel, self._name = channel, name
        self.end: AgentEnd | None = None
        self._changed = threading.Condition()  # reentrant
        self._writing = threading.Lock()
        self._streams: dict[int, AgentStream] = {}
        self._last_number = 0
        self._reading = False
        self._spoke = False
        self.moved_at = time.monotonic()  # when the worker last took or sent something
        self._damage: RemoteError | None = None
        self._buffer = bytearray()  # less than a frame
        self._into: AgentStream | None = None  # of the data frame that is being read
        self._left = 0  # bytes of that frame
        self._packet_bytes = channel.out_max_packet_size - PACKET_HEAD_BYTES
        self.frame_bytes = FRAME_PACKETS * self._packet_bytes - HEADER.size
        channel.settimeout(LOOK_S)
        channel.exec_command(agent.serve_command())
        with self._writing:
            self._write_all(agent.archive(), time.monotonic() + timeout_s)

    @property
    def transport(self) -> Any:
        return self.channel.get_transport()

    @property
    def alive(self) -> bool:
        return self.end is None and self._damage is None and not self.channel.closed

    def open(self, *arguments: str, deadline: float) -> AgentStream:
        """Start a verb."""
        request = "\0".join(arguments).encode()
        with self._writing:
            self._last_number += 1
            stream = AgentStream(self, self._last_number)
            self._streams[stream.number] = stream
            self._write_frame(HEADER.pack(b"R", stream.number, len(request)), request, 0, len(request), deadline)
        return stream

    def close_stream(self, stream: AgentStream) -> None:
        with self._changed:
            known = self._streams.pop(stream.number, None) is not None
            ends = stream.exit_code is None and known
            stream.closed = True
            self._changed.notify_all()
        if ends and self.alive:
            with contextlib.suppress(Exception):  # over a cut connection that fails, and the failure carries no news
                self.write(b"X", stream.number, 0, deadline=time.monotonic() + CLOSE_S)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.channel.close()

    def take(self, stream: AgentStream) -> bytearray:
        with self._changed:
            data, stream.arrived = stream.arrived, bytearray()
            return data

    # -- to the agent --

    def reserve(self, stream: AgentStream, most: int, deadline: float) -> int:
        """Wait for credit and take up to `most` bytes of it; 0: the verb has ended."""
        self.wait(lambda: stream.credit > 0 or stream.ended, deadline)  # outside the lock: it frees one level of it
        with self._changed:
            size = 0 if stream.ended else min(most, stream.credit)
            stream.credit -= size
            return size

    def write(self, kind: bytes, number: int, size: int, content: bytes = b"", at: int = 0, *, deadline: float) -> None:
        """Write one frame; with `content`, `size` bytes of it from `at` on."""
        with self._writing:
            self._write_frame(HEADER.pack(kind, number, size), content, at, at + size if content else at, deadline)

    def _write_frame(self, header: bytes, content: bytes, at: int, end: int, deadline: float) -> None:
        """Write it packet by packet: `Channel.sendall` copies all of the rest for each packet."""
        packet = header + content[at : min(end, at + self._packet_bytes - len(header))]
        at += len(packet) - len(header)
        self._write_all(packet, deadline)
        while at < end:
            self._write_all(content[at : min(end, at + self._packet_bytes)], deadline)
            at += self._packet_bytes

    def _write_all(self, data: bytes, deadline: float) -> None:
        try:
            while data:
                try:
                    sent = self.channel.send(data)
                except TimeoutError:
                    if time.monotonic() >= deadline:
                        raise
                else:
                    if not sent:
                        raise EOFError
                    data = data[sent:]
                    self.moved_at = time.monotonic()
        except BaseException:
            self.close()  # half a frame may be on its way
            raise

    # -- from the agent --

    def wait(self, ready: Callable[[], bool], deadline: float) -> None:
        """Wait until `ready()`. Raises TimeoutError at the deadline, and RemoteError once the agent has sent nonsense."""
        with self._changed:
            while not ready():
                if self._damage is not None:
                    raise self._damage
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                if self._reading:
                    self._changed.wait(left_s)
                else:
                    self._read_once()

    def _read_once(self) -> None:
        """Read what comes within LOOK_S, for all streams. Called with `_changed`, which is free meanwhile."""
        self._reading, end = True, None
        self._changed.release()
        try:
            data = self.channel.recv(RECEIVE_BYTES)
            self.moved_at = time.monotonic()
            end = None if data else self._how_it_ended()
        except TimeoutError:
            data = b""
        finally:
            self._changed.acquire()
            self._reading = False
            self._changed.notify_all()
        if end is not None:
            self.end = end
            return
        try:
            self._take_in(data)
        except RemoteError as damage:
            self._damage = damage
            self.close()

    def _how_it_ended(self) -> AgentEnd:
        """Paramiko reports -1 when the connection was cut, or a signal ended the agent: its outcome is unknown."""
        channel, errors = self.channel, b""
        channel.status_event.wait(STATUS_S)
        rc = channel.exit_status if channel.exit_status_ready() else -1
        until = time.monotonic() + STATUS_S
        with contextlib.suppress(TimeoutError):
            while rc != -1 and len(errors) < ERROR_BYTES and time.monotonic() < until:
                if not (more := channel.recv_stderr(ERROR_BYTES)):
                    break
                errors += more
        why = printable(errors.decode(errors="replace").strip().rpartition("\n")[2])
        return AgentEnd(None if rc == -1 else rc, why, self._spoke)

    def _take_in(self, data: bytes) -> None:
        """Give the frames in `data` to their streams. Raises RemoteError."""
        if self._buffer or not self._spoke:
            self._buffer += data
            data = bytes(self._buffer)
            self._buffer.clear()
        if not self._spoke:
            said = b"\ntpujob:%s\n" % agent.versioned_name().encode()
            _, found, after = data.partition(said)
            if not found:
                if len(data) > CHATTER_BYTES:
                    what = "the login shell prints without end before our command answers"
                    raise RemoteError(f"{self._name}: {what}", hint=PRINTING)
                self._buffer += data
                return
            self._spoke, data = True, after
        view, at, length = memoryview(data), 0, len(data)
        while at < length:
            if self._left:
                piece = view[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if self._into is not None:
                    self._into.arrived += piece
            elif length - at < HEADER.size:
                break
            else:
                self._frame(data[at : at + HEADER.size])
                at += HEADER.size
        self._buffer += view[at:]

    def _frame(self, header: bytes) -> None:
        kind, number, size = HEADER.unpack(header)
        stream = self._streams.get(number)
        room = WINDOW_BYTES - (len(stream.arrived) if stream is not None else 0)
        if kind == b"D" and size <= room and 0 < number <= self._last_number:
            self._into, self._left = stream, size
        elif kind == b"C" and size <= WINDOW_BYTES:
            if stream is not None:
                stream.credit += size
        elif kind == b"E" and size < 2 * SIGNALS:
            if stream is not None:
                stream.exit_code = size
                del self._streams[number]
        else:
            raise RemoteError(f"{self._name}: a damaged frame: {printable(repr(header))}", hint=PRINTING)
