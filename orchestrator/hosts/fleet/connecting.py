"""Connecting to workers: what this process may use of its machine for it, and what is said meanwhile.

A VM that boots refuses connections for a minute, so these are words about a wait, and no warning.
"""

import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchestrator.errors import ConfigError, Unreachable
from orchestrator.hosts.ssh.connection import WAY_FAILED, Connection
from orchestrator.system import open_files
from orchestrator.text.terminal import worker_names


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


SPARE_FILES = 64  # for everything else than connections
MEMORY_MIB, WORKER_MIB = 512, 16  # of address space: with 300 a run of one worker fails, with 400 it does not


def check_limits(workers: int, files_each: int) -> None:
    """Raise the soft limits of open files and of memory to what so many workers need. Raises ConfigError if they stay lower."""
    who = f"a run on {workers} worker{'s'[: workers != 1]}" if workers else "tpujob"
    wanted = open_files.in_use() + files_each * workers + SPARE_FILES
    if (limit := open_files.allow(wanted)) < wanted:
        raise ConfigError(
            f"{who} needs {wanted} open files here, and this process may open {limit}",
            hint="raise the hard limit of open files; `ulimit -Hn` shows it",
        )
    wanted = MEMORY_MIB + WORKER_MIB * workers
    if (limit := open_files.allow(wanted << 20, resource.RLIMIT_AS) >> 20) < wanted:
        raise ConfigError(
            f"{who} needs {wanted} MiB of memory here, and this process may use {limit}",
            hint="raise its limit; `ulimit -Hv` shows it in KiB",
        )
