"""The relay's tunnels: a TCP connection to a worker each, which outlives the WebSocket that carries it.

A tunnel keeps what the client has not acknowledged, and reads no more from the worker once that is WINDOW_BYTES: a client that
never acknowledges gets stuck. Without a WebSocket it waits for RESUME_S, then closes its connection.

Workers without an external address accept connections from inside of the slices' network only, but on loopback every program
could connect. So a worker is told the local ports of the connections that come by a way that leads there: the relay, a bastion.
"""

import asyncio
import secrets
import socket
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from aiohttp import WSMsgType, web

from cloud_tpu_emulator.faults.fault import Fault
from cloud_tpu_emulator.vms.driver import Driver

PIECE_BYTES = 1 << 16
T = TypeVar("T")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_connection(driver: Driver, port: int, *, limit: int = 1 << 16) -> Streams:
    """Connect to a port of a worker, on loopback. `forget` the connection once it is closed. Raises OSError."""
    sock, local = socket.socket(), 0
    try:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        local = sock.getsockname()[1]
        driver.inside.add(local)  # before the worker can accept it
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        return await asyncio.open_connection(sock=sock, limit=limit)
    except BaseException:
        driver.inside.discard(local)
        sock.close()
        raise


def forget(driver: Driver, writer: asyncio.StreamWriter) -> None:
    """Close a connection of `open_connection`."""
    name = writer.get_extra_info("sockname")
    if name:
        driver.inside.discard(name[1])
    writer.close()


async def first_of(*ways: Coroutine[Any, Any, T]) -> T:
    """Return the result of what ends first; the others are cancelled."""
    tasks = [asyncio.create_task(each) for each in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(done)).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def carry(source: Any, sink: Any) -> None:
    """Copy from a stream to another one, to the end of either."""
    while content := await source.read(PIECE_BYTES):
        sink.write(content)
        await sink.drain()


# The bytes of the relay's subprotocol, version 4, as the relay reads and writes them.
#
# A message is a big-endian tag of two bytes, then a length of four bytes and an array, or a count of eight bytes.

SUBPROTOCOL = "relay.tunnel.cloudproxy.app"
MAX_ARRAY = 16384
SUCCESS_SID, SUCCESS_ACK, DATA, ACK = 1, 2, 4, 7

# Close codes, by the names that Google's IAP Desktop gives them.
NORMAL, SID_UNKNOWN, SID_IN_USE, NOT_REACHED = 1000, 4001, 4002, 4003
BAD_ACK, INVALID_ACK, INVALID_OPCODE, INVALID_TAG, READ_FAILED = 4005, 4006, 4007, 4008, 4010
INVALID_DATA, NOT_AUTHORIZED, LOOKUP_FAILED, REWIND_FAILED = 4013, 4033, 4047, 4074
REASONS = {
    SID_UNKNOWN: "unknown session",
    SID_IN_USE: "session in use",
    NOT_REACHED: "failed to connect to backend",
    4004: "reauthentication required",
    BAD_ACK: "bad ack",
    INVALID_ACK: "invalid ack",
    INVALID_OPCODE: "invalid opcode",
    INVALID_TAG: "invalid tag",
    READ_FAILED: "destination read failed",
    INVALID_DATA: "invalid data",
    NOT_AUTHORIZED: "not authorized",
    LOOKUP_FAILED: "Failed to lookup instance",
    REWIND_FAILED: "failed to rewind",
}


class Violation(Exception):
    """The client broke the protocol; the relay closes with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(REASONS[code])
        self.code = code


def with_array(tag: int, content: bytes) -> bytes:
    """Return a message of SUCCESS_SID or DATA."""
    return tag.to_bytes(2, "big") + len(content).to_bytes(4, "big") + content


def with_count(tag: int, count: int) -> bytes:
    """Return a message of SUCCESS_ACK or ACK."""
    return tag.to_bytes(2, "big") + count.to_bytes(8, "big")


def read(message: bytes) -> bytes | int:
    """Return the array of a DATA message, or the count of an ACK: a client sends nothing else. Raises Violation."""
    tag, rest = int.from_bytes(message[:2], "big"), message[2:]
    if len(message) >= 2 and tag == ACK:
        if len(rest) != 8:
            raise Violation(INVALID_ACK)
        return int.from_bytes(rest, "big")
    if len(message) < 2 or tag != DATA:
        raise Violation(INVALID_TAG)
    content = rest[4:]
    if not 0 < len(content) <= MAX_ARRAY or int.from_bytes(rest[:4], "big") != len(content):
        raise Violation(INVALID_DATA)
    return content


WINDOW_BYTES = 256 << 10
ACK_AFTER_BYTES = 2 * MAX_ARRAY
RESUME_S = 60.0
SILENT, CUT, CLOSE, SLOW = "relay_silent", "relay_cut", "relay_close", "relay_slow"


class Severed(Exception):
    """A fault ends this WebSocket: without a word, or with this close code."""

    def __init__(self, code: int | None = None) -> None:
        self.code = code


@dataclass(slots=True)
class Link:
    """One WebSocket of a tunnel, and the fault that it meets."""

    websocket: web.WebSocketResponse
    fault: Fault | None = None
    sent: int = 0  # bytes of data

    async def send_data(self, content: bytes) -> None:
        """Send what the fault lets through. Raises Severed, ConnectionError."""
        fault = self.fault
        if fault is not None and fault.kind in (SILENT, CUT, CLOSE):
            left = int(fault.parameters["after_bytes"]) - self.sent
            if len(content) > left:
                if left > 0:
                    await self._send(content[:left])
                if fault.kind == SILENT:
                    await asyncio.Event().wait()
                raise Severed(int(fault.parameters["close_code"]) if fault.kind == CLOSE else None)
        if fault is not None and fault.kind == SLOW:
            await asyncio.sleep(len(content) / float(fault.parameters["bytes_per_s"]))
        await self._send(content)

    async def _send(self, content: bytes) -> None:
        self.sent += len(content)
        await self.websocket.send_bytes(with_array(DATA, content))


class RelayTunnel:
    """One tunnel to a worker of `node`. `serve` carries it over a WebSocket; `Tunnels.forget` ends it."""

    def __init__(self, node: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.node, self.sid = node, secrets.token_urlsafe(18)
        self.in_use = self.ended = False
        self.detached_at = 0.0
        self._reader, self.writer = reader, writer
        self._received = self._acked = 0  # from the client
        self._sent = self._confirmed = 0  # to the client
        self._unconfirmed: deque[bytes] = deque()
        self._confirmation = asyncio.Event()

    async def serve(self, link: Link, client_has: int | None) -> int | None:
        """Carry bytes over this WebSocket until it or the tunnel ends. Return the close code; None: cut.

        `client_has`: how many bytes a client that comes back has; None: it is new.
        """
        self.in_use = True
        try:
            if client_has is None:
                await link.websocket.send_bytes(with_array(SUCCESS_SID, self.sid.encode()))
            else:
                await self._rewind(link, client_has)
            return await first_of(self._to_client(link), self._from_client(link))
        except Violation as violation:
            self.ended = True
            return violation.code
        except Severed as end:
            self.ended = end.code is not None
            return end.code
        except ConnectionError:
            return None
        finally:
            self.in_use, self.detached_at = False, asyncio.get_running_loop().time()

    async def _rewind(self, link: Link, client_has: int) -> None:
        if not self._confirmed <= client_has <= self._sent:
            raise Violation(REWIND_FAILED)
        self._confirm(client_has)
        self._acked = self._received
        await link.websocket.send_bytes(with_count(SUCCESS_ACK, self._received))
        for content in tuple(self._unconfirmed):
            await link.send_data(content)

    async def _to_client(self, link: Link) -> int:
        """No await parts reading from keeping: what is read is never lost."""
        while True:
            while self._sent - self._confirmed >= WINDOW_BYTES:
                self._confirmation.clear()
                await self._confirmation.wait()
            try:
                content = await self._reader.read(MAX_ARRAY)
            except ConnectionError:
                content = b""
            if not content:
                self.ended = True
                return READ_FAILED
            self._unconfirmed.append(content)
            self._sent += len(content)
            await link.send_data(content)

    async def _from_client(self, link: Link) -> int | None:
        async for message in link.websocket:
            if message.type is not WSMsgType.BINARY:
                raise Violation(INVALID_OPCODE)
            found = read(message.data)
            if isinstance(found, int):
                self._confirm(found)
                continue
            self._received += len(found)
            try:
                self.writer.write(found)
                await self.writer.drain()
            except ConnectionError:
                self.ended = True
                return READ_FAILED
            if self._received - self._acked > ACK_AFTER_BYTES:
                self._acked = self._received
                await link.websocket.send_bytes(with_count(ACK, self._received))
        self.ended = link.websocket.close_code == NORMAL
        return NORMAL if self.ended else None

    def _confirm(self, count: int) -> None:
        if count < self._confirmed:
            raise Violation(BAD_ACK)
        if count > self._sent:
            raise Violation(INVALID_ACK)
        left = count - self._confirmed
        self._confirmed = count
        while left:
            first = self._unconfirmed.popleft()
            if len(first) > left:
                self._unconfirmed.appendleft(first[left:])
            left -= min(left, len(first))
        self._confirmation.set()


class Tunnels:
    """All tunnels, by session id."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._by_sid: dict[str, RelayTunnel] = {}

    async def open(self, node: str, port: int) -> RelayTunnel:
        """Connect to a port of a worker of the node, on loopback. Raises OSError."""
        self._drop_old()
        ends = await open_connection(self._driver, port, limit=4 * MAX_ARRAY)
        tunnel = RelayTunnel(node, *ends)
        self._by_sid[tunnel.sid] = tunnel
        return tunnel

    def get(self, sid: str) -> RelayTunnel | None:
        """Return a tunnel that can be resumed; None: there is none."""
        self._drop_old()
        return self._by_sid.get(sid)

    def forget(self, tunnel: RelayTunnel) -> None:
        """End a tunnel. What its client sent still goes to the worker, for which nothing waits: it may read no more."""
        self._by_sid.pop(tunnel.sid, None)
        tunnel.ended = True
        forget(self._driver, tunnel.writer)

    def close(self) -> None:
        """End all tunnels, and drop what is under way."""
        for tunnel in list(self._by_sid.values()):
            self.forget(tunnel)
            tunnel.writer.transport.abort()

    def _drop_old(self) -> None:
        now = asyncio.get_running_loop().time()
        for tunnel in list(self._by_sid.values()):
            if not tunnel.in_use and now - tunnel.detached_at > RESUME_S:
                self.forget(tunnel)
