"""Objects in Cloud Storage over its JSON API, with the service account of the machine and the standard library.

`upload` sends the results of a job, `pod_start` fetches code, and `data` what a job reads. STORAGE_EMULATOR_HOST, the variable
of Google's own clients, names an emulator; no token goes there.

TPUs are billed meanwhile, and a pod that is stopped has seconds: each try runs in a thread of its own, which is left behind
where a name server, a network that swallows packets or a disk keeps it.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlsplit

TRIES, FIRST_PAUSE_S = 7, 0.5  # pauses of half a minute in all
PATIENCE_S = 120.0  # then there is no further try: tries that wait for an answer take longer
CONNECT_S = 15.0  # for a name, all its addresses and TLS together
SILENT_S = 60.0  # without a byte, once connected
TOKEN_S, TOKEN_PAUSE_S = 60.0, 1.0  # the metadata server of a new node refuses connections at first
TOKEN_TRY_S = 10.0
LOOK_S = 0.1
PIECE_BYTES = 256 << 10
STORAGE = "https://storage.googleapis.com"
ACCOUNT_PATH = "/computeMetadata/v1/instance/service-accounts/default"
TOO_LONG = "it took too long"


class Transient(Exception):
    """A transient failure: a retry may succeed."""


class Lasting(Exception):
    """A failure that no retry changes."""


def split(url: str) -> tuple[str, str]:
    """Return bucket and name of gs://BUCKET/NAME."""
    bucket, _, name = url[len("gs://") :].partition("/")
    return bucket, name


class Storage:
    """`environ`: where STORAGE_EMULATOR_HOST and GCE_METADATA_HOST are looked up. `left_s`: the seconds until all must end."""

    def __init__(
        self, environ: Mapping[str, str] = os.environ, left_s: Callable[[], float] = lambda: float("inf")
    ) -> None:
        self._environ, self._left_s = environ, left_s
        self.failures = 0  # of so many objects in a row the failure might have passed, and did not
        self._no_token_since: float | None = None

    def sparing(self, spare_s: float) -> Storage:
        """Return one that leaves so many seconds of the time to others."""
        return Storage(self._environ, lambda: self._left_s() - spare_s)

    def send(self, bucket: str, name: str, path: Path) -> str | None:
        """Send a file as an object, in one request. Return None when it arrived, else why not."""
        return self._retried(lambda attempt: self._send_once(attempt, bucket, name, path))

    def put(self, bucket: str, name: str, content: bytes, generation: str | None = None) -> str | None:
        """Store this content as an object. `generation`: only if the object has this one; "0": only if there is none."""
        return self._retried(lambda attempt: self._post(attempt, bucket, name, io.BytesIO(content), generation))

    def delete(self, bucket: str, name: str) -> str | None:
        """Delete an object; one that does not exist is fine."""

        def once(attempt: _Try) -> str | None:
            connection, authorization = self._connected(attempt)
            try:
                connection.request("DELETE", object_of(bucket, name), headers=authorization)
                reply = connection.getresponse()
                return None if reply.status == 404 else _problem(reply)
            finally:
                connection.close()

        return self._retried(once)

    def fetch(self, bucket: str, name: str, path: Path) -> str | None:
        """Store an object as a file. Return None when all of it came, else why not."""

        def once(attempt: _Try) -> str | None:
            with _on_this_disk():
                file = path.open("wb", buffering=0)
            with file:
                return self._fetch_once(attempt, f"{object_of(bucket, name)}?alt=media", {}, partial(_write_all, file))

        return self._retried(once)

    def _retried(self, once: Callable[[_Try], str | None]) -> str | None:
        """Try it again after a transient failure. After one that did not pass, the next objects have one try each."""
        began, pause_s, why = time.monotonic(), FIRST_PAUSE_S, ""
        for number in range(1 if self.failures else TRIES):
            if number and time.monotonic() - began >= PATIENCE_S:
                break
            if number:
                time.sleep(max(0.0, min(pause_s, self._left_s())))
                pause_s *= 2
            if self._left_s() <= 0:
                return why or "there was no time left"
            try:
                problem = _Try(once).outcome(self._left_s)
                self.failures = 0
                return problem
            except Lasting as error:
                return str(error)
            except (OSError, http.client.HTTPException, ValueError, Transient) as error:
                why = str(error) or type(error).__name__
        self.failures += 1
        return why

    def _send_once(self, attempt: _Try, bucket: str, name: str, path: Path) -> str | None:
        with _on_this_disk():
            file = path.open("rb")
        with file:
            return self._post(attempt, bucket, name, file)

    def _post(self, attempt: _Try, bucket: str, name: str, file: BinaryIO, generation: str | None = None) -> str | None:
        target = f"/upload/storage/v1/b/{quoted(bucket)}/o?uploadType=media&name={quoted(name)}"
        if generation is not None:
            target += f"&ifGenerationMatch={generation}"
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size_bytes)}
        connection, authorization = self._connected(attempt)
        try:
            connection.request("POST", target, body=_Until(file, self._left_s), headers={**headers, **authorization})
            return _problem(connection.getresponse())
        finally:
            connection.close()

    def _fetch_once(
        self, attempt: _Try, target: str, headers: dict[str, str], take: Callable[[bytes], object]
    ) -> str | None:
        """Pass what the API answers on to `take`, piece by piece."""
        connection, authorization = self._connected(attempt)
        try:
            connection.request("GET", target, headers={**headers, **authorization})
            reply = connection.getresponse()
            if reply.status >= 300:
                return _problem(reply)
            for piece in iter(lambda: reply.read(PIECE_BYTES), b""):
                with _on_this_disk():
                    take(piece)
                if self._left_s() <= 0:
                    return TOO_LONG
            if reply.length:  # `read` takes the end of a connection for the end of the content
                raise Transient("the connection broke off")
            return None
        finally:
            connection.close()

    def _connected(self, attempt: _Try) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        """Return a connection that has been made, and the header that signs its requests."""
        endpoint = self._environ.get("STORAGE_EMULATOR_HOST")
        authorization = {} if endpoint else {"Authorization": f"Bearer {self._token()}"}
        url = endpoint or STORAGE
        parts = urlsplit(url if "//" in url else f"http://{url}")
        kind = http.client.HTTPConnection if parts.scheme == "http" else http.client.HTTPSConnection
        return attempt.connected(kind(parts.netloc, timeout=CONNECT_S)), authorization

    def _token(self) -> str:
        """Return a token of the machine's service account. Once none has come for TOKEN_S, it is asked for once at a time."""
        while True:
            try:
                token = str(json.loads(self._metadata("token"))["access_token"])
                self._no_token_since = None
                return token
            except (OSError, http.client.HTTPException, ValueError, KeyError, Transient) as error:
                now = time.monotonic()
                if self._no_token_since is None:
                    self._no_token_since = now
                if now - self._no_token_since >= TOKEN_S or self._left_s() <= TOKEN_PAUSE_S:
                    raise Transient(f"the metadata server gave no token: {error}") from error
            time.sleep(TOKEN_PAUSE_S)

    def _metadata(self, key: str) -> bytes:
        """Return what the metadata server says of the machine's service account. Raises what `_token` catches."""
        host = self._environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        connection = http.client.HTTPConnection(host, timeout=TOKEN_TRY_S)
        try:
            connection.request("GET", f"{ACCOUNT_PATH}/{key}", headers={"Metadata-Flavor": "Google"})
            reply = connection.getresponse()
            said = reply.read()
        finally:
            connection.close()
        if reply.status != 200:
            raise Transient(f"HTTP {reply.status}")
        return said


class _Try:
    """One try, in a thread of its own."""

    def __init__(self, once: Callable[[_Try], str | None]) -> None:
        self._once = once
        self._end: Future[str | None] = Future()
        self._connects_since: float | None = None
        self._left_behind = False

    def outcome(self, left_s: Callable[[], float]) -> str | None:
        """Run it; return what it returns, or raise what it raises: Lasting once `left_s` is over."""
        threading.Thread(target=self._run, name="storage", daemon=True).start()
        while not wait([self._end], LOOK_S).done:
            since = self._connects_since
            if left_s() <= 0:
                self._left_behind = True
                raise Lasting(TOO_LONG)
            if since is not None and time.monotonic() - since >= CONNECT_S:
                self._left_behind = True
                raise Transient(f"no connection in {CONNECT_S:.0f} s")
        return self._end.result()

    def connected(self, connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
        """Connect. In the thread of the try, which ends here if it was left behind meanwhile."""
        self._connects_since = time.monotonic()
        connection.connect()
        self._connects_since = None
        if self._left_behind:  # the next try has begun, with the same file
            connection.close()
            raise Lasting(TOO_LONG)
        connection.sock.settimeout(SILENT_S)
        return connection

    def _run(self) -> None:
        try:
            self._end.set_result(self._once(self))
        except BaseException as error:  # `outcome` raises it
            self._end.set_exception(error)


def object_of(bucket: str, name: str) -> str:
    """Return the path of an object in the API."""
    return f"/storage/v1/b/{quoted(bucket)}/o/{quoted(name)}"


def _write_all(file: io.FileIO, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[file.write(rest) :]


def quoted(name: str) -> str:
    """Return it as a part of a path or a query in the API. Raises Lasting."""
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise Lasting("its name is not in UTF-8, as Cloud Storage wants it") from None


@contextlib.contextmanager
def _on_this_disk() -> Iterator[None]:
    """Raise Lasting for a failure of a file."""
    try:
        yield
    except OSError as error:
        raise Lasting(error.strerror or str(error)) from error


def _problem(reply: http.client.HTTPResponse) -> str | None:
    """Return why a request failed, None if it did not. Raises Transient."""
    said = reply.read(2000).decode("utf-8", "replace")
    if reply.status < 300:
        return None
    words = f"HTTP {reply.status} {' '.join(said.split())[:200]}"
    if reply.status in (401, 408, 429) or reply.status >= 500:
        raise Transient(words)
    return words


class _Until:
    """The body of a request. Its reading fails once the time is over."""

    def __init__(self, file: BinaryIO, left_s: Callable[[], float]) -> None:
        self._file, self._left_s = file, left_s

    def read(self, size: int = -1) -> Any:
        if self._left_s() <= 0:
            raise Lasting(TOO_LONG)
        with _on_this_disk():
            return self._file.read(size)
