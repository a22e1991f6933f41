"""Objects in Cloud Storage over its JSON API, with the service account of the machine and the standard library.

`upload` sends the results of a job, and `pod_code` fetches code. STORAGE_EMULATOR_HOST, the variable of Google's own clients,
names an emulator; no token goes there.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, BinaryIO

TRIES, FIRST_PAUSE_S = 5, 0.5
TIMEOUT_S = 300.0
PIECE_BYTES = 1 << 20
STORAGE = "https://storage.googleapis.com"
TOKEN_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"  # noqa: S105 - no password, a path


class Transient(Exception):
    """A transient failure: a retry may succeed."""


def split(url: str) -> tuple[str, str]:
    """Return bucket and name of gs://BUCKET/NAME."""
    bucket, _, name = url[len("gs://") :].partition("/")
    return bucket, name


class Storage:
    """`environ`: where STORAGE_EMULATOR_HOST and GCE_METADATA_HOST are looked up. `left_s`: the seconds until all must end."""

    def __init__(
        self, environ: Mapping[str, str] = os.environ, left_s: Callable[[], float] = lambda: TIMEOUT_S
    ) -> None:
        self._environ, self._left_s = environ, left_s
        self._tries = TRIES

    def send(self, bucket: str, name: str, path: Path) -> str | None:
        """Send a file as an object, in one request. Return None when it arrived, else why not."""
        return self._retried(lambda: self._send_once(bucket, name, path))

    def fetch(self, bucket: str, name: str, path: Path) -> str | None:
        """Store an object as a file. Return None when all of it came, else why not."""
        return self._retried(lambda: self._fetch_once(bucket, name, path))

    def _retried(self, once: Callable[[], str | None]) -> str | None:
        """Try it again after a transient failure. After one that did not pass, the next objects have one try each."""
        pause_s, why = FIRST_PAUSE_S, ""
        for attempt in range(self._tries):
            if attempt:
                time.sleep(max(0.0, min(pause_s, self._left_s())))
                pause_s *= 2
            if self._left_s() <= 0:
                return why or "there was no time left"
            try:
                problem = once()
                self._tries = TRIES
                return problem
            except (OSError, http.client.HTTPException, ValueError, Transient) as error:
                why = str(error) or type(error).__name__
        self._tries = 1
        return why

    def _send_once(self, bucket: str, name: str, path: Path) -> str | None:
        with path.open("rb") as file:
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Length": str(os.fstat(file.fileno()).st_size),
            }
            target = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?uploadType=media&name={quote(name, safe='')}"
            connection, authorization = self._connect()
            try:
                connection.request(
                    "POST", target, body=_Until(file, self._left_s), headers={**headers, **authorization}
                )
                return _problem(connection.getresponse())
            finally:
                connection.close()

    def _fetch_once(self, bucket: str, name: str, path: Path) -> str | None:
        connection, authorization = self._connect()
        try:
            target = f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}?alt=media"
            connection.request("GET", target, headers=authorization)
            reply = connection.getresponse()
            if reply.status >= 300:
                return _problem(reply)
            with path.open("wb") as file:
                for piece in iter(lambda: reply.read(PIECE_BYTES), b""):
                    file.write(piece)
                    if self._left_s() <= 0:
                        return "it took too long"
            if reply.length:  # `read` takes the end of a connection for the end of the content
                raise Transient("the connection broke off")
            return None
        finally:
            connection.close()

    def _connect(self) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        """Return a connection, and the header that signs its requests."""
        endpoint, timeout_s = self._environ.get("STORAGE_EMULATOR_HOST"), max(1.0, min(TIMEOUT_S, self._left_s()))
        authorization = {} if endpoint else {"Authorization": f"Bearer {self._token()}"}
        url = endpoint or STORAGE
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.netloc, timeout=timeout_s), authorization
        return http.client.HTTPSConnection(parts.netloc, timeout=timeout_s), authorization

    def _token(self) -> str:
        host = self._environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        connection = http.client.HTTPConnection(host, timeout=10)
        try:
            connection.request("GET", TOKEN_PATH, headers={"Metadata-Flavor": "Google"})
            reply = connection.getresponse()
            said = reply.read()
        finally:
            connection.close()
        if reply.status != 200:
            raise Transient(f"the metadata server gave no token: HTTP {reply.status}")
        return str(json.loads(said)["access_token"])


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
            raise TimeoutError("it took too long")
        return self._file.read(size)
