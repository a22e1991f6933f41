"""The HTTP side of google-cloud-tpu: a generated client on a session that checks every reply before generated code sees it.

Import it lazily: it imports google-cloud-tpu and requests. It adds to the library: errors are translated from the raw reply;
redirections are never followed; .netrc is never read; an emulated session ignores proxies of the environment and connects to
processes of this user only; and the reply's JSON stays available where the generated parser is too strict.
"""

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

from orchestrator.errors import CloudError
from orchestrator.places.tpu.api.calls import ApiReply, logged, read_reply
from orchestrator.system import sockets

LIBRARY_ERRORS = (requests.RequestException, GoogleAuthError, GoogleAPICallError, ParseError)
PARSE_ERROR = ParseError
CONNECT_TIMEOUT_S = 15.0  # for a call without a timeout


class _OwnConnection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        sockets.expect_ours(self.sock, self.sock.gettimeout() or CONNECT_TIMEOUT_S)


class _OwnPool(HTTPConnectionPool):
    """Connections to processes of this user."""

    ConnectionCls = _OwnConnection


class Adapter(HTTPAdapter):
    """Sends once, without retries. Raises a CloudError for any reply that is not a JSON object with a status below 300.

    Exception: a well-formed 401 of Google passes, because google-auth then renews the token and sends again.
    """

    def __init__(self, host: str, *, emulated: bool) -> None:
        super().__init__(max_retries=0)
        self._host = host
        self._emulated = emulated
        self._seen = threading.local()
        if emulated:
            self.poolmanager.pool_classes_by_scheme = {"http": _OwnPool}

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        self._seen.reply = ApiReply({})
        with logged(str(request.method), str(request.url)) as status:
            reply = super().send(request, *arguments, **options)
            status.append(reply.status_code)
        sent = (reply.status_code, reply.content, reply.headers)
        try:
            self._seen.reply = read_reply(*sent, host=self._host, url=str(request.url), emulated=self._emulated)
        except CloudError as error:
            if reply.status_code != 401 or self._emulated or not isinstance(error.details, dict):
                raise
        return reply

    def last_reply(self) -> ApiReply:
        """Return the reply to the latest call of this thread."""
        reply: ApiReply = self._seen.reply
        return reply


class Unsent(Exception):
    """Raised by a Recorder instead of sending the request."""

    def __init__(self, request: requests.PreparedRequest) -> None:
        super().__init__("recorded, not sent")
        self.request = request


class Recorder(HTTPAdapter):
    """Records requests, and sends nothing."""

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        raise Unsent(request)


def open_client(endpoint: str, credentials: Any, adapter: HTTPAdapter, *, emulated: bool) -> Any:
    """Return a TpuClient that sends every request through `adapter`. Environment variables cannot change its endpoint."""
    transport = TpuRestTransport(host=endpoint, credentials=credentials)
    session = transport._session  # private, but the only way to its adapters; a test fails if it is renamed
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    session.trust_env = not emulated
    session.auth = lambda request: request  # requests reads .netrc only without an auth
    return tpu_v2.TpuClient(transport=transport)


def recording_client(endpoint: str) -> Any:
    """Return a client that raises Unsent instead of sending."""
    return open_client(endpoint, AnonymousCredentials(), Recorder(), emulated=True)


def post(client: Any, url: str, body: Mapping[str, Any], timeout_s: float) -> requests.Response:
    """Send JSON that no generated message can express, on the client's session: same adapter, same credentials."""
    reply: requests.Response = client.transport._session.post(url, json=body, timeout=timeout_s)
    return reply
