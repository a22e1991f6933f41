"""One phase of an attempt on a worker: its directory, its files, its processes, and whether its supervisor is alive.

Alive means that the phase's lock is held: a kernel lock that drops with its holder, unlike a process id, which may be reused.
exit.json appears before the lock drops; neither a lock nor exit.json means that the phase was lost.

A process belongs to a phase by its environment, by its session, or by descent from one that does. One of the three holds
even after clearing the environment or calling setsid, as long as the supervisor is alive: it is a subreaper, so that orphans
become its children. Used by the supervisor, and by `stop` for what a killed supervisor left.
"""

# Paths are text: pathlib takes 5 ms to import, on each of many workers.
# ruff: noqa: PTH105, PTH108, PTH110, PTH111, PTH116, PTH118, PTH123, PTH208
from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
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


MARK = "TPUJOB_PHASE_DIR"  # in the environment of everything a phase starts; its value is unique on the machine
STUCK_S = 10.0  # a process that outlives SIGKILL for so long hangs in the kernel


class Process:
    def __init__(self, pid: int, parent: int, session: int, *, marked: bool) -> None:
        self.pid, self.parent, self.session, self.marked = pid, parent, session, marked


def processes(phase: str) -> list[Process]:
    """Return every process of this user except zombies; marked are those of the phase with this directory."""
    if not os.path.exists("/proc/self/stat"):
        return _processes_from_ps()
    found, mark, user = [], f"{MARK}={phase}".encode(), os.geteuid()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != user:
                continue
            stat = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            environ = _read(f"/proc/{name}/environ")
        except OSError:  # it has just ended, or is not ours to look at
            continue
        if stat[0] not in (b"Z", b"X"):
            found.append(Process(int(name), int(stat[1]), int(stat[3]), marked=mark in environ.split(b"\0")))
    return found


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _processes_from_ps() -> list[Process]:
    """Without /proc the environment is unreadable: process groups and descent decide."""
    import subprocess  # only without /proc

    said = subprocess.check_output(["ps", "-x", "-o", "pid=,ppid=,pgid=,stat="], universal_newlines=True)
    rows = [line.split() for line in said.splitlines()]
    return [Process(int(row[0]), int(row[1]), int(row[2]), marked=False) for row in rows if not row[3].startswith("Z")]


def text(path: str) -> str:
    """Return what a file of /proc says; "" where it is gone, or not ours to look at."""
    try:
        with open(path, errors="replace") as file:
            return file.read(4 << 20)
    except OSError:
        return ""


def members(phase: str, *, session: int = 0, supervisor: int = 0) -> set[int]:
    everyone = processes(phase)
    inside = {p.pid for p in everyone if p.marked}
    inside |= {p.pid for p in everyone if (session and p.session == session) or (supervisor and p.parent == supervisor)}
    born = inside
    while born:
        born = {p.pid for p in everyone if p.parent in inside} - inside
        inside |= born
    return inside - {os.getpid()}


def end(find: Callable[[], set[int]], grace_s: float) -> bool:
    """Send SIGTERM once to all that `find` returns, after `grace_s` SIGKILL until none is left; return whether none is.

    Processes that start after SIGTERM are left alone until then: the job may be saving its work.
    """
    deadline = time.monotonic() + grace_s
    _signal(find(), signal.SIGTERM)
    while found := find():
        if time.monotonic() > deadline + STUCK_S:
            return False
        if time.monotonic() >= deadline:
            _signal(found, signal.SIGKILL)
        time.sleep(0.02)
    return True


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
