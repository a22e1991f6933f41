"""The network between the users of the cluster and its API server: a TCP relay that may be cut, silent or slow.

Controllers and nodes do not go through it.
"""

import asyncio
import contextlib
import socket
from enum import StrEnum


class Way(StrEnum):
    OPEN = "open"
    CLOSED = "closed"  # refuses, and ends what is open
    SILENT = "silent"  # accepts, and answers nothing
    SLOW = "slow"  # each piece comes `delay_s` late


class Gate:
    """Relays to one port of 127.0.0.1."""

    def __init__(self, target: int) -> None:
        self.way, self.delay_s, self._target = Way.OPEN, 1.0, target
        self._held = socket.socket()  # keeps the port while nothing listens on it
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port: int = self._held.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._moved = asyncio.Event()

    async def turn(self, way: Way, delay_s: float = 1.0) -> None:
        """Change the way, for connections that exist too. It is closed until this is first called."""
        self.way, self.delay_s = way, delay_s
        if way is Way.CLOSED and self._server is not None:
            self._server.close()
            self._server = None
            for writer in list(self._open):
                writer.transport.abort()
        elif way is not Way.CLOSED and self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, reuse_address=True)
        self._moved.set()
        self._moved = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while self.way is Way.SILENT:
                await self._moved.wait()
            there, onward = await asyncio.open_connection("127.0.0.1", self._target)
            self._open.add(onward)
            await asyncio.gather(self._relay(reader, onward), self._relay(there, writer))
            self._open.discard(onward)
        except OSError:
            writer.transport.abort()
        finally:
            self._open.discard(writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                while self.way is Way.SILENT:
                    await self._moved.wait()
                if self.way is Way.SLOW:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            if reader.exception() is not None:  # it was cut, not closed
                writer.transport.abort()
            writer.close()
