"""What a user does on workers over the fleet's own connections: ports of one on this machine, and one command on all at once.

Each connection here is a channel of that connection; after a cut the next one opens it again. No more than a piece each way is
kept, so a slow reader slows down its own sender only; the end of one direction leaves the other one open.

A command is not repeated after a cut: it may have done its work.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.errors import HostKeyMismatch, RemoteError, Unreachable
from orchestrator.hosts.ssh.call import close, hear
from orchestrator.hosts.ssh.connection import Connection
from orchestrator.hosts.ssh.fan_out import FanOutAbandoned, Rules, Wakeup, fan_out
from orchestrator.system import fork
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    import paramiko
else:
    paramiko = Later("paramiko")


LOOK_S = 1.0  # between two looks whether the worker has closed a connection of which it ended its direction
AGAIN_S = 0.2  # until the next try to accept a connection, after a failure such as too many open files
AT_ONCE = 256  # connections of one port; more wait in the listener's queue
PIECE_BYTES = 1 << 15  # a packet of SSH
NO_PORT = (errno.EADDRINUSE, errno.EACCES)
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing is a reset, not the end of what was sent


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A port of a worker, and the port of 127.0.0.1 here that leads there."""

    worker: int
    port: int
    local: int
    why: str = ""  # why `local` is another port; empty also where it was asked for

    def __str__(self) -> str:
        why = f" ({self.port} {self.why})" if self.why else ""
        return f"http://127.0.0.1:{self.local} → worker{self.worker}:{self.port}{why}"


class PortForward:
    """A listener for one port of a worker, from its creation until `close`."""

    def __init__(
        self, connection: Connection, port: int, local: int | None, on_notice: Callable[[str], None], *, avoid: bool
    ) -> None:
        """`local` None: the same port, or another one if that is taken; `avoid`: another one in any case.

        Raises OSError for a `local` port that cannot be had.
        """
        self._connection, self._port, self._on_notice = connection, port, on_notice
        wanted = local if local is not None else 0 if avoid else port
        self._listener = _listen(wanted, or_any=local is None)
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._told: set[str] = set()
        self._closed = threading.Event()
        got = self._listener.getsockname()[1]
        why = "" if local is not None or got == port else "here is the worker's own" if avoid else "is in use here"
        self.forwarded = Forwarded(connection.index, port, got, why)
        threading.Thread(target=self._accept, name="forward", daemon=True).start()

    def close(self) -> None:
        """Close the listener. Connections end with the fleet's."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            try:
                sock, peer = self._listener.accept()
            except OSError as error:
                self._places.release()
                if self._closed.wait(AGAIN_S):
                    return
                self._tell(f"port {self.forwarded.local} here takes no connection: {error.strerror or error}")
                continue
            fork.close_in_child(sock)
            threading.Thread(target=self._serve, args=(sock, peer), name="forward", daemon=True).start()

    def _serve(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        try:
            with sock:
                channel = self._open(peer)
                if channel is None:
                    _reset(sock)
                else:
                    _carry(sock, channel)
        finally:
            self._places.release()

    def _open(self, peer: tuple[str, int]) -> paramiko.Channel | None:
        """Return a channel to the port; None if there is none: nothing listens there, or the worker cannot be reached."""
        for last in (False, True):
            try:
                return self._connection.open_port(self._port, peer)
            except RemoteError as error:
                if last or not isinstance(error, Unreachable):  # else it is perhaps a cut that was not noticed before
                    self._tell(error.message)
                    break
        return None

    def _tell(self, text: str) -> None:
        """Report a failure once: a browser asks again and again."""
        if text not in self._told:
            self._told.add(text)
            self._on_notice(text)


def _listen(port: int, *, or_any: bool) -> socket.socket:
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=AT_ONCE)
    except OSError as error:
        if not or_any or error.errno not in NO_PORT:
            raise
        listener = socket.create_server(("127.0.0.1", 0), backlog=AT_ONCE)
    fork.close_in_child(listener)
    return listener


def _carry(sock: socket.socket, channel: paramiko.Channel) -> None:
    """Carry bytes both ways until both have ended. A cut resets the socket: what came is not all."""
    up = threading.Thread(target=_send, args=(sock, channel), name="forward", daemon=True)
    up.start()
    try:
        while piece := channel.recv(PIECE_BYTES):
            sock.sendall(piece)
        if not channel.eof_received:
            raise ConnectionResetError
        sock.shutdown(socket.SHUT_WR)
        while up.is_alive() and not channel.closed:
            up.join(LOOK_S)
    except OSError:
        _reset(sock)
    finally:
        close(channel)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RD)  # wakes the other thread, and tells the other end nothing yet
        up.join()


def _send(sock: socket.socket, channel: paramiko.Channel) -> None:
    """Carry bytes from the socket to the worker, until it ends."""
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while piece := sock.recv(PIECE_BYTES):
            channel.sendall(piece)
        channel.shutdown_write()
        return
    close(channel)  # wakes the other thread


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


COMMANDS_AT_ONCE = 64
UNKNOWN = 255  # the exit code of ssh itself
Output = Callable[[int, bool, bytes], None]  # the worker, whether it is stderr, and the next piece; from any thread


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended on a worker. `why`: what kept it from ending by itself."""

    worker: int
    code: int
    why: str = ""


class SideBySide:
    """A run of one command line on several workers."""

    def __init__(self, connections: Sequence[Connection], wakeup: Wakeup, output: Output) -> None:
        self._connections, self._wakeup, self._output = connections, wakeup, output
        self._lock = threading.Lock()
        self._running: dict[int, paramiko.Channel] = {}
        self._signals: list[str] = []  # sent so far: a command that starts later is not to
        self.ended: list[Ended] = []  # in the order in which they ended
        self.idle = threading.Event()  # it runs nowhere
        self.idle.set()

    def run(self, line: str) -> list[Ended]:
        """Run the line in the login shell of each worker, without input, 64 at once. Raises HostKeyMismatch."""
        fan_out(self._connections, partial(self._run_one, line), self._wakeup, Rules(limit=COMMANDS_AT_ONCE))
        return self.ended

    def signal(self, name: str) -> None:
        """Send a signal such as `INT` to the command wherever it runs, and start it nowhere else."""
        with self._lock:
            self._signals.append(name)
            running = list(self._running.values())
        for channel in running:
            _send_signal(channel, name)

    def _run_one(self, line: str, connection: Connection) -> None:
        try:
            ended = self._result(connection, line)
        except (HostKeyMismatch, FanOutAbandoned):
            raise
        except RemoteError as error:
            ended = Ended(connection.index, UNKNOWN, error.message)
        with self._lock:
            self.ended.append(ended)

    def _result(self, connection: Connection, line: str) -> Ended:
        index = connection.index
        with self._lock:
            if self._signals:
                return Ended(index, UNKNOWN, f"worker{index}: not started")
        channel = connection.channel(line, timeout_s=None)
        with self._lock:
            self._running[index] = channel
            self.idle.clear()
            late = list(self._signals)
        for name in late:
            _send_signal(channel, name)
        try:
            with connection.translating_errors():
                code = hear(channel, partial(self._output, index))
        finally:
            with self._lock:
                del self._running[index]
                if not self._running:
                    self.idle.set()
        if code is not None:
            return Ended(index, code)
        alive = channel.get_transport().is_active()
        return Ended(index, UNKNOWN, f"worker{index}: {'a signal ended it' if alive else 'the connection was cut'}")


def _send_signal(channel: paramiko.Channel, name: str) -> None:
    """Send a `signal` request (RFC 4254, 6.9), which paramiko has no method for. A closed channel takes none."""
    message = paramiko.Message()
    message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("signal")
    message.add_boolean(False)
    message.add_string(name)
    if not channel.closed:
        channel.transport._send_user_message(message)
