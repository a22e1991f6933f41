"""An HTTP server on loopback that sends literal replies and records its requests."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.waiting import HANG_S


@dataclass(frozen=True)
class StubReply:
    """`body` is sent as it is; anything but text or bytes as JSON. `hang_until` delays it, `drip_s` each of its bytes."""

    status: int = 200
    body: Any = ""
    headers: tuple[tuple[str, str], ...] = ()
    claimed_bytes: int | None = None
    hang_until: threading.Event | None = None
    drip_s: float = 0.0

    def encoded(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


def failure(http: int, status: str, message: str = "no") -> StubReply:
    """An error in the form of Google's APIs."""
    return StubReply(http, {"error": {"code": http, "status": status, "message": message}})


class FixedToken:
    """A Bearer. `after`: the tokens that a renewal brings."""

    def __init__(self, value: str, *after: str) -> None:
        self.values = [value, *after]
        self.renewed = 0

    @property
    def renewable(self) -> bool:
        return len(self.values) > 1

    def token(self) -> str:
        return self.values[0]

    def renew(self) -> None:
        self.renewed += 1
        del self.values[0]


def service_account(token_url: str) -> dict[str, str]:
    """The file of a service account whose key is real, and which signs in there."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return {
        "type": "service_account",
        "project_id": "acme-project",
        "client_email": "x@acme-project.iam.gserviceaccount.com",
        "token_uri": token_url,
        "private_key_id": "1",
        "private_key": key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()).decode(),
    }


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]  # by lower-case name
    body: bytes


@dataclass
class StubApi:
    """The replies are sent in order; the last one is repeated. `answer_with` computes each from its request."""

    url: str
    replies: list[StubReply] = field(default_factory=list)
    asked: list[Request] = field(default_factory=list)
    answer_with: Callable[[Request], StubReply] | None = None

    def answers(self, *replies: StubReply) -> None:
        self.replies = list(replies)

    def reply(self, asked: Request) -> StubReply:
        self.asked.append(asked)
        if self.answer_with is not None:
            return self.answer_with(asked)
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


@contextmanager
def stub_api(tls: ssl.SSLContext | None = None) -> Iterator[StubApi]:
    class Answer(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = served.reply(Request(self.command, self.path, headers, body))
            if reply.hang_until is not None:
                reply.hang_until.wait(HANG_S)
            data = reply.encoded()
            self.send_response(reply.status)
            for name, value in reply.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data) if reply.claimed_bytes is None else reply.claimed_bytes))
            self.end_headers()
            for at in range(0, len(data), step := 1 if reply.drip_s else max(1, len(data))):
                time.sleep(reply.drip_s)
                self.wfile.write(data[at : at + step])

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A client that hung up first is part of what is tested."""

    server = Server(("127.0.0.1", 0), Answer)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    served = StubApi(f"http{'' if tls is None else 's'}://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def stub() -> Iterator[StubApi]:
    with stub_api() as running:
        yield running
