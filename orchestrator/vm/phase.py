"""One phase of an attempt on a worker: its directory, what its files say, and whether its supervisor lives.

Alive means that the phase's lock is held: a kernel lock, dropped when the holder dies however it dies, so no process id
that could have been given to somebody else. exit.json appears before the lock is dropped; who finds neither a lock nor
exit.json knows that the phase was lost.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from pathlib import Path

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from typing import Any


def root() -> Path:
    return Path.home() / "tpujob"


def bundle_path(sha256: str) -> Path:
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError(f"bad sha256 {sha256!r}")
    return root() / "bundles" / f"{sha256}.tar.gz"


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def boot_s() -> float:
    """Seconds since this VM started, time asleep included; whatever its wall clock is set to."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class PhaseFiles:
    """`~/tpujob/runs/<attempt>/<phase>/`. `runs`: another place than `~/tpujob/runs` (see `here`)."""

    def __init__(self, attempt: str, phase: str, runs: str | None = None) -> None:
        for name in (attempt, phase):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
                raise ValueError(f"bad name {name!r}")
        self.attempt = attempt
        self.run = (root() / "runs" if runs is None else Path(runs)) / attempt
        self.dir = self.run / phase

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            value: dict[str, Any] = json.loads((self.dir / name).read_bytes())
        except FileNotFoundError:
            return None
        return value

    def write(self, name: str, value: dict[str, Any]) -> None:
        """The file appears whole and survives a power cut, or does not appear."""
        draft = self.dir / f".{name}"
        with open(draft, "w", opener=private) as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.dir / name)
        directory = os.open(self.dir, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def lock(self, how: int) -> int | None:
        """The file descriptor that holds the lock, or None if another holder excludes it."""
        fd = os.open(self.dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def alive(self) -> bool:
        if not (self.dir / "lock").exists():
            return False
        fd = self.lock(fcntl.LOCK_SH)
        if fd is None:
            return True
        os.close(fd)
        return False

    def status(self) -> dict[str, Any]:
        for _ in range(2):  # the end may come between two looks: after a dropped lock, look at exit.json again
            ended = self.read("exit.json")
            if ended is not None:
                return dict(ended, state="exited")
            started = self.read("started.json")
            if self.alive():
                return {"state": "running" if started else "starting"}
        if started is None:
            return {"state": "none", "why": "the worker has no record of this phase"}
        return {"state": "lost", "why": "the supervisor on the worker was killed, or the worker restarted"}
