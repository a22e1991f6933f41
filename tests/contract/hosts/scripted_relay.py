"""A relay whose every WebSocket is played by a function of the test, and a proxy that tunnels to it. On loopback only."""

import asyncio
import contextlib
import datetime
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from orchestrator.hosts.iap.relay_session import SUBPROTOCOL
from tests.waiting import HANG_S, serving

DAY = datetime.timedelta(days=1)
CONNECTED = b"HTTP/1.1 200 Connection established\r\n\r\n"
Play = Callable[["ScriptedRelay", web.WebSocketResponse], Awaitable[None]]
Before = Callable[["ScriptedRelay", web.Request], Awaitable[web.StreamResponse]]


def sid(name: bytes = b"sid") -> bytes:
    return struct.pack(f">HI{len(name)}s", 1, len(name), name)


def resumed(count: int) -> bytes:
    return struct.pack(">HQ", 2, count)


def data(content: bytes) -> bytes:
    return struct.pack(f">HI{len(content)}s", 4, len(content), content)


class ScriptedRelay:
    """`requests`: path and headers of every request, in order."""

    def __init__(self, play: Play, tls: ssl.SSLContext | None = None, before: Before | None = None) -> None:
        self._play, self._before = play, before
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(tls, started), daemon=True)
        self._thread.start()
        assert started.wait(HANG_S)

    def _run(self, tls: ssl.SSLContext | None, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)

        async def start() -> None:
            app = web.Application()
            app.router.add_get("/{rest:.*}", self._answer)
            self._runner = web.AppRunner(app, shutdown_timeout=0)
            await self._runner.setup()
            site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=tls)
            await site.start()
            self.port = self._runner.addresses[0][1]

        self._loop.run_until_complete(start())
        started.set()
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:  # plays without an end
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._runner.cleanup())

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path_qs, dict(request.headers)))
        if self._before is not None:
            return await self._before(self, request)
        websocket = web.WebSocketResponse(protocols=(SUBPROTOCOL,), max_msg_size=1 << 22)
        await websocket.prepare(request)
        with contextlib.suppress(ConnectionError):
            await self._play(self, websocket)
        return websocket

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v4"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_S)


async def echo(_: ScriptedRelay, websocket: web.WebSocketResponse) -> None:
    """Answer as the relay, and send back what comes."""
    await websocket.send_bytes(sid())
    async for message in websocket:
        if message.data[:2] == struct.pack(">H", 4):
            await websocket.send_bytes(message.data)


@contextlib.contextmanager
def scripted(play: Play, tls: ssl.SSLContext | None = None, before: Before | None = None) -> Iterator[ScriptedRelay]:
    """`before` answers in the place of `play`."""
    relay = ScriptedRelay(play, tls, before)
    try:
        yield relay
    finally:
        relay.stop()


@contextlib.contextmanager
def proxy(port: int, answer: bytes = CONNECTED) -> Iterator[tuple[str, list[bytes]]]:
    """A proxy for CONNECT: its address, and the heads of its requests. Whatever it is asked for, it connects to `port`."""
    heads: list[bytes] = []

    def serve(near: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += near.recv(4096)
        heads.append(head)
        near.sendall(answer)
        if answer == CONNECTED:
            with socket.create_connection(("127.0.0.1", port)) as far:
                threading.Thread(target=_copy, args=(far, near), daemon=True).start()
                _copy(near, far)

    with serving(serve) as own:
        yield f"127.0.0.1:{own}", heads


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(65536):
            sink.sendall(content)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def certificate(directory: Path, host: str) -> tuple[ssl.SSLContext, Path]:
    """Return a server's TLS context for a host, and the file with the certificate that vouches for it: itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a company's proxy")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - DAY, now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = directory / "ca.pem", directory / "key.pem"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return context, public
