"""One verb of a worker's agent: bytes in; answers, frames or raw bytes out. And short commands of the user.

A call that ends without an answer raises Unreachable when the connection was cut (a new connection may retry it) and
CommandFailed when the command failed (a retry does not help). Everything that is read has a size limit.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orchestrator.errors import CommandFailed, RemoteError, Unreachable
from orchestrator.hosts.ssh.agent_link import SIGNALS, STATUS_S
from orchestrator.hosts.ssh.connection import Connection
from orchestrator.system.lazy import Later
from orchestrator.text import parsing
from orchestrator.text.terminal import printable

if TYPE_CHECKING:
    import paramiko
else:
    paramiko = Later("paramiko")

PREFIX = b"tpujob:"  # as in vm/files/frames.py
ANSWER_BYTES = 1 << 20
FRAME_BYTES = 1 << 20
PIECE_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class Completed:
    rc: int
    stdout: bytes
    stderr: bytes


class WorkerCall:
    """A running verb of the agent. A context manager: it closes the stream, and drops the connection after a cut."""

    def __init__(self, connection: Connection, *arguments: str, silence_s: float) -> None:
        """Start the verb. Reads raise Unreachable after `silence_s` without data."""
        self.connection, self.arguments = connection, arguments
        self.silence_s = silence_s
        self._buffer = bytearray()
        connection.connect()
        try:
            agent = connection.agent(timeout_s=silence_s)
            with connection.translating_errors():
                self._stream = agent.open(*arguments, deadline=self._until())
        except Unreachable:
            connection.drop()
            raise

    def __enter__(self) -> WorkerCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cut = isinstance(error, Unreachable) and not (self._stream.closed or self._stream.exit_code is not None)
        self.close()
        if cut:
            self.connection.drop(self._stream.link.transport)

    def close(self) -> None:
        """Close the stream; the connection stays. Callable from any thread."""
        self._stream.close()

    def send(self, data: bytes) -> None:
        """Send it as the verb takes it. Raises CommandFailed when the verb has ended."""
        with self.connection.translating_errors():
            if not self._stream.send(data, self._until()):
                raise self._ended_early()

    def end_input(self) -> None:
        with self.connection.translating_errors():
            self._stream.end_input(self._until())

    def answer(self, limit: int = ANSWER_BYTES) -> dict[str, Any]:
        """Return the next `tpujob:{json}` answer of at most `limit` bytes. Raises CommandFailed for an error of the agent."""
        line = self._line(limit)
        if not line.startswith(PREFIX):
            raise self._damage(f"a line that is no answer: {printable(repr(line))[:200]}")
        value = parse_json(line[len(PREFIX) :])
        if not isinstance(value, dict):
            raise self._damage(f"an answer that is not an object: {printable(repr(value))[:200]}")
        if "error" in value:
            raise self.failure(1, printable(str(value["error"])))
        return value

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (kind, data) frames as vm/files/frames.py sends them, until the call ends. Callers check for the last one."""
        while True:
            header = self._line(64)
            kind, _, size = header.partition(b" ")
            if not size.strip().isdigit() or int(size) > FRAME_BYTES:
                raise self._damage(f"a damaged frame: {printable(repr(header))}")
            yield kind, self.read(int(size))

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        while len(self._buffer) < size:
            self._buffer += self._receive()
        with memoryview(self._buffer) as view:
            data = bytes(view[:size])
        del self._buffer[:size]
        return data

    def _line(self, limit: int) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > limit:
                raise self._damage(f"a line of more than {limit:,} bytes where an answer was expected")
            self._buffer += self._receive()
        return self.read(end + 1)

    def _receive(self) -> bytearray:
        with self.connection.translating_errors():
            data = self._stream.receive(self._until())
            if not data:
                raise self._ended_early()
            return data

    def _until(self) -> float:
        """Return when a wait that begins now ends, by the monotonic clock."""
        return time.monotonic() + self.silence_s

    def _ended_early(self) -> Exception:
        """Return Unreachable, EOFError or CommandFailed. A verb that a signal ended may be tried again."""
        code, end, name = self._stream.exit_code, self._stream.link.end, self.connection.name
        if code is not None:
            if code >= SIGNALS:
                return Unreachable(f"{name}: `{self.arguments[0]}` was ended by signal {code - SIGNALS}")
            return self.failure(code, "")
        if end is None or end.rc is None:
            return EOFError()
        if end.spoke:
            return Unreachable(f"{name}: its agent ended with {end.rc}{': ' * bool(end.why)}{end.why}")
        return self.failure(end.rc, end.why)

    def failure(self, rc: int, why: str) -> CommandFailed:
        """Return the error for a failed verb; `why` is printable."""
        return CommandFailed(list(self.arguments), rc, why, worker=self.connection.index)

    def _damage(self, what: str) -> RemoteError:
        return RemoteError(f"{self.connection.name}: {what}")


def run(connection: Connection, argv: Sequence[str], *, timeout_s: float, cap_bytes: int) -> Completed:
    """Run a short command; keep up to `cap_bytes` of each output stream. Raises Unreachable."""
    deadline = time.monotonic() + timeout_s
    channel = connection.channel(shlex.join(argv), timeout_s=timeout_s)
    output, errors = bytearray(), bytearray()

    def keep(is_error: bool, piece: bytes) -> None:
        kept = errors if is_error else output
        kept += piece[: cap_bytes - len(kept)]

    try:
        with connection.translating_errors():
            rc = hear(channel, keep, deadline)
            if rc is None:
                raise TimeoutError if channel.get_transport().is_active() else EOFError
            return Completed(rc, bytes(output), bytes(errors))
    finally:
        close(channel)


def hear(channel: paramiko.Channel, said: Callable[[bool, bytes], None], deadline: float = math.inf) -> int | None:
    """Give a command no input, and pass on what it says, to the end or the deadline. Return its exit status, None if unknown.

    `said`: whether it is stderr, and the next piece, which is empty at the end of each; called from two threads.
    """

    def listen(is_error: bool, receive: Callable[[int], bytes]) -> None:
        with contextlib.suppress(TimeoutError):  # the exit status, or its absence, says what happened
            while (piece := receive(PIECE_BYTES)) and time.monotonic() < deadline:
                said(is_error, piece)
        said(is_error, b"")

    channel.shutdown_write()
    errors = threading.Thread(target=listen, args=(True, channel.recv_stderr), daemon=True)
    errors.start()
    listen(False, channel.recv)
    errors.join(min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX))
    if time.monotonic() >= deadline:
        return None
    channel.status_event.wait(STATUS_S)
    rc: int = channel.exit_status
    return None if not channel.exit_status_ready() or rc == -1 else rc  # -1: paramiko's, when the connection was cut


def close(channel: paramiko.Channel) -> None:
    """Close the channel; over a cut connection that fails, and the failure carries no news."""
    with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
        channel.close()


def parse_json(line: bytes) -> Any:
    try:
        return parsing.loads(line)
    except ValueError as error:
        raise RemoteError(f"an answer that is not JSON: {printable(repr(line[:100]))}") from error
