"""Wait for an event that the product publishes: a request in the log, a row in the ledger, a line on a pipe; ports.

No wait has a time of its own. `HANG_S` only ends what would never end, with words that say what did not come: a test that
needs it to be longer, or that passes because of it, is wrong.
"""

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")

HANG_S = 180.0
LOOK_S = 0.02


def until(question: Callable[[], T], what: str = "it", wanted: Callable[[T], object] = bool) -> T:
    """Ask until the answer is true, or a wanted one, and return it. AssertionError after HANG_S, with `what` and the last."""
    deadline = time.monotonic() + HANG_S
    while not wanted(answer := question()):
        assert time.monotonic() < deadline, f"{what} did not come about in {HANG_S:.0f} s: {answer!r}"
        time.sleep(LOOK_S)
    return answer


def ran(argv: Sequence[str | Path], *, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, however it ends, unless `check`; `options` as for `subprocess.run`."""
    return subprocess.run(argv, check=check, **{"capture_output": True, "text": True, "timeout": HANG_S, **options})


def has_ended(pid: int) -> bool:
    """Return whether the process has ended, also before the one that adopted it has read its exit status."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """A port that refuses connections and is given to no other process, until a server with SO_REUSEADDR listens there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextlib.contextmanager
def serving(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server on loopback, which is that of emulated workers, too; its port. `serve` has each connection to itself."""

    def run(peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            serve(peer)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=run, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]


def echo(peer: socket.socket) -> None:
    """Send everything back, and end a connection that the client ends."""
    while content := peer.recv(1 << 16):
        peer.sendall(content)


def read_all(peer: socket.socket) -> bytes:
    peer.settimeout(HANG_S)
    return b"".join(iter(lambda: peer.recv(1 << 16), b""))
