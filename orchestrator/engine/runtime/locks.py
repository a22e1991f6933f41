"""Who is alive: one lock file per lease or attempt, held by the process that lives for it.

The kernel drops a file lock when its holder dies, however it dies, so nobody needs pids, heartbeats or clocks to tell.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

LOOK_AGAIN_S, LOOKS = 0.02, 1500  # half a minute: whoever asks `alive` for so long stands still


class FileLocks:
    """Claims of this process, and questions about those of others. `directory` is private to the user."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._held: dict[str, int | None] = {}

    def claim(self, lease_id: str) -> bool:
        """Hold the lock until `release` or death. True also when this process holds it already."""
        if lease_id in self._held:
            return True
        fd = self._open(lease_id)
        if fd is None:
            self._held[lease_id] = None
            return True
        for _ in range(LOOKS):
            if _locked(fd, fcntl.LOCK_EX):
                self._held[lease_id] = fd
                return True
            if not _locked(fd, fcntl.LOCK_SH):
                break  # another process lives for it
            fcntl.flock(fd, fcntl.LOCK_UN)  # only `alive` questions share the lock, for a moment
            time.sleep(LOOK_AGAIN_S)
        os.close(fd)
        return False

    def release(self, lease_id: str) -> None:
        fd = self._held.pop(lease_id, None)
        if fd is not None:
            # The file stays: unlinking it could leave two processes with a lock each, on the old file and on a new one.
            os.close(fd)

    def holds(self, lease_id: str) -> bool:
        """Does this very process hold the claim?"""
        return lease_id in self._held

    def alive(self, lease_id: str) -> bool:
        """Does a living process, this one included, hold the claim?"""
        if lease_id in self._held:
            return True
        try:
            fd = os.open(self._path(lease_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _locked(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)

    def _open(self, lease_id: str) -> int | None:
        """On a disk that cannot be written an old lock file will do. Where there is none (None) nobody holds the lock, and
        no teardown must fail for want of it; nothing is created there, as the ledger beside it cannot be written either.
        """
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            return os.open(self._path(lease_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            old = self._path(lease_id)
            return os.open(old, os.O_RDONLY | os.O_CLOEXEC) if old.exists() else None

    def _path(self, lease_id: str) -> Path:
        return self.directory / f"{lease_id.replace(' ', '-')}.lock"


def _locked(fd: int, how: int) -> bool:
    """Take the lock if nobody excludes us from it."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
