"""One command on every worker at once, its output as it comes. Each runs over the fleet's own connection to its worker.

A command is not repeated after a cut: it may have done its work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import HostKeyMismatch, RemoteError
from orchestrator.remote.ssh.connection import Connection
from orchestrator.remote.ssh.fan_out import FanOutAbandoned, Wakeup, fan_out
from orchestrator.remote.ssh.waves import Rules

if TYPE_CHECKING:
    import paramiko

AT_ONCE = 64
PIECE_BYTES = 1 << 16
STATUS_S = 5.0  # for the exit status, once the output has ended
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
        fan_out(
            self._connections, lambda connection: self._run_one(connection, line), self._wakeup, Rules(limit=AT_ONCE)
        )
        return self.ended

    def signal(self, name: str) -> None:
        """Send a signal such as `INT` to the command wherever it runs, and start it nowhere else."""
        with self._lock:
            self._signals.append(name)
            running = list(self._running.values())
        for channel in running:
            _send_signal(channel, name)

    def _run_one(self, connection: Connection, line: str) -> None:
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
                channel.shutdown_write()
                errors = threading.Thread(target=self._read, args=(index, True, channel.recv_stderr), daemon=True)
                errors.start()
                self._read(index, False, channel.recv)
                errors.join()
                channel.status_event.wait(STATUS_S)
                code = int(channel.exit_status)
        finally:
            with self._lock:
                del self._running[index]
                if not self._running:
                    self.idle.set()
        if code >= 0:
            return Ended(index, code)
        alive = channel.get_transport().is_active()
        return Ended(index, UNKNOWN, f"worker{index}: {'a signal ended it' if alive else 'the connection was cut'}")

    def _read(self, index: int, is_error: bool, receive: Callable[[int], bytes]) -> None:
        while piece := receive(PIECE_BYTES):
            self._output(index, is_error, piece)
        self._output(index, is_error, b"")


def _send_signal(channel: paramiko.Channel, name: str) -> None:
    """Send a `signal` request (RFC 4254, 6.9), which paramiko has no method for. A closed channel takes none."""
    import paramiko

    message = paramiko.Message()
    message.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("signal")
    message.add_boolean(False)
    message.add_string(name)
    if not channel.closed:
        channel.transport._send_user_message(message)
