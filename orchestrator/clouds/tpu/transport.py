"""The HTTP side of google-cloud-tpu: one generated client on a session that judges every reply before generated code sees it.

Import me lazily: I pull in google-cloud-tpu and requests. What I add to the library: errors are translated from the raw
reply, redirections are never followed, .netrc is never read, an emulated session ignores proxies of the environment and speaks
to processes of this user only, and the reply's JSON stays readable where the generated parser is stricter than we can afford.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

import requests
from google.api_core.exceptions import GoogleAPICallError
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.cloud import tpu_v2
from google.cloud.tpu_v2.services.tpu.transports.rest import TpuRestTransport
from google.protobuf.json_format import ParseError
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection

from orchestrator import peers
from orchestrator.clouds.tpu import error_translation
from orchestrator.errors import UnexpectedReply

Foreign = (requests.RequestException, GoogleAuthError, GoogleAPICallError, ParseError)
NotOurProto = ParseError
PATIENCE_S = 15.0  # of a call without a time of its own


class _OwnConnection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        peers.expect_ours(self.sock, self.sock.gettimeout() or PATIENCE_S)


class _OwnPool(HTTPConnectionPool):
    """Of connections to processes of this user."""

    ConnectionCls = _OwnConnection


class Adapter(HTTPAdapter):
    """Sends once, without retries. Raises a CloudError for whatever is not a JSON object with a status below 300.

    The one exception: a well-formed 401 of Google passes, since google-auth then renews the token and sends again.
    """

    def __init__(self, host: str, *, emulated: bool) -> None:
        super().__init__(max_retries=0)
        self._host = host
        self._emulated = emulated
        self._seen = threading.local()
        if emulated:
            self.poolmanager.pool_classes_by_scheme = {"http": _OwnPool}

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float, float] | tuple[float, None] | None = None,
        verify: bool | str = True,
        cert: bytes | str | tuple[bytes | str, bytes | str] | None = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        self._seen.reply, self._seen.date = {}, None
        reply = super().send(request, stream, timeout, verify, cert, proxies)
        self._seen.date = reply.headers.get("Date")
        text = reply.content.decode("utf-8", "replace")
        if reply.status_code >= 300:
            error = error_translation.http_error(
                reply.status_code,
                text,
                host=self._host,
                retry_after=reply.headers.get("Retry-After"),
                emulated=self._emulated,
            )
            if reply.status_code == 401 and not self._emulated and isinstance(error.details, dict):
                return reply
            raise error
        self._seen.reply = self._object(text)
        return reply

    def last_reply(self) -> dict[str, Any]:
        """The JSON that the latest call of this thread was answered with."""
        reply: dict[str, Any] = self._seen.reply
        return reply

    def last_date(self) -> str | None:
        """The Date header of the latest reply to this thread: the server's clock."""
        date: str | None = self._seen.date
        return date

    def _object(self, text: str) -> dict[str, Any]:
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            shown = " ".join(text[:80].split()) or "an empty reply"
            raise UnexpectedReply(f"{self._host} answered something that is not JSON: {shown}", details=text[:4000])
        return said


class Unsent(Exception):
    """Raised by a Copybook in place of sending."""

    def __init__(self, request: requests.PreparedRequest) -> None:
        super().__init__("recorded, not sent")
        self.request = request


class Recorder(HTTPAdapter):
    """Records what would be sent, and sends nothing."""

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        raise Unsent(request)


def open_client(endpoint: str, credentials: Any, adapter: HTTPAdapter, *, emulated: bool) -> Any:
    """A TpuClient whose every request leaves through `adapter`. Environment variables cannot change its endpoint."""
    transport = TpuRestTransport(host=endpoint, credentials=credentials)
    session = transport._session  # private, but the only way to its adapters; a test would notice if it moved
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    session.trust_env = not emulated
    session.auth = _keep  # with an auth of our own, requests does not ask .netrc for another one
    return tpu_v2.TpuClient(transport=transport)


def copy_client(endpoint: str) -> Any:
    """A client that raises Unsent."""
    return open_client(endpoint, AnonymousCredentials(), Recorder(), emulated=True)


def post(client: Any, url: str, body: Mapping[str, Any], timeout_s: float) -> requests.Response:
    """JSON that no generated message can express, on the client's own session: same adapter, same credentials."""
    reply: requests.Response = client.transport._session.post(url, json=body, timeout=timeout_s)
    return reply


def _keep(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request
