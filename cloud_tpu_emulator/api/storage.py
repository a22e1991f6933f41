"""Cloud Storage: buckets of objects, by the JSON API, as far as jobs and their clients use it.

STORAGE_EMULATOR_HOST makes clients send no token, so what calls is recognized as a process of this user (`every_request`).
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
from pathlib import Path

from aiohttp import web

from cloud_tpu_emulator.api.api_call import Api, ApiCall, Json, route
from cloud_tpu_emulator.faults.api_errors import ReasonedError
from cloud_tpu_emulator.faults.fault import NoReply
from cloud_tpu_emulator.vms.driver import Driver
from orchestrator.vm.buckets.crc32c import crc32c

BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
PATHS = ("/storage/v1/", "/upload/storage/v1/", "/download/storage/v1/")
ONE_BUCKET = "/storage/v1/b/{bucket}"
ONE_OBJECT = ONE_BUCKET + "/o/{name:.+}"
PIECE_BYTES = 1 << 20
PAGE = 1000


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What the API says of an object."""

    name: str
    size: int
    md5: str
    crc32c: str = ""  # in base64, like `md5`
    generation: int = 1  # microseconds since 1970: when it was stored

    def as_json(self, bucket: str) -> Json:
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


class StorageApi(Api):
    """The routes of buckets and objects. `directory` is made with the first upload."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.directory = driver.store.directory / "buckets"
        self._listed: dict[str, dict[str, StoredObject]] = {}  # by bucket and name, once it was listed
        self._changing = asyncio.Lock()  # nothing is stored or deleted while a bucket is listed for the first time

    @route("GET", ONE_BUCKET, "storage.buckets.get")
    async def describe_bucket(self, call: ApiCall) -> Json:
        """Reply with a bucket near every TPU of the emulated cloud."""
        return {"kind": "storage#bucket", "name": _bucket(call), "location": "US", "locationType": "multi-region"}

    @route("GET", ONE_BUCKET + "/o", "storage.objects.list")
    async def list_objects(self, call: ApiCall) -> Json:
        """Reply with the objects of a prefix, a page of them."""
        bucket, prefix = _bucket(call), call.query.get("prefix", "")
        try:
            after = base64.urlsafe_b64decode(call.query.get("pageToken", "")).decode()
            most = max(1, min(int(call.query.get("maxResults", PAGE)), PAGE))
        except ValueError:
            raise ReasonedError(400, "Invalid value for maxResults or pageToken", "invalid") from None
        async with self._changing:
            if bucket not in self._listed:
                found = await asyncio.to_thread(lambda: [*map(_read, (self.directory / bucket).glob("*.json"))])
                self._listed[bucket] = {each.name: each for each in found}
        effect = call.effect and call.effect.kind
        if effect == "page_error" and after:
            raise ReasonedError(500, "We encountered an internal error. Please try again.", "backendError")
        objects = self._listed[bucket]
        left = sorted(name for name in objects if name.startswith(prefix) and name > after)
        shown = [objects[name].as_json(bucket) for name in left[: 1 if effect == "page_error" else most]]
        reply: Json = {"kind": "storage#objects"} | ({"items": shown} if shown else {})
        if len(left) > len(shown) or (effect == "page_loop" and shown):
            last = after if effect == "page_loop" else shown[-1]["name"]
            reply["nextPageToken"] = base64.urlsafe_b64encode(last.encode()).decode()
        return reply

    @route("POST", "/upload" + ONE_BUCKET + "/o", "storage.objects.insert")
    async def upload(self, call: ApiCall) -> Json:
        """Store the body of the request as an object."""
        bucket, name = _bucket(call), call.query.get("name", "")
        if call.query.get("uploadType") != "media":
            raise ReasonedError(400, "The emulator takes uploads with uploadType=media only.", "invalid")
        if not name or len(name.encode()) > 1024 or "\n" in name or "\r" in name:
            raise ReasonedError(400, "Invalid object name", "invalid")
        self._check_generation(call, bucket, name)
        target = self._file(bucket, name, "data")
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        size, crc, digest = 0, 0, hashlib.md5(usedforsecurity=False)
        number, draft = tempfile.mkstemp(dir=target.parent, prefix="draft-")
        try:
            with os.fdopen(number, "wb") as file:
                async for piece in call.request.content.iter_chunked(PIECE_BYTES):
                    file.write(piece)
                    digest.update(piece)
                    crc = crc32c(piece, crc)
                    size += len(piece)
            md5, checksum = (base64.b64encode(each).decode() for each in (digest.digest(), crc.to_bytes(4, "big")))
            async with self._changing:
                self._check_generation(call, bucket, name)  # another upload may have been quicker
                described = self._file(bucket, name, "json")
                after = _read(described).generation + 1 if described.exists() else 0
                stored = StoredObject(name, size, md5, checksum, max(time.time_ns() // 1000, after))
                Path(draft).rename(target)
                described.write_text(json.dumps(asdict(stored)))
                if bucket in self._listed:
                    self._listed[bucket][name] = stored
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
        return stored.as_json(bucket)

    @route("GET", ONE_OBJECT, "storage.objects.get")
    async def get_object(self, call: ApiCall) -> Json | web.StreamResponse:
        """Reply with the object's description, or with `alt=media` with its content."""
        if call.query.get("alt") == "media":
            return await self.download(call)
        return _read(self._found(call)).as_json(_bucket(call))

    @route("GET", "/download" + ONE_OBJECT, "storage.objects.get")
    async def download(self, call: ApiCall) -> web.StreamResponse:
        """Reply with the object's content, or a range of it."""
        described, effect = self._found(call), call.effect
        found, headers = described.with_suffix(".data"), {"X-Goog-Generation": str(_read(described).generation)}
        if effect is None:
            return web.FileResponse(found, headers=headers)
        begin, content = call.request.http_range.start or 0, found.read_bytes()
        part = content[call.request.http_range]
        headers |= {"Content-Range": f"bytes {begin}-{begin + len(part) - 1}/{len(content)}"}
        response = web.StreamResponse(status=206, headers=headers | {"Content-Length": str(len(part))})
        await response.prepare(call.request)
        if effect.kind == "content_wrong":
            await response.write(bytes([part[0] ^ 1]) + part[1:])
            return response
        await response.write(part[: effect.parameters["after_bytes"]])
        raise NoReply

    @route("DELETE", ONE_OBJECT, "storage.objects.delete")
    async def delete_object(self, call: ApiCall) -> web.Response:
        """Delete the object."""
        async with self._changing:
            found = self._found(call)
            found.unlink()
            found.with_suffix(".data").unlink()
            self._listed.get(_bucket(call), {}).pop(call.parts["name"], None)
        return web.Response(status=204)

    def _check_generation(self, call: ApiCall, bucket: str, name: str) -> None:
        """Refuse the upload where `ifGenerationMatch` names another generation than the object has; 0: there is none."""
        wanted, file = call.query.get("ifGenerationMatch"), self._file(bucket, name, "json")
        if wanted is not None and wanted != (str(_read(file).generation) if file.exists() else "0"):
            raise ReasonedError(
                412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet"
            )

    def _found(self, call: ApiCall) -> Path:
        bucket, name = _bucket(call), call.parts["name"]
        found = self._file(bucket, name, "json")
        if not found.exists():
            raise ReasonedError(404, f"No such object: {bucket}/{name}", "notFound")
        wanted = call.query.get("generation")
        if wanted is not None and wanted != str(_read(found).generation):
            raise ReasonedError(404, f"No such object: {bucket}/{name}#{wanted}", "notFound")
        return found

    def _file(self, bucket: str, name: str, kind: str) -> Path:
        return self.directory / bucket / f"{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()}.{kind}"


def _bucket(call: ApiCall) -> str:
    bucket = call.parts["bucket"]
    if not BUCKET.fullmatch(bucket):
        raise ReasonedError(400, f"Invalid bucket name: '{bucket}'", "invalid")
    return bucket


def _read(path: Path) -> StoredObject:
    return StoredObject(**json.loads(path.read_text()))
