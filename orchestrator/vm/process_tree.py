"""Finds and ends every process that a phase started.

A process belongs to a phase by its environment, by its session, or by descent from one that does. One of the three holds
even after clearing the environment or calling setsid, as long as the supervisor is alive: it is a subreaper, so that orphans
become its children. Used by the supervisor, and by `stop` for what a killed supervisor left.
"""

# Paths are text: pathlib takes 5 ms to import, on each of many workers.
# ruff: noqa: PTH110, PTH116, PTH123, PTH208
from __future__ import annotations

import os
import time

try:  # the names of `signal` without its enumerations, which take 5 ms to import
    import _signal as signal  # type: ignore[import-not-found]
except ImportError:
    import signal

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from collections.abc import Callable

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
    import subprocess

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
