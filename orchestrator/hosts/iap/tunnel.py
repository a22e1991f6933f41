"""One tunnel: a local socket on one side, on the other as many WebSockets to the relay as it takes.

A WebSocket that is cut is followed by another one, which repeats what the relay lacks: the local socket notices a delay.
A close frame ends the tunnel, as with gcloud, unless its code asks for another sign-in. Nothing is logged here: a request has
the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING, Protocol

from orchestrator.errors import RemoteError, TunnelRefused, Unreachable
from orchestrator.hosts.iap import relay_session
from orchestrator.hosts.iap.relay_session import RelaySession
from orchestrator.system.lazy import Later
from orchestrator.text.terminal import printable

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = Later("aiohttp")

ORIGIN = "bot:iap-tunneler"  # the relay serves no web page, and asks for this
SEND_S = 20.0  # a relay that takes nothing for so long is dead
CLOSE_S = 2.0
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 2.0
MESSAGE_BYTES = 1 << 17  # far more than a message of the relay has

# Close codes of the relay. GoogleCloudPlatform/iap-desktop names them all.
SID_IN_USE, NOT_REACHED, SIGN_IN, NOT_AUTHORIZED, LOOKUP_FAILED = 4002, 4003, 4004, 4033, 4047
RESUME = (None, 1006, SID_IN_USE, SIGN_IN)  # None: cut without a code; SID_IN_USE: it has not noticed the cut yet
ROLE, RANGE = "roles/iap.tunnelResourceAccessor", "35.235.240.0/20"
DOCTOR = "`tpujob doctor` prints the command that adds it"


class Closed(Exception):
    """The relay closed the WebSocket with this code, or refused it with this HTTP status; None: it was cut, for `reason`."""

    def __init__(self, code: int | None = None, reason: str = "", http: int | None = None) -> None:
        super().__init__(code, reason, http)
        self.code, self.reason, self.http = code, reason, http

    @property
    def signs_in(self) -> bool:
        """Whether another token may help."""
        return self.code == SIGN_IN or self.http == 401

    @property
    def may_pass(self) -> bool:
        """Whether the same tunnel may be had a moment later."""
        if self.http is not None:
            return self.http in (401, 408, 429) or self.http >= 500
        return self.code in RESUME


class OpenWebSocket(Protocol):
    """Opens a WebSocket at a path of the relay; `fresh`: with a new token. Raises Closed."""

    def __call__(
        self, path: str, *, fresh: bool
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Return a context in which the WebSocket is open."""


class Tunnel:
    """`local`: the end of a socket pair that the tunnel owns."""

    def __init__(
        self,
        session: RelaySession,
        local: socket.socket,
        open_websocket: OpenWebSocket,
        *,
        open_s: float,
        reconnect_s: float,
    ) -> None:
        self._session, self._local, self._open_websocket = session, local, open_websocket
        self._open_s, self._reconnect_s = open_s, reconnect_s

    async def run(self, opened: asyncio.Future[None]) -> None:
        """Carry bytes until either side ends. `opened` gets a result, or the error that kept the tunnel from opening."""
        reader, writer = await asyncio.open_connection(sock=self._local, limit=4 * relay_session.MAX_DATA_BYTES)
        try:
            await self._carry(reader, writer, opened)
        except (Closed, relay_session.BadFrame) as error:
            if not opened.done():
                opened.set_exception(self._error(error))
        except BaseException as error:  # a bug, or the end of the loop
            if not opened.done():
                opened.set_exception(error)
            raise
        finally:
            writer.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, opened: asyncio.Future[None]
    ) -> None:
        give_up_at: float | None = None
        pause_s, fresh = RETRY_FIRST_S, False
        while True:
            opened_at, had = None, self._session.progress
            try:
                async with contextlib.AsyncExitStack() as stack:
                    websocket = await self._connect(stack, fresh=fresh)
                    opened_at = time.monotonic()
                    if not opened.done():
                        opened.set_result(None)
                    for message in self._session.resend():
                        await _send(websocket, message)
                    fresh = False
                    return await self._relay(websocket, reader, writer)
            except Closed as end:
                if not self._session.begun and end.signs_in and not fresh:
                    fresh = True
                    continue
                now = time.monotonic()
                lasted = opened_at is not None and now - opened_at >= self._reconnect_s
                if give_up_at is None or lasted or self._session.progress > had:  # a new cut, not the same one again
                    give_up_at, pause_s = now + self._reconnect_s, RETRY_FIRST_S
                if not (self._session.resumable and end.may_pass and now + pause_s < give_up_at):
                    raise
                fresh = end.signs_in
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MOST_S)

    async def _connect(self, stack: contextlib.AsyncExitStack, *, fresh: bool) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket, and return it once the relay has connected it to the VM. Raises Closed, BadFrame."""
        try:
            async with asyncio.timeout(self._open_s):
                websocket = await stack.enter_async_context(self._open_websocket(self._session.begin(), fresh=fresh))
                while not self._session.connected:
                    self._session.take(await receive(websocket))
                return websocket
        except TimeoutError:
            raise Closed(reason="the relay of IAP does not answer in time") from None

    async def _relay(
        self, websocket: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry bytes both ways over this WebSocket, until the local side ends. Raises Closed, BadFrame."""
        up = asyncio.create_task(self._send_all(websocket, reader))
        down = asyncio.create_task(self._receive_all(websocket, writer))
        try:
            done, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            if up in done and up.exception() is not None:
                await asyncio.wait((down,), timeout=CLOSE_S)  # it knows why nothing can be sent
            if down.done():
                down.result()
            if up.done():
                up.result()
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _send_all(self, websocket: aiohttp.ClientWebSocketResponse, reader: asyncio.StreamReader) -> None:
        """Send what the local side writes, until it ends. No await parts reading from `wrap`: what is read is never lost."""
        with contextlib.suppress(ConnectionError):
            while content := await reader.read(relay_session.MAX_DATA_BYTES):
                await _send(websocket, self._session.wrap(content))

    async def _receive_all(self, websocket: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter) -> None:
        """Write what the relay brings, until the local side takes no more."""
        while True:
            content = self._session.take(await receive(websocket))
            if content:
                try:
                    writer.write(content)
                    await writer.drain()
                except ConnectionError:
                    return
            if (message := self._session.ack_due()) is not None:
                await _send(websocket, message)

    def _error(self, error: Closed | relay_session.BadFrame) -> RemoteError:
        """Return what is said to those who asked for the tunnel. Raising it drops `error`, whose cause may hold the token."""
        instance = self._session.target.instance
        if isinstance(error, relay_session.BadFrame):
            return Unreachable(f"{instance}: the relay of IAP breaks its protocol: {error}")
        number = error.code or error.http
        if number is None:
            return Unreachable(f"{instance}: {error.reason or 'the relay of IAP cut the connection'}")
        words = f"{instance}: the relay of IAP refuses ({number}{': ' if error.reason else ''}{error.reason})"
        if number in (NOT_AUTHORIZED, 401, 403):
            hint = f"you need the role {ROLE} in project {self._session.target.project}; {DOCTOR}"
            refused = TunnelRefused(words, hint=hint)
            refused.code = error.code
            return refused
        if error.http is not None and error.http < 500 and not error.may_pass:
            return TunnelRefused(
                words, hint=f"is the API iap.googleapis.com enabled, and {ROLE} granted to you? {DOCTOR}"
            )
        return Unreachable(
            words, hint=f"a firewall rule must let {RANGE} reach tcp:22; {DOCTOR}" if number == NOT_REACHED else None
        )


async def _send(websocket: aiohttp.ClientWebSocketResponse, message: bytes) -> None:
    """Raises Closed."""
    try:
        async with asyncio.timeout(SEND_S):
            await websocket.send_bytes(message)
    except (ConnectionError, TimeoutError, RuntimeError) as error:  # RuntimeError: it is closing
        raise Closed from error


async def receive(websocket: aiohttp.ClientWebSocketResponse) -> bytes:
    """Return the next binary message. Raises Closed, and BadFrame for a text."""
    message = await websocket.receive()
    if message.type is aiohttp.WSMsgType.BINARY:
        content: bytes = message.data
        return content
    if message.type is aiohttp.WSMsgType.TEXT:
        raise relay_session.BadFrame("text")
    if message.type is aiohttp.WSMsgType.CLOSE:
        raise Closed(int(message.data), printable(str(message.extra or ""))[:200])
    raise Closed
