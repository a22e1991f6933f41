"""Ports for servers that come up later, and servers of the tests."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from tests.waiting import HANG_S


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
