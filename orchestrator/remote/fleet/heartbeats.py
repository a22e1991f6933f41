"""Heartbeats for the watchdog: a thread that keeps one `heartbeat` call to a worker open and writes lines to it.

It lives as long as its fleet and never ends it: failures are retried, and reported once when they last.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Callable

from orchestrator.errors import CommandFailed, HostKeyMismatch, Unreachable
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
        self._spoke_at = time.monotonic()
        self._complained = False
        self.thread = threading.Thread(target=self._run, name=f"beat-{connection.name}", daemon=True)

    def _run(self) -> None:
        try:
            while True:
                try:
                    self._speak()
                except Unreachable:  # whoever follows the job says so
                    self._failures += 1
                except CommandFailed as error:
                    self._failures += 1
                    self._complain(error)
                self._wakeup.sleep(min(RETRY_FIRST_S * 2 ** min(self._failures, 9), RETRY_MOST_S))
        except (FanOutAbandoned, HostKeyMismatch):  # the latter is raised by another call, whose caller handles it
            return

    def _complain(self, error: CommandFailed) -> None:
        """Once a beat was missed; a VM that has just booted may need a moment."""
        if not self._complained and time.monotonic() - self._spoke_at > 2 * self._every_s:
            self._complained = True
            self._on_notice(f"{self._connection.name} accepts no heartbeat, and may delete the slice: {error.message}")

    def _speak(self) -> None:
        """Until it fails. A failure closes this call only: whether the connection stands is not for us to say."""
        call = WorkerCall(self._connection, "heartbeat", silence_s=SILENCE_S)
        try:
            call.send(next(self._lines))
            call.answer()
            self._failures, self._spoke_at, self._complained = 0, time.monotonic(), False
            for line in self._lines:
                self._wakeup.sleep(self._every_s)
                call.send(line)
                self._spoke_at = time.monotonic()
        finally:
            call.close()
