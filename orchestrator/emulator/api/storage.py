"""Cloud Storage: buckets of objects, by the JSON API, as far as jobs and their clients use it.

STORAGE_EMULATOR_HOST makes clients send no token, so what calls is recognized as a process of this user (`authentication`).
Every bucket exists. Objects are files of the state directory; an upload that breaks off leaves nothing.
"""

import asyncio
import base64
import hashlib
import json
import os
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from orchestrator.emulator.faults.active_faults import NoReply
from orchestrator.vm.crc32c import crc32c

BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
PATHS = ("/storage/v1/", "/upload/storage/v1/", "/download/storage/v1/")
PIECE_BYTES = 1 << 20
PAGE = 1000


class Refused(Exception):
    """An error of this API, which has another form than those of Cloud TPU: no status by name."""

    def __init__(self, http: int, message: str, reason: str) -> None:
        super().__init__(message)
        self.http, self.message, self.reason = http, message, reason

    def reply(self) -> web.Response:
        """Return it as the API sends it."""
        one = {"message": self.message, "domain": "global", "reason": self.reason}
        body = {"error": {"code": self.http, "message": self.message, "errors": [one]}}
        return web.json_response(body, status=self.http)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What the API says of an object."""

    name: str
    size: int
    md5: str
    crc32c: str = ""  # in base64, like `md5`
    generation: int = 1  # microseconds since 1970: when it was stored

    def as_json(self, bucket: str) -> dict[str, str]:
        """Return the object as a resource of the API."""
        found = {
            "kind": "storage#object",
            "bucket": bucket,
            "name": self.name,
            "generation": str(self.generation),
            "metageneration": "1",
            "updated": f"{datetime.fromtimestamp(self.generation / 1e6, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
        }
        hashes = {"md5Hash": self.md5, "crc32c": self.crc32c}
        return found | {"size": str(self.size)} | {name: value for name, value in hashes.items() if value}


class StorageApi:
    """The routes of buckets and objects. `directory` is made with the first upload."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._listed: dict[str, dict[str, StoredObject]] = {}  # by bucket and name, once it was listed

    def routes(self) -> list[web.RouteDef]:
        """Return the routes of all handlers."""
        bucket = "/storage/v1/b/{bucket}"
        named = f"{bucket}/o/{{name:.+}}"
        return [
            web.get(bucket, _replying(self.describe_bucket, "buckets.get")),
            web.get(f"{bucket}/o", _replying(self.list_objects, "objects.list")),
            web.post(f"/upload{bucket}/o", _replying(self.upload, "objects.insert")),
            web.get(named, _replying(self.get_object, "objects.get")),
            web.get(f"/download{named}", _replying(self.download, "objects.get")),
            web.delete(named, _replying(self.delete_object, "objects.delete")),
        ]

    async def describe_bucket(self, request: web.Request) -> web.Response:
        """Reply with a bucket near every TPU of the emulated cloud."""
        bucket = _bucket(request)
        return web.json_response(
            {"kind": "storage#bucket", "name": bucket, "location": "US", "locationType": "multi-region"}
        )

    async def list_objects(self, request: web.Request) -> web.Response:
        """Reply with the objects of a prefix, a page of them."""
        bucket, prefix = _bucket(request), request.query.get("prefix", "")
        try:
            after = base64.urlsafe_b64decode(request.query.get("pageToken", "")).decode()
            most = max(1, min(int(request.query.get("maxResults", PAGE)), PAGE))
        except ValueError:
            raise Refused(400, "Invalid value for maxResults or pageToken", "invalid") from None
        if bucket not in self._listed:
            found = await asyncio.to_thread(lambda: [*map(_read, (self.directory / bucket).glob("*.json"))])
            self._listed.setdefault(bucket, {each.name: each for each in found})
        effect = fault.kind if (fault := request.get("effect")) else None
        if effect == "page_error" and after:
            raise Refused(500, "We encountered an internal error. Please try again.", "backendError")
        objects = self._listed[bucket]
        left = sorted(name for name in objects if name.startswith(prefix) and name > after)
        shown = [objects[name].as_json(bucket) for name in left[: 1 if effect == "page_error" else most]]
        reply: dict[str, object] = {"kind": "storage#objects"} | ({"items": shown} if shown else {})
        if len(left) > len(shown) or (effect == "page_loop" and shown):
            last = after if effect == "page_loop" else shown[-1]["name"]
            reply["nextPageToken"] = base64.urlsafe_b64encode(last.encode()).decode()
        return web.json_response(reply)

    async def upload(self, request: web.Request) -> web.Response:
        """Store the body of the request as an object."""
        bucket, name = _bucket(request), request.query.get("name", "")
        if request.query.get("uploadType") != "media":
            raise Refused(400, "The emulator takes uploads with uploadType=media only.", "invalid")
        if not name or len(name.encode()) > 1024 or "\n" in name or "\r" in name:
            raise Refused(400, "Invalid object name", "invalid")
        self._check_new(request, bucket, name)
        target = self._file(bucket, name, "data")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        size, crc, digest = 0, 0, hashlib.md5(usedforsecurity=False)
        number, draft = tempfile.mkstemp(dir=target.parent, prefix="draft-")
        try:
            with os.fdopen(number, "wb") as file:
                async for piece in request.content.iter_chunked(PIECE_BYTES):
                    file.write(piece)
                    digest.update(piece)
                    crc = crc32c(piece, crc)
                    size += len(piece)
            self._check_new(request, bucket, name)  # another upload may have been quicker
            Path(draft).rename(target)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
        md5, checksum = (base64.b64encode(each).decode() for each in (digest.digest(), crc.to_bytes(4, "big")))
        stored = StoredObject(name, size, md5, checksum, time.time_ns() // 1000)
        self._file(bucket, name, "json").write_text(json.dumps(asdict(stored)))
        if bucket in self._listed:
            self._listed[bucket][name] = stored
        return web.json_response(stored.as_json(bucket))

    async def get_object(self, request: web.Request) -> web.StreamResponse:
        """Reply with the object's description, or with `alt=media` with its content."""
        if request.query.get("alt") == "media":
            return await self.download(request)
        return web.json_response(_read(self._found(request)).as_json(_bucket(request)))

    async def download(self, request: web.Request) -> web.StreamResponse:
        """Reply with the object's content, or a range of it."""
        found, effect = self._found(request).with_suffix(".data"), request.get("effect")
        if effect is None:
            return web.FileResponse(found)
        begin, content = request.http_range.start or 0, found.read_bytes()
        part = content[request.http_range]
        ranged = {"Content-Range": f"bytes {begin}-{begin + len(part) - 1}/{len(content)}"}
        response = web.StreamResponse(status=206, headers=ranged | {"Content-Length": str(len(part))})
        await response.prepare(request)
        if effect.kind == "content_wrong":
            await response.write(bytes([part[0] ^ 1]) + part[1:])
            return response
        await response.write(part[: effect.parameters["after_bytes"]])
        raise NoReply

    async def delete_object(self, request: web.Request) -> web.Response:
        """Delete the object."""
        found = self._found(request)
        found.unlink()
        found.with_suffix(".data").unlink()
        self._listed.get(_bucket(request), {}).pop(request.match_info["name"], None)
        return web.Response(status=204)

    def _check_new(self, request: web.Request, bucket: str, name: str) -> None:
        if request.query.get("ifGenerationMatch") == "0" and self._file(bucket, name, "json").exists():
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")

    def _found(self, request: web.Request) -> Path:
        bucket, name = _bucket(request), request.match_info["name"]
        found = self._file(bucket, name, "json")
        if not found.exists():
            raise Refused(404, f"No such object: {bucket}/{name}", "notFound")
        wanted = request.query.get("generation")
        if wanted is not None and wanted != str(_read(found).generation):
            raise Refused(404, f"No such object: {bucket}/{name}#{wanted}", "notFound")
        return found

    def _file(self, bucket: str, name: str, kind: str) -> Path:
        return self.directory / bucket / f"{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()}.{kind}"


def _replying(handler: Handler, operation: str) -> Handler:
    return partial(_replied, handler, operation=f"storage.{operation}")


async def _replied(handler: Handler, request: web.Request, *, operation: str) -> web.StreamResponse:
    """`operation` is for `method_of`."""
    try:
        return await handler(request)
    except Refused as refused:
        return refused.reply()


def _bucket(request: web.Request) -> str:
    bucket = request.match_info["bucket"]
    if not BUCKET.fullmatch(bucket):
        raise Refused(400, f"Invalid bucket name: '{bucket}'", "invalid")
    return bucket


def _read(path: Path) -> StoredObject:
    return StoredObject(**json.loads(path.read_text()))
