"""The locks of leases and attempts: one file each, locked by the thread that works on it.

The kernel drops a file lock when its process dies, however it dies, so that a lock needs no pid, heartbeat or clock.
Forked children close their copies (`orchestrator.system.fork`) and hold none of their parent's locks.
"""

import errno
import fcntl
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.system import fork

LOOK_AGAIN_S, LOOKS = 0.02, 1500  # half a minute: a question takes that long only in a process that stands still


@dataclass(frozen=True, slots=True)
class _Held:
    """A lock, for the thread that took it. A forked child's copy of this is not valid."""

    descriptor: fork.Descriptor | None  # None: there is no file to lock
    pid: int = field(default_factory=os.getpid)
    thread: threading.Thread = field(default_factory=threading.current_thread)

    @property
    def valid(self) -> bool:
        return self.pid == os.getpid() and self.thread.is_alive()

    @property
    def by_this_thread(self) -> bool:
        return self.pid == os.getpid() and self.thread is threading.current_thread()


NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system that has none


class FileLocks:
    """The locks of this process, and questions about those of others. `directory` is private to the user.

    A lock belongs to the thread that took it. To another thread it is as locked as to another process.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._held: dict[str, _Held] = {}

    def lock(self, name: str) -> bool:
        """Lock until `unlock`, `close` or the end of the thread. True also when this thread has locked it already."""
        self._drop_ended()
        if name in self._held:
            return self._held[name].by_this_thread
        descriptor = self._open(name)
        if descriptor is None:
            self._held[name] = _Held(None)
            return True
        for _ in range(LOOKS):
            if _locked(descriptor, fcntl.LOCK_EX, unknown=True):
                self._held[name] = _Held(descriptor)
                return True
            if not _locked(descriptor, fcntl.LOCK_SH, unknown=True):
                break  # it is locked by another process or thread
            fcntl.flock(descriptor.fileno(), fcntl.LOCK_UN)  # only questions share the lock, for a moment
            time.sleep(LOOK_AGAIN_S)
        descriptor.close()
        return False

    def check(self) -> None:
        """Raise ConfigError on a disk without file locks: what is created there would count as left by a dead process."""
        probe = self._open("probe")
        try:
            if probe is not None:
                fcntl.flock(probe.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            why = f"{self.directory} is on a disk without file locks (flock): {error.strerror}"
            raise ConfigError(why, hint="TPUJOB_STATE_DIR can name a directory on another disk") from error
        finally:
            if probe is not None:
                probe.close()

    def unlock(self, name: str) -> None:
        """Unlock what this thread has locked; any other lock stays."""
        if self.is_held(name):
            # The file stays: unlinking it could leave two processes with a lock each, on the old file and on a new one.
            self._drop(name)

    def is_held(self, name: str) -> bool:
        """Return whether this very thread holds the lock."""
        return name in self._held and self._held[name].by_this_thread

    def is_locked(self, name: str) -> bool:
        """Return whether a living thread of this process, or another process, holds the lock."""
        self._drop_ended()
        if name in self._held:
            return True
        try:
            asked = fork.Descriptor(lambda: os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return False
        try:
            return not _locked(asked, fcntl.LOCK_SH, unknown=False)  # a process that may live counts as one that does
        finally:
            asked.close()

    def close(self) -> None:
        """Unlock everything that this object has locked, in whichever thread."""
        for name in list(self._held):
            self._drop(name)

    def _drop(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None and held.descriptor is not None:
            held.descriptor.close()

    def _drop_ended(self) -> None:
        """A thread that has ended holds nothing, like a process; nor does the parent of a forked child, in the child."""
        for name, held in list(self._held.items()):
            if not held.valid:
                self._drop(name)

    def _open(self, name: str) -> fork.Descriptor | None:
        """On a disk that cannot be written an old lock file will do. Without one (None) nothing holds the lock: no teardown
        may fail for want of it. No file is created there, as the ledger beside it cannot be written either.
        """
        path = self._path(name)
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            return fork.Descriptor(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError:
            return fork.Descriptor(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC)) if path.exists() else None

    def _path(self, name: str) -> Path:
        return self.directory / f"{name.replace(' ', '-')}.lock"


def _locked(descriptor: fork.Descriptor, how: int, *, unknown: bool) -> bool:
    """Take the lock unless another process or thread excludes this one. On a disk without locks none does: see `check`.

    `unknown`: what to return for any other error, which is no answer.
    """
    try:
        fcntl.flock(descriptor.fileno(), how | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError) if unknown else error.errno in NO_LOCKS
    return True
