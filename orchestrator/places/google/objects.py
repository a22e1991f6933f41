"""Cloud Storage over its JSON API, with the standard library: where a bucket is, and its objects.

The code of a job goes up, its results come down. Real credentials are sent to https://storage.googleapis.com only; an emulator
of it (STORAGE_EMULATOR_HOST, as in Google's own clients) gets none. Contents are streamed: neither memory nor a reply limits
their size.
"""

import base64
import contextlib
import hashlib
import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlencode

from orchestrator.capacity import egress
from orchestrator.capacity.egress import Bucket
from orchestrator.errors import AlreadyExists, AuthError, BadRequest, CloudError, CloudUnavailable, WrongState
from orchestrator.places.google import error_translation
from orchestrator.places.google.credentials import GoogleToken
from orchestrator.places.google.error_translation import NotFound
from orchestrator.places.google.fetch import ApiReply, Reply, connection_to, fetch, translated
from orchestrator.promise.lease.cloud_api import Bearer
from orchestrator.vm.buckets.cloud_storage import STORAGE, object_of, quoted, split

LOOKUP_TIMEOUT_S = 10.0
_FIELDS = "location,locationType,customPlacementConfig"


def bucket(name: str, *, project: str = "", emulator: str | None = None, bearer: Bearer | None = None) -> Bucket | None:
    """Return the bucket; None if the reply has no location, as an emulator's. `project`: for hints. Raises CloudError."""
    endpoint = _endpoint(emulator)
    headers = {"Accept": "application/json"}
    if emulator is None:
        headers["Authorization"] = f"Bearer {(bearer or GoogleToken()).token()}"
    url = f"{endpoint}/storage/v1/b/{quoted(name)}?fields={quoted(_FIELDS)}"
    reply = fetch("GET", url, None, headers, timeout_s=LOOKUP_TIMEOUT_S, proxies=emulator is None)
    text = reply.body.decode("utf-8", "replace")
    host = endpoint.partition("://")[2]
    if reply.status == 404 and emulator is None:
        raise BadRequest(f"there is no bucket gs://{name}", hint="create it, or correct its name in the job")
    if reply.status >= 300 and emulator is not None:
        return None  # many emulators have objects only
    if reply.status >= 300:
        raise error_translation.http_error(reply.status, text, host=host, asked=f"projects/{project}")
    return egress.from_reply(name, error_translation.json_object(text, host))


def _endpoint(emulator: str | None) -> str:
    found = STORAGE if emulator is None else emulator
    return (found if "//" in found else f"http://{found}").rstrip("/")


TIMEOUT_S = 60.0
TRIES, FIRST_PAUSE_S = 4, 0.5
PIECE_BYTES = 1 << 20
REPLY_BYTES = 4 << 20  # of JSON, or of an error
PAGE = 1000
OF_OBJECTS = "storage.objects."  # the names of permissions begin so

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing shows it."""

    name: str
    size_bytes: int
    md5: str = ""  # in base64, as the API has it; empty for one that was composed


class Objects:
    """The objects of buckets that this machine's login may reach. URLs are gs://BUCKET/NAME.

    `timeout_s`: of each try, without a byte; `read` and `replace` have it for the whole reply.
    """

    def __init__(self, *, emulator: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._endpoint, self._emulated = _endpoint(emulator), emulator is not None
        self._bearer: Bearer | None = None if self._emulated else GoogleToken()

    def upload(self, url: str, path: Path) -> None:
        """Store a file as a new object, in one request; a retry of it has no second effect.

        Raises AlreadyExists if the name is taken by another content, and CloudErrors.
        """
        bucket, name = split(url)
        query = {"uploadType": "media", "name": name, "ifGenerationMatch": "0"}
        target = f"/upload/storage/v1/b/{quoted(bucket)}/o?{urlencode(query)}"

        def send() -> None:
            with path.open("rb") as file:
                headers = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)}
                with self._asked("POST", url, target, headers, file):
                    pass

        try:
            _retried(send)
        except WrongState as taken:  # 412: perhaps by an earlier try of this very call
            if _stored(self._json(url, object_of(bucket, name))) != StoredObject(name, path.stat().st_size, _md5(path)):
                raise AlreadyExists(f"{url} exists already, with another content") from taken

    def download(self, url: str) -> Iterator[bytes]:
        """Yield the content of an object, all of it; what breaks off is continued. Raises CloudErrors, NotFound among them."""
        got, failures, pause_s = 0, 0, FIRST_PAUSE_S
        while True:
            try:
                for piece in self._content(url, got):
                    got, failures, pause_s = got + len(piece), 0, FIRST_PAUSE_S
                    yield piece
                return
            except CloudUnavailable:
                failures += 1
                if failures == TRIES:
                    raise
            time.sleep(pause_s)
            pause_s *= 2

    def _content(self, url: str, begin: int) -> Iterator[bytes]:
        """Yield what an object has from a byte on, in one request."""
        target = f"{object_of(*split(url))}?alt=media"
        with self._asked("GET", url, target, {"Range": f"bytes={begin}-"} if begin else None) as reply:
            skip = 0 if reply.status == 206 else begin  # all of it comes where ranges are not known
            if begin and not skip and not reply.getheader("Content-Range", "").startswith(f"bytes {begin}-"):
                raise CloudUnavailable(f"{self._host} answered another part than was asked for")
            while True:
                with translated(self._host):
                    piece = reply.read(PIECE_BYTES)
                if not piece:
                    break
                left_out = min(skip, len(piece))
                skip -= left_out
                if left_out < len(piece):
                    yield piece[left_out:]
            if reply.length:
                raise CloudUnavailable(f"{self._host} broke off: {reply.length} bytes are missing")

    def list(self, url: str) -> list[StoredObject]:
        """Return every object whose name begins with that of `url`. Raises CloudErrors."""
        return [each for page in self.pages(url) for each in page]

    def pages(self, url: str) -> Iterator[Sequence[StoredObject]]:
        """Yield the same, page by page."""
        bucket, prefix = split(url)
        token: str | None = ""
        while token is not None:
            query = {"prefix": prefix, "maxResults": str(PAGE), **({"pageToken": token} if token else {})}
            page = self._json(url, f"/storage/v1/b/{quoted(bucket)}/o?{urlencode(query)}")
            items = page.get("items", [])
            if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                raise CloudUnavailable(f"{self._host} answered a list that is none")
            yield [*map(_stored, items)]
            following = page.get("nextPageToken")
            if following and str(following) == token:
                raise CloudUnavailable(f"{self._host} answered a list that does not end")
            token = str(following) if following else None

    def delete(self, url: str) -> None:
        """Delete an object; one that does not exist is fine. Raises CloudErrors."""
        bucket, name = split(url)

        def ask() -> None:
            with self._asked("DELETE", url, object_of(bucket, name)):
                pass

        with contextlib.suppress(NotFound):
            _retried(ask)

    def read(self, url: str) -> tuple[bytes, str, float]:
        """Return content and generation of a small object, both empty if there is none, and the bucket's time (unix seconds).

        Raises CloudErrors: BadRequest if there is no bucket.
        """

        def ask() -> tuple[bytes, str, float]:
            reply = self._whole("GET", url, f"{object_of(*split(url))}?alt=media")
            now = ApiReply({}, reply.headers.get("date")).server_now
            generation = reply.headers.get("x-goog-generation", "")
            absent = reply.status == 404
            if now is None or not (absent or (reply.status == 200 and generation)):
                raise CloudUnavailable(f"{self._host} answered for {url} without its clock or the object's generation")
            return (b"", "", now) if absent else (reply.body, generation, now)

        return _retried(ask)

    def replace(self, url: str, content: bytes, generation: str) -> bool:
        """Store a small object in place of this generation of it; empty: of none. False if it has another one by now.

        True also if it has this content already, as after a try whose reply was lost. Raises CloudErrors; after
        CloudUnavailable it may be stored, now or in a while.
        """
        bucket, name = split(url)
        query = {"uploadType": "media", "name": name, "ifGenerationMatch": generation or "0"}
        target = f"/upload/storage/v1/b/{quoted(bucket)}/o?{urlencode(query)}"

        def send() -> bool:
            reply = self._whole("POST", url, target, content)
            if reply.status != 412 and b'"generation"' not in reply.body:  # a reply of something in between
                raise CloudUnavailable(f"{self._host} did not confirm that {url} is stored")
            return reply.status != 412

        return _retried(send) or self.read(url)[0] == content

    def _whole(self, method: str, url: str, target: str, body: bytes | None = None) -> Reply:
        """Return a good reply; 404: there is no such object; 412: it has another generation. Raises CloudErrors."""
        headers = self._signed({} if body is None else {"Content-Type": "application/octet-stream"})
        address, proxies = f"{self._endpoint}{target}", not self._emulated
        reply = fetch(method, address, body, headers, timeout_s=self._timeout_s, proxies=proxies)
        if reply.status < 300:
            return reply
        text = reply.body.decode("utf-8", "replace")
        if reply.status == 404 and "bucket does not exist" in text:
            raise BadRequest(f"there is no bucket gs://{split(url)[0]}", hint="create it, or correct its name")
        error = self._failure(url, reply.status, text)
        if isinstance(error, NotFound) or (reply.status == 412 and isinstance(error, WrongState)):
            return reply
        raise error

    @property
    def _host(self) -> str:
        return self._endpoint.partition("://")[2]

    def _json(self, url: str, target: str) -> Mapping[str, object]:
        def ask() -> Mapping[str, object]:
            with self._asked("GET", url, target) as reply, translated(self._host):
                return error_translation.json_object(reply.read(REPLY_BYTES).decode("utf-8", "replace"), self._host)

        return _retried(ask)

    @contextlib.contextmanager
    def _asked(
        self, method: str, url: str, target: str, headers: Mapping[str, str] | None = None, body: BinaryIO | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request, and hold the connection of its reply, a good one. Raises CloudErrors."""
        signed = self._signed(headers or {})
        scheme, _, host = self._endpoint.partition("://")
        connection = connection_to(scheme, host, self._timeout_s, proxies=not self._emulated)
        try:
            with translated(self._host):
                connection.request(method, target, body, signed)
                reply = connection.getresponse()
                failed = reply.status >= 300
                text = reply.read(REPLY_BYTES).decode("utf-8", "replace") if failed else ""
            if reply.status == 404:
                raise NotFound(f"{url} does not exist")
            if failed:
                raise self._failure(url, reply.status, text)
            yield reply
        finally:
            connection.close()

    def _signed(self, headers: Mapping[str, str]) -> dict[str, str]:
        login = {} if self._bearer is None else {"Authorization": f"Bearer {self._bearer.token()}"}
        return {"Accept": "application/json", **headers, **login}

    def _failure(self, url: str, status: int, text: str) -> CloudError:
        """Return the error of a reply. After a login that has expired it is renewed, for the next try."""
        absent = text.startswith("No such object")
        # A refused download is answered with a line of text.
        if absent or (OF_OBJECTS in text and not text.startswith("{")):
            text = json.dumps({"error": {"code": status, "message": text, "errors": [{"reason": "notFound"}] * absent}})
        error = error_translation.http_error(status, text, host=self._host, emulated=self._emulated)
        if not isinstance(error, AuthError):
            return error
        if status == 401 and self._bearer and self._bearer.renewable:
            self._bearer.renew()
            return CloudUnavailable(error.message, hint=error.hint)
        hint = error.hint
        if status == 403 and OF_OBJECTS in error.message:
            hint = f"the role roles/storage.objectUser on gs://{split(url)[0]} has it"
        return AuthError(f"{url}: {error.message}", hint=hint, details=error.details, scope=error.scope)


def _stored(item: Mapping[str, object]) -> StoredObject:
    size = str(item.get("size", ""))
    return StoredObject(str(item.get("name", "")), int(size) if size.isdigit() else -1, str(item.get("md5Hash", "")))


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return base64.b64encode(hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).digest()).decode()


def _retried(call: Callable[[], T]) -> T:
    """Call it again after what may pass."""
    pause_s = FIRST_PAUSE_S
    for _ in range(TRIES - 1):
        try:
            return call()
        except CloudUnavailable:
            time.sleep(pause_s)
            pause_s *= 2
    return call()
