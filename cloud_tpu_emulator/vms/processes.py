"""Finds and ends all processes of an emulated TPU VM.

A process belongs to a node if its environment has the node's marker, if its working directory is in the node's directory, or
if one of its ancestors belongs to it. So neither setsid nor a cleared environment alone hides a process.
"""

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

MARKER = "TPUJOB_EMULATED_NODE"
KILL_TIMEOUT_S = 10.0
PAUSE_S = 0.005


def find(uid: str, directory: Path) -> list[psutil.Process]:
    """Return the running processes of the node with this uid, whose files are in `directory`."""
    own = psutil.Process().pid
    processes = {process.pid: process for process in psutil.process_iter() if process.pid != own}
    parents: dict[int, int] = {}
    members: set[int] = set()
    for pid, process in processes.items():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            parents[pid] = process.ppid()
            if _belongs(process, uid, directory):
                members.add(pid)
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in members} - members
        members |= children
        grown = bool(children)
    return [processes[pid] for pid in sorted(members)]


def signal_all(
    search: Callable[[], list[psutil.Process]], send: Callable[[psutil.Process], None], timeout_s: float, problem: str
) -> int:
    """Call `send` on all processes that `search` finds, until it finds none; return on how many.

    Ends after two searches in a row without a find: a signal takes time, and a search can miss a process that is just being
    created. Raises TimeoutError with the text `problem` and the process ids.
    """
    count, empty = 0, 0
    deadline = time.monotonic() + timeout_s
    while empty < 2:
        found = search()
        for process in found:
            with contextlib.suppress(psutil.Error):
                send(process)
        count += len(found)
        empty = 0 if found else empty + 1
        time.sleep(PAUSE_S)
        if found and time.monotonic() > deadline:
            raise TimeoutError(f"{problem}: {[process.pid for process in found]}.")
    return count


def kill_all(uid: str, directory: Path) -> int:
    """Kill all processes of a node; return how many. Raises TimeoutError."""
    problem = f"Processes of node {uid} do not end"
    return signal_all(lambda: find(uid, directory), psutil.Process.kill, KILL_TIMEOUT_S, problem)


async def wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code (negative: the signal). Waits in a thread of its own, since any number of commands may run."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()

    def wait() -> None:
        code = process.wait()
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(code))

    threading.Thread(target=wait, daemon=True, name=f"wait-{process.pid}").start()
    return await future


def _belongs(process: psutil.Process, uid: str, directory: Path) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        if process.environ().get(MARKER, "").endswith(f"/{uid}"):
            return True
    with contextlib.suppress(psutil.Error, OSError):
        return Path(process.cwd()).is_relative_to(directory)
    return False
