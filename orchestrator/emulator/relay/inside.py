"""Connections from inside the slices' network: workers without an external address accept no others.

On loopback every program could connect. So a worker is told the local ports of the connections that come by a way that leads
there: the relay, a bastion.
"""

import asyncio
import socket

from orchestrator.emulator.vms.driver import Driver

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_connection(driver: Driver, port: int, *, limit: int = 1 << 16) -> Streams:
    """Connect to a port of a worker, on loopback. `forget` the connection once it is closed. Raises OSError."""
    sock = socket.socket()
    try:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        local = sock.getsockname()[1]
        driver.inside.add(local)  # before the worker can accept it
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            return await asyncio.open_connection(sock=sock, limit=limit)
        except BaseException:
            driver.inside.discard(local)
            raise
    except BaseException:
        sock.close()
        raise


def forget(driver: Driver, writer: asyncio.StreamWriter) -> None:
    """Close a connection of `open_connection`."""
    name = writer.get_extra_info("sockname")
    if name:
        driver.inside.discard(name[1])
    writer.close()
