"""What is said while workers are connected to: by which way, why the last try failed, and until when it goes on.

A VM that boots refuses connections for a minute, so these are words about a wait, and no warning.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchestrator.core.text.alike import worker_names
from orchestrator.errors import Unreachable
from orchestrator.remote.ssh.connection import WAY_FAILED, Connection


@dataclass(slots=True)
class Connecting:
    """Connects, one try a call. `say` receives a line `every_s` seconds after the start at the earliest, and then at most so
    often, if it differs from the one before. `until`: unix seconds. Safe to use from several threads.
    """

    way: str
    until: float
    say: Callable[[str], None]
    every_s: float
    clock: Callable[[], float] = time.monotonic
    _failures: dict[int, str] = field(default_factory=dict)  # of the workers that are not connected, by index
    _said: str = ""
    _said_at: float = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._said_at = self.clock()

    def connect(self, connection: Connection) -> None:
        """Try once to connect. Raises as `Connection.connect`."""
        try:
            connection.connect()
        except Unreachable as error:
            self.failed(connection.index, error)
            raise
        with self._lock:
            self._failures.pop(connection.index, None)

    def failed(self, worker: int, error: Unreachable) -> None:
        """Take the failure of a try, and say it if it is time to."""
        _name, _, why = error.message.partition(": ")
        with self._lock:
            self._failures[worker] = why.removeprefix(WAY_FAILED)
            workers, first = worker_names(sorted(self._failures)), self._failures[min(self._failures)]
            text = f"{workers} {self.way}: {first}, trying until {datetime.fromtimestamp(self.until, UTC):%H:%MZ}"
            if text == self._said or self.clock() - self._said_at < self.every_s:
                return
            self._said, self._said_at = text, self.clock()
        self.say(text)
