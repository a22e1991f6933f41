"""A socket to a port of a VM, through the relay: what `socket.create_connection` is where there is an address.

The caller gets one end of a socket pair, so that timeouts, `shutdown` and back pressure are those of any socket. The other end
is carried by a thread with one event loop for all tunnels of the process. aiohttp, which the emulator needs anyway, speaks
WebSocket: its parser and its masking are compiled, and no tunnel needs a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError, TpujobError, Unreachable
from orchestrator.hosts.iap import relay_session
from orchestrator.hosts.iap.relay_session import RelaySession, RelayTarget
from orchestrator.hosts.iap.tunnel import CLOSE_S, MESSAGE_BYTES, ORIGIN, Closed, Tunnel, receive
from orchestrator.promise.lease.cloud_api import Bearer
from orchestrator.system import fork, sockets
from orchestrator.system.lazy import Later
from orchestrator.system.sockets import set_options

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = Later("aiohttp")

RELAY_HOST = "tunnel.cloudproxy.app"
GOOGLE = f"wss://{RELAY_HOST}/v4"
OPEN_S = 20.0  # a VM without a server on its port is refused after some seconds, or never
RECONNECT_S = 10.0  # less than the silence after which a follower of a log gives up on its connection
PEER_S = 5.0


@dataclass(frozen=True, slots=True)
class Relay:
    """A relay: Google's, or that of an emulator on this machine. Raises ConfigError for a place that must get no token."""

    tokens: Bearer
    url: str = GOOGLE
    emulated: bool = False
    proxy: str | None = field(default=None, repr=False)  # an HTTP proxy, such as http://me:password@proxy:3128
    authorities: str | None = None  # a file with certificates; None: the system's

    def __post_init__(self) -> None:
        if self.emulated != _is_loopback(self.url) or not (self.emulated or self.url == GOOGLE):
            raise ConfigError(f"{self.url!r} gets no token: it is neither Google's relay nor an emulator's on loopback")


def dial(
    relay: Relay, target: RelayTarget, *, open_s: float = OPEN_S, reconnect_s: float = RECONNECT_S
) -> socket.socket:
    """Return a socket to the port. A cut WebSocket is resumed for `reconnect_s`; then the socket ends, as any cut one.

    Raises Unreachable (a later try may succeed) and TunnelRefused (none will).
    """
    theirs, ours = socket.socketpair()
    for end in (theirs, ours):
        fork.close_in_child(end)
    try:
        opening = asyncio.run_coroutine_threadsafe(_open(relay, target, ours, open_s, reconnect_s), _runner().loop)
        try:
            opening.result(2 * open_s + PEER_S)  # it ends by itself before
        except TimeoutError:
            opening.cancel()
            raise Unreachable(f"{target.instance}: no tunnel in time") from None
    except BaseException:
        theirs.close()
        raise
    return theirs


def refusal(relay: Relay, target: RelayTarget, *, timeout_s: float = OPEN_S) -> int | None:
    """Ask for a port and hang up. Return the relay's close code or HTTP status; None: it connects. Raises Unreachable."""
    asking = asyncio.run_coroutine_threadsafe(_refusal(relay, target), _runner().loop)
    try:
        return asking.result(timeout_s)
    except TimeoutError:
        asking.cancel()
        raise Unreachable("the relay of IAP does not answer in time") from None


async def _refusal(relay: Relay, target: RelayTarget) -> int | None:
    for fresh in (False, True):
        session = RelaySession(target)
        try:
            async with _websocket(relay, session.begin(), fresh=fresh) as websocket:
                while not session.connected:
                    session.take(await receive(websocket))
                return None
        except relay_session.BadFrame as error:
            raise Unreachable(f"the relay of IAP breaks its protocol: {error}") from None
        except Closed as end:
            code = end.code or end.http
            if code is None:
                raise Unreachable(end.reason or "the relay of IAP cut the connection") from None
            if not end.signs_in or fresh:
                return code
    raise AssertionError("the second answer counts")


async def _open(relay: Relay, target: RelayTarget, local: socket.socket, open_s: float, reconnect_s: float) -> None:
    local.setblocking(False)
    opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    door = functools.partial(_websocket, relay)
    tunnel = Tunnel(RelaySession(target), local, door, open_s=open_s, reconnect_s=reconnect_s)
    task = asyncio.create_task(tunnel.run(opened))
    _tunnels.add(task)
    task.add_done_callback(_tunnels.discard)
    try:
        await opened
    except asyncio.CancelledError:
        task.cancel()
        raise


@contextlib.asynccontextmanager
async def _websocket(relay: Relay, path: str, *, fresh: bool) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a WebSocket and close it in the end. Raises Closed, never with the request, which has the token, as its cause."""
    try:
        token = await asyncio.to_thread(_token, _runner().token_lock, relay.tokens, fresh)
    except TpujobError as error:
        raise Closed(reason=f"no token for the relay of IAP: {error.message}") from error
    made: list[socket.socket] = []

    def make(info: Any) -> socket.socket:
        sock = socket.socket(*info[:3])
        fork.close_in_child(sock)
        set_options(sock)
        made.append(sock)
        return sock

    async def check_peer(*_: object) -> None:
        """Raise before anything is sent to a port that a process of another user has taken over."""
        if relay.emulated:
            await asyncio.to_thread(sockets.expect_ours, made[-1], PEER_S)

    async def refuse(_session: object, _context: object, redirected: aiohttp.TraceRequestRedirectParams) -> None:
        """Raise before anything is sent to another place."""
        raise Closed(http=redirected.response.status)

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(check_peer)
    trace.on_request_redirect.append(refuse)
    encrypted = relay.url.startswith("wss:")
    connector = aiohttp.TCPConnector(
        socket_factory=make, ssl=_context(relay.authorities) if encrypted else False, force_close=True
    )
    timeouts = aiohttp.ClientWSTimeout(ws_close=CLOSE_S)
    async with aiohttp.ClientSession(connector=connector, trace_configs=[trace]) as http:
        try:
            websocket = await http.ws_connect(
                relay.url + path,
                headers={"Authorization": f"Bearer {token}", "User-Agent": "tpujob"},
                protocols=(relay_session.SUBPROTOCOL,),
                origin=ORIGIN,
                proxy=relay.proxy,
                max_msg_size=MESSAGE_BYTES,
                timeout=timeouts,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise Closed(http=error.status) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            for sock in made:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            why = _why(error, relay)
            raise Closed(reason=f"{urlsplit(relay.url).netloc}, the relay of IAP, cannot be reached: {why}") from None
        try:
            if websocket.protocol != relay_session.SUBPROTOCOL:
                raise Closed(reason=f"{urlsplit(relay.url).netloc} is no relay of IAP")
            yield websocket
        finally:
            await websocket.close()


def _why(error: Exception, relay: Relay) -> str:
    proxy = urlsplit(relay.proxy or "").netloc.rpartition("@")[2]  # without its login
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy {proxy} answers {error.status} (HTTPS_PROXY)"
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return f"the proxy {proxy} does not answer (HTTPS_PROXY)"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted (REQUESTS_CA_BUNDLE names those to trust)"
    return getattr(error, "strerror", None) or type(error).__name__


def _token(lock: threading.Lock, tokens: Bearer, fresh: bool) -> str:
    with lock:
        if fresh and tokens.renewable:
            tokens.renew()
        return tokens.token()


@functools.cache
def _context(authorities: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authorities)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- the thread -------------------------------------------------------------------------------------------------------

_tunnels: set[asyncio.Task[None]] = set()  # asyncio itself keeps no task alive


class _Runner:
    """The loop of one process, in a thread of its own. `token_lock`: tunnels that open at once ask for one token."""

    def __init__(self) -> None:
        self.pid, self.loop, self.token_lock = os.getpid(), asyncio.new_event_loop(), threading.Lock()
        threading.Thread(target=self.loop.run_forever, name="iap-tunnels", daemon=True).start()


_of_this_process: _Runner | None = None


def _runner() -> _Runner:
    """Return the runner of this process; a forked child starts its own."""
    global _of_this_process  # noqa: PLW0603
    with fork.no_fork():
        if _of_this_process is None or _of_this_process.pid != os.getpid():
            _of_this_process = _Runner()
        return _of_this_process
