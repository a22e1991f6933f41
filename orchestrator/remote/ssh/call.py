"""One command on a worker: bytes in; answers, frames or raw bytes out.

A call that ends without an answer raises Unreachable when the connection was cut (a new connection may retry it) and
CommandFailed when the command failed (a retry does not help). Everything that is read has a size limit.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from orchestrator.core.text import json_text
from orchestrator.core.text.terminal import printable
from orchestrator.errors import CommandFailed, RemoteError, Unreachable
from orchestrator.remote.ssh import agent
from orchestrator.remote.ssh.connection import Connection

if TYPE_CHECKING:
    import paramiko

PREFIX = b"tpujob:"  # as in vm/frames.py; what a login shell prints before it is skipped
CHATTER_BYTES = 64 << 10
ANSWER_BYTES = 1 << 20
FRAME_BYTES = 1 << 20
PIECE_BYTES = 256 << 10
PACKET_HEAD_BYTES = 64  # that paramiko leaves in a packet for other things than data
STATUS_S = 5.0  # for the exit status, once the output has ended


@dataclass(frozen=True, slots=True)
class Completed:
    rc: int
    stdout: bytes
    stderr: bytes


class WorkerCall:
    """A running verb of the agent. A context manager: it closes the channel, and drops the connection after a cut."""

    def __init__(
        self, connection: Connection, *arguments: str, silence_s: float, timeout_s: float | None = None
    ) -> None:
        """Start the verb. Reads raise Unreachable after `silence_s` without data or `timeout_s` in all."""
        self.connection, self.arguments = connection, arguments
        self.silence_s = silence_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._buffer = bytearray()
        connection.connect()
        shipped = connection.agent_shipped
        command = agent.command(*arguments) if shipped else agent.first_command(*arguments)
        try:
            self._channel: paramiko.Channel = connection.channel(command, timeout_s=silence_s)
            if not shipped:
                self.send(agent.archive())
        except Unreachable:
            connection.drop()
            raise

    def __enter__(self) -> WorkerCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, Unreachable):
            self.connection.drop(self._channel.get_transport())

    def close(self) -> None:
        _close(self._channel)

    def send(self, data: bytes) -> None:
        """Send it packet by packet: `Channel.sendall` copies all of the rest for each packet."""
        packet_bytes = self._channel.out_max_packet_size - PACKET_HEAD_BYTES
        with self.connection.translating_errors():
            self._channel.settimeout(self._timeout())
            for at in range(0, len(data), packet_bytes):
                self._channel.sendall(data[at : at + packet_bytes])

    def end_input(self) -> None:
        with self.connection.translating_errors():
            self._channel.shutdown_write()

    def answer(self, limit: int = ANSWER_BYTES) -> dict[str, Any]:
        """Return the next `tpujob:{json}` answer of at most `limit` bytes. Raises CommandFailed for an error of the agent."""
        skipped = 0
        while True:
            line = self._line(limit)
            if line.startswith(PREFIX):
                break
            skipped += len(line)
            if skipped > CHATTER_BYTES:
                raise self._damage("the login shell prints without end before our command answers")
        self.connection.agent_shipped = True
        value = parse_json(line[len(PREFIX) :])
        if not isinstance(value, dict):
            raise self._damage(f"an answer that is not an object: {printable(repr(value))[:200]}")
        if "error" in value:
            raise self.failure(1, printable(str(value["error"])))
        return value

    def frames(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (kind, data) frames as vm/frames.py sends them, until the call ends. Callers check for the last one."""
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
        data = bytes(self._buffer[:size])
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

    def _receive(self) -> bytes:
        with self.connection.translating_errors():
            self._channel.settimeout(self._timeout())
            data: bytes = self._channel.recv(PIECE_BYTES)
            if not data:
                raise self._ended_early()
            return data

    def _timeout(self) -> float:
        left_s = self.silence_s if self._deadline is None else self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return min(left_s, self.silence_s)

    def _ended_early(self) -> CommandFailed:
        rc, why = _exit_status(self._channel), ""
        if rc is None:
            raise EOFError
        with contextlib.suppress(TimeoutError):
            self._channel.settimeout(1)
            why = _last_error_line(self._channel)
        return self.failure(rc, why)

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
    try:
        with connection.translating_errors():
            read_errors = (channel.recv_stderr, errors, cap_bytes, deadline)
            reader = threading.Thread(target=_read_up_to, args=read_errors, daemon=True)
            reader.start()
            channel.shutdown_write()
            _read_up_to(channel.recv, output, cap_bytes, deadline)
            reader.join(max(0.0, deadline - time.monotonic()))
            rc = _exit_status(channel) if time.monotonic() < deadline else None
            if rc is None:
                raise TimeoutError if channel.get_transport().is_active() else EOFError
            return Completed(rc, bytes(output), bytes(errors))
    finally:
        _close(channel)


def _close(channel: paramiko.Channel) -> None:
    """Close the channel; over a cut connection that fails, and the failure carries no news."""
    import paramiko

    with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
        channel.close()


def _read_up_to(receive: Callable[[int], bytes], into: bytearray, cap_bytes: int, deadline: float) -> None:
    with contextlib.suppress(TimeoutError):  # the exit status, or its absence, says what happened
        while (data := receive(PIECE_BYTES)) and time.monotonic() < deadline:
            into += data[: cap_bytes - len(into)]


def _exit_status(channel: paramiko.Channel) -> int | None:
    """Return the exit status; None when the connection was cut (paramiko reports -1) and the outcome is unknown."""
    channel.status_event.wait(STATUS_S)
    rc: int = channel.exit_status
    return None if not channel.exit_status_ready() or rc == -1 else rc


def _last_error_line(channel: paramiko.Channel) -> str:
    written = b""
    while len(written) < 4096 and (data := channel.recv_stderr(4096)):
        written += data
    return printable(written.decode(errors="replace").strip().rpartition("\n")[2])


def parse_json(line: bytes) -> Any:
    try:
        return json_text.loads(line)
    except ValueError as error:
        raise RemoteError(f"an answer that is not JSON: {printable(repr(line[:100]))}") from error
