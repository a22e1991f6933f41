"""A relay on loopback in front of the emulator's API that notes when each request arrives, and can hold answers back.

The CLI is pointed at it with TPUJOB_ENDPOINT; what it notes is what was on the wire, whatever the client believes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    line: str  # such as "DELETE /v2/projects/…"
    at: float  # time.monotonic()


class Witness:
    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[Request] = []
        self.withheld: Callable[[str], bool] = lambda line: False  # is the answer to this request kept from the client?
        threading.Thread(target=self._accept, daemon=True).start()

    def seen(self, method: str, part: str = "") -> Request | None:
        """The first such request."""
        matching = (it for it in list(self.requests) if it.line.startswith(f"{method} ") and part in it.line)
        return next(matching, None)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                for end in (near, far := socket.create_connection(self._target)):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                silent = threading.Event()
                threading.Thread(target=self._forward, args=(near, far, silent), daemon=True).start()
                threading.Thread(target=self._answer, args=(far, near, silent), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, silent: threading.Event) -> None:
        """Clients here wait for each answer, so a piece that begins with a method begins a request."""
        for piece in _pieces(client):
            now = time.monotonic()
            line = piece.partition(b"\r\n")[0]
            if line.endswith(b" HTTP/1.1"):
                request = Request(line.decode().removesuffix(" HTTP/1.1"), now)
                if self.withheld(request.line):
                    silent.set()
                self.requests.append(request)
            server.sendall(piece)
        _shut(server)

    @staticmethod
    def _answer(server: socket.socket, client: socket.socket, silent: threading.Event) -> None:
        with contextlib.suppress(OSError):  # the client has left
            for piece in _pieces(server):
                if not silent.is_set():
                    client.sendall(piece)
        _shut(client)


def _pieces(source: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            yield piece


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_WR)
