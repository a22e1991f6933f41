"""One phase of an attempt on a worker: its directory, its files, and whether its supervisor is alive.

Alive means that the phase's lock is held: a kernel lock that drops with its holder, unlike a process id, which may be reused.
exit.json appears before the lock drops; neither a lock nor exit.json means that the phase was lost.
"""

# Paths are text: pathlib takes 5 ms to import, on each of many workers.
# ruff: noqa: PTH105, PTH108, PTH110, PTH111, PTH118, PTH123
from __future__ import annotations

import fcntl
import json
import os
import time

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from typing import Any


ROOM_BYTES = 4096
LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")


def root() -> str:
    return os.path.expanduser("~/tpujob")


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def boot_s() -> float:
    """Return the seconds since this VM started, suspended time included; independent of the wall clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _fill(path: str, text: str, *, durably: bool = True) -> None:
    """Make this the text of the file, in the blocks that it has if it exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(text)
        file.truncate()
        file.flush()
        if durably:
            os.fsync(file.fileno())


class PhaseFiles:
    """`~/tpujob/runs/<attempt>/<phase>/`. `runs`: another place than `~/tpujob/runs` (see `local`)."""

    def __init__(self, attempt: str, phase: str, runs: str | None = None) -> None:
        for name in (attempt, phase):
            if not name or not LETTERS.issuperset(name) or name[0] in "_.-":
                raise ValueError(f"bad name {name!r}")
        self.attempt = attempt
        self.run = os.path.join(f"{root()}/runs" if runs is None else runs, attempt)
        self.dir = os.path.join(self.run, phase)

    def path(self, name: str) -> str:
        return os.path.join(self.dir, name)

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            with open(self.path(name), "rb") as file:
                value: dict[str, Any] = json.loads(file.read())
        except FileNotFoundError:
            return None
        return value

    def write(self, name: str, value: dict[str, Any]) -> None:
        """Write a file atomically and durably; on a full disk into the room that `reserve` kept."""
        draft, room = self.path(f".{name}.{os.getpid()}"), self._room(name)  # another process may write the same file
        try:
            _fill(draft, json.dumps(value))
        except OSError:
            if not os.path.exists(room):
                raise
            if os.path.exists(draft):
                os.unlink(draft)
            _fill(room, json.dumps(value))
            draft = room
        os.replace(draft, self.path(name))
        directory = os.open(self.dir, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def reserve(self, *names: str) -> None:
        """Keep room on the disk for files that are written later, when the job may have filled it."""
        for name in names:
            _fill(self._room(name), " " * ROOM_BYTES, durably=False)

    def _room(self, name: str) -> str:
        return self.path(f".room.{name}")

    def lock(self, how: int) -> int | None:
        """Take the lock; return its file descriptor, or None if another holder excludes it."""
        fd = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def alive(self) -> bool:
        if not os.path.exists(self.path("lock")):
            return False
        fd = self.lock(fcntl.LOCK_SH)
        if fd is None:
            return True
        os.close(fd)
        return False

    def status(self) -> dict[str, Any]:
        for _ in range(2):  # the phase may end in between: after a dropped lock, read exit.json again
            ended = self.read("exit.json")
            if ended is not None:
                return dict(ended, state="exited")
            started = self.read("started.json")
            if self.alive():
                return {"state": "running" if started else "starting"}
        if started is None:
            return {"state": "none", "why": "the worker has no record of this phase"}
        return {"state": "lost", "why": "the supervisor on the worker was killed, or the worker restarted"}
