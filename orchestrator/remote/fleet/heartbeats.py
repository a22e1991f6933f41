"""Heartbeats for the watchdog: a thread that keeps one `heartbeat` call to a worker open and writes lines to it.

It runs until its fleet is closed, and never ends it: failures are retried, and reported once when they last.
"""

import itertools
import secrets
import threading
import time
from collections.abc import Callable

from orchestrator.errors import HostKeyMismatch, RemoteError, Unreachable
from orchestrator.remote.ssh.call import WorkerCall
from orchestrator.remote.ssh.connection import Connection
from orchestrator.remote.ssh.fan_out import FanOutAbandoned, Wakeup

SILENCE_S = 15.0  # for the answer to the first line
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 3.0


class Heartbeats:
    """The fleet starts `thread`; `wakeup` ends it."""

    def __init__(
        self, connection: Connection, every_s: float, wakeup: Wakeup, on_notice: Callable[[str], None]
    ) -> None:
        self._connection, self._every_s, self._wakeup, self._on_notice = connection, every_s, wakeup, on_notice
        # Two processes never send the same line.
        self._lines = (f"{secrets.token_hex(8)}-{number}\n".encode() for number in itertools.count(1))
        self._failures = 0  # in a row
        self._sent_at = time.monotonic()
        self._reported = False
        self.thread = threading.Thread(target=self._run, name=f"heartbeat-{connection.name}", daemon=True)

    def _run(self) -> None:
        try:
            while True:
                try:
                    self._send_lines()
                except (FanOutAbandoned, HostKeyMismatch):
                    raise
                except Unreachable:  # the follower of the job's log reports it
                    self._failures += 1
                except RemoteError as error:
                    self._failures += 1
                    self._report(error)
                self._wakeup.sleep(min(RETRY_FIRST_S * 2 ** min(self._failures, 9), RETRY_MOST_S))
        except (FanOutAbandoned, HostKeyMismatch):  # the latter is raised by another call, whose caller handles it
            return

    def _report(self, error: RemoteError) -> None:
        """Report a missed heartbeat, once; a VM that has just booted may need a moment."""
        if not self._reported and time.monotonic() - self._sent_at > 2 * self._every_s:
            self._reported = True
            self._on_notice(f"{self._connection.name} accepts no heartbeat, and may delete the slice: {error.message}")

    def _send_lines(self) -> None:
        """Send until it fails. A failure closes this call only; the connection may still work for others."""
        call = WorkerCall(self._connection, "heartbeat", silence_s=SILENCE_S)
        try:
            call.send(next(self._lines))
            call.answer()
            self._failures, self._sent_at, self._reported = 0, time.monotonic(), False
            for line in self._lines:
                self._wakeup.sleep(self._every_s)
                call.send(line)
                self._sent_at = time.monotonic()
        finally:
            call.close()
