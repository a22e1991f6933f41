"""One HTTP request with the standard library: a whole reply within a time, or an error that says why not.

Proxies and certificates are those of the environment, as with requests; redirections are not followed, and a reply that is too
long or too slow is an error.

`api_call` is one call of a JSON API of Google, with a bearer token: the object that it answers, or a CloudError.
Real tokens go to https://*.googleapis.com only; an emulator's goes to its own address, which
`credentials.safe_address` checks.
"""

import base64
import contextlib
import http.client
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from orchestrator.errors import CloudUnavailable, NotSent
from orchestrator.places.google import error_translation, transcript
from orchestrator.promise.lease.cloud_api import Bearer, always
from orchestrator.system import sockets

MAX_REPLY_BYTES = 32 << 20  # a page of nodes is a thousand times smaller
CHUNK_BYTES = 1 << 16
CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")  # the first two as requests


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of any status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(
    method: str,
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    proxies: bool,
    ours: bool = False,
    in_time: Callable[[], bool] = always,
) -> Reply:
    """Send one request and return its reply. Raises CloudUnavailable if the reply is not whole within `timeout_s`.

    `ours`: send only to a process of this user. `proxies`: use those of the environment. `in_time` is asked once the connection
    is there; nothing is sent if it says no.
    """
    give_up_at = time.monotonic() + timeout_s
    parts = urlsplit(url)
    host = parts.netloc
    connection = connection_to(parts.scheme, host, timeout_s, proxies=proxies)
    with contextlib.closing(connection):
        with translated(host):
            connection.connect()
            if ours:
                sockets.expect_ours(connection.sock, timeout_s)
            if not in_time():
                raise NotSent(f"the call to {host} was not sent: this machine, or tpujob, stood still before it")
            connection.request(method, url.partition(host)[2], body, dict(headers))
            sock = connection.sock  # the connection drops it if the server announces that this reply is the last
            response = connection.getresponse()
        with translated(host, answered=True):
            content = _whole(response, sock, give_up_at)
    return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, content)


@contextlib.contextmanager
def translated(host: str, *, answered: bool = False) -> Iterator[None]:
    """Raise CloudUnavailable for a connection that cannot be made, or that broke off. `answered`: a reply has begun."""
    try:
        yield
    except TimeoutError as error:
        raise CloudUnavailable(f"{host} did not answer in time") from error
    except (OSError, http.client.HTTPException) as error:
        if answered:
            raise CloudUnavailable(f"the reply of {host} broke off: {_cause(error)}") from error
        raise CloudUnavailable(f"{host} cannot be reached: {_cause(error)}", hint=_hint(error)) from error


def _whole(response: http.client.HTTPResponse, sock: socket.socket, give_up_at: float) -> bytes:
    """Read piece by piece, so that a server that sends a byte now and then cannot exceed the time."""
    pieces: list[bytes] = []
    size = 0
    while not response.isclosed():  # from Python 3.13 on it closes itself, and perhaps the socket, with its last byte
        left_s = give_up_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        sock.settimeout(left_s)
        piece = response.read1(CHUNK_BYTES)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
        if size > MAX_REPLY_BYTES:
            raise http.client.HTTPException(f"it is longer than {MAX_REPLY_BYTES >> 20} MiB")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)


def connection_to(scheme: str, host: str, timeout_s: float, *, proxies: bool) -> http.client.HTTPConnection:
    """Return a connection, not open yet. `proxies`: by that of the environment. Raises CloudUnavailable."""
    if scheme == "http":  # an emulator on loopback, or a metadata server: never through a proxy
        return http.client.HTTPConnection(host, timeout=timeout_s)
    import ssl  # takes 10 ms, and an emulator needs none

    context = ssl.create_default_context(cafile=authorities())
    proxy = proxy_for(host) if proxies else None
    if proxy is None:
        return http.client.HTTPSConnection(host, timeout=timeout_s, context=context)
    assert proxy.hostname is not None, "proxy_for checks it"
    # Plain to the proxy; TLS, with the host itself, inside the tunnel.
    connection = http.client.HTTPSConnection(proxy.hostname, proxy.port or 80, timeout=timeout_s, context=context)
    connection.set_tunnel(host, 443, _proxy_login(proxy))
    return connection


def proxy_for(host: str) -> SplitResult | None:
    """Return the HTTP proxy to a host by HTTPS_PROXY, ALL_PROXY and NO_PROXY. Raises CloudUnavailable for another kind."""
    from urllib.request import getproxies_environment, proxy_bypass  # 10 ms, and an emulator is behind no proxy

    named = getproxies_environment()
    url = named.get("https") or named.get("all")
    if not url or proxy_bypass(host):
        return None
    proxy = urlsplit(url if "://" in url else f"http://{url}")
    if proxy.scheme != "http" or not proxy.hostname:  # its login is not for the message
        where = f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}"
        raise CloudUnavailable(f"the proxy {where} is of an unsupported kind", hint="see HTTPS_PROXY")
    return proxy


def _proxy_login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


def authorities() -> str | None:
    """Return the file with the certificates to trust: the one that the environment names, else that of certifi."""
    named = next(filter(None, map(os.environ.get, CERTIFICATES)), None)
    if named:
        return named
    try:
        import certifi  # the system's certificates do where it is not installed
    except ImportError:
        return None  # the system's
    return str(certifi.where())


def _cause(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return f"{error.expected} bytes are missing"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _hint(error: Exception) -> str | None:
    if type(error).__module__ == "ssl":
        return "a proxy that intercepts TLS? Then REQUESTS_CA_BUNDLE must name its certificate"
    return "see HTTPS_PROXY" if "Tunnel connection failed" in str(error) else None


TIMEOUT_S = 15.0
TRANSCRIPT = "TPUJOB_TRANSCRIPT"  # the variable that names its file
CALL_LOG = logging.getLogger("tpujob.api")  # `--verbose` prints it


@dataclass(frozen=True, slots=True)
class ApiReply:
    """A reply of an API: its JSON, and its Date header, the server's clock."""

    data: dict[str, Any]
    date: str | None = None

    @property
    def server_now(self) -> float | None:
        """Unix seconds, the server's clock; None if the reply has no Date that can be read."""
        try:
            return parsedate_to_datetime(self.date or "").timestamp()
        except (TypeError, ValueError):
            return None


def api_call(
    method: str,
    url: str,
    body: Mapping[str, Any] | None,
    bearer: Bearer,
    *,
    emulated: bool,
    timeout_s: float = TIMEOUT_S,
    in_time: Callable[[], bool] = always,
) -> ApiReply:
    """Send it once, or once more after a 401 that a new token may cure; not at all once `in_time` says no.

    Raises a CloudError for any reply that is not a JSON object with a status below 300.
    """
    headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
    sent = None if body is None else json.dumps(body).encode()
    host, _, path = url.partition("://")[2].partition("/")

    def send() -> Reply:
        signed = {**headers, "Authorization": f"Bearer {bearer.token()}"}
        project: str | None = getattr(bearer, "quota_project", None)
        if project:  # of a person's login: there its calls are counted
            signed["X-Goog-User-Project"] = project
        began, answer = time.monotonic(), "no reply"
        came: Reply | str = ""
        try:
            came = reply = fetch(
                method, url, sent, signed, timeout_s=timeout_s, proxies=not emulated, ours=emulated, in_time=in_time
            )
            answer = str(reply.status)
            return reply
        except CloudUnavailable as error:
            came = error.message
            raise
        finally:
            took_s = time.monotonic() - began
            CALL_LOG.debug("%s /%s %s in %.2f s", method, path, answer, took_s)
            if file := os.environ.get(TRANSCRIPT):
                status = None if isinstance(came, str) else came.status
                said = came if isinstance(came, str) else came.body.decode("utf-8", "replace")
                transcript.record(file, method, f"/{path}", body, status, said, took_s, project)

    reply = send()
    if reply.status == 401 and bearer.renewable:
        bearer.renew()
        reply = send()
    text = reply.body.decode("utf-8", "replace")
    if reply.status >= 300:
        after = reply.headers.get("retry-after")
        raise error_translation.http_error(
            reply.status, text, host=host, asked=url, retry_after=after, emulated=emulated
        )
    return ApiReply(error_translation.json_object(text, host), reply.headers.get("date"))
