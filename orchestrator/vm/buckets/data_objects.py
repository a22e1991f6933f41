"""Objects of Cloud Storage as `data` reads them: which file each one becomes, lists, one object, and ranges of it.

A range goes on where it broke off. Which objects cannot be files the client asks, too, before anything is created.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
from collections.abc import Mapping
from typing import Any

from .cloud_storage import Storage, Transient, _Try, object_of, quoted
from .crc32c import crc32c

MOST_BYTES = 255  # of a file's name, on the disks of workers


class Unfit(Exception):
    """Why these objects cannot be files."""


def files(sizes: Mapping[str, int], prefix: str) -> tuple[dict[str, str], set[str]]:
    """Return the name of the object for each path below the directory, and the directories that objects stand for.

    `sizes`: in bytes, by the name of each object, which begins with `prefix`. An object that is empty stands for a directory if
    its name ends with a slash, or if others are below it. Raises Unfit.
    """
    found = {name[len(prefix) :]: name for name in sizes}
    above = {path[:end] for path in found for end, char in enumerate(path) if char == "/"}
    directories = {path for path in found if (not path or path[-1] == "/" or path in above) and not sizes[found[path]]}
    unfit: list[str] = []
    for path, name in found.items():
        if not path and path in directories:  # of the prefix itself
            continue
        parts = path.rstrip("/").split("/") if path in directories else path.split("/")
        if path in above and path not in directories:
            unfit.append(f"`{name}` is a file and a directory at once")
        elif {"", ".", ".."} & set(parts) or "\0" in path or max(len(part.encode()) for part in parts) > MOST_BYTES:
            unfit.append(f"`{name[:200]}` is no path of a file")
    if unfit:
        more = f", and {len(unfit) - 3} more" if len(unfit) > 3 else ""
        raise Unfit(f"objects that cannot be files: {', '.join(unfit[:3])}{more}; rename them, or name another prefix")
    return {path: name for path, name in found.items() if path not in directories}, directories - {""}


FIELDS = "name,size,generation,crc32c"
# As stored: else an object with `Content-Encoding: gzip` arrives unpacked, with another size and CRC32C than it has.
AS_STORED = {"Accept-Encoding": "gzip"}


class Failed(Exception):
    """Why there is no data, for the user."""


class Changed(Exception):
    """There is no such object, or no longer with this content."""


class Source(Storage):
    """What may pass is tried again as in `cloud_storage`; Failed is raised once that is over."""

    def rows(self, bucket: str, prefix: str) -> list[dict[str, Any]]:
        """Return what the API says of every object whose name begins so. Raises Changed: there is no such bucket."""
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {"nextPageToken": ""}
        seen: set[str] = set()
        while (token := page.get("nextPageToken")) is not None:
            if token in seen:
                raise Failed(
                    f"the list of gs://{bucket}/{prefix} does not end: a page names an earlier one as the next"
                )
            seen.add(token)
            query = f"prefix={quoted(prefix)}&pageToken={quoted(token)}&fields=nextPageToken,items({FIELDS})"
            page = self._json(f"/storage/v1/b/{quoted(bucket)}/o?{query}")
            found += page.get("items", [])
        return found

    def row(self, bucket: str, name: str) -> dict[str, Any] | None:
        """Return what the API says of one object; None if there is none."""
        try:
            return self._json(f"{object_of(bucket, name)}?fields={FIELDS}")
        except Changed:
            return None

    def content(self, bucket: str, name: str, generation: str | None = None) -> bytes:
        """Return all that an object has, in memory. `generation`: of this one. Raises Changed: there is no such object."""
        target = f"{object_of(bucket, name)}?alt=media" + (f"&generation={generation}" if generation else "")
        found = bytearray()

        def once(attempt: _Try) -> str | None:
            found.clear()
            return self._fetch_once(attempt, target, AS_STORED, found.extend)

        check(self._retried(once))
        return bytes(found)

    def account(self) -> str:
        """Return the service account of this machine; "" if it is not known."""
        try:
            return self._metadata("email").decode()
        except Exception:  # it is asked for a message
            return ""

    def part(self, bucket: str, name: str, generation: str, file: int, begin: int, end: int) -> int:
        """Write these bytes of an object to the same place of a file; return their CRC32C. Raises Changed."""
        at, crc = begin, 0
        target = f"{object_of(bucket, name)}?alt=media&generation={generation}"

        def take(piece: bytes) -> None:
            nonlocal at, crc
            if len(piece) > end - at:
                raise Transient("more came than was asked for")
            crc = crc32c(piece, crc)
            _write(file, piece, at)
            at += len(piece)

        def once(attempt: _Try) -> str | None:
            before = at
            try:
                return self._fetch_once(attempt, target, {"Range": f"bytes={at}-{end - 1}", **AS_STORED}, take)
            except (OSError, http.client.HTTPException, Transient) as error:
                if at == before:
                    raise
                return str(error)  # as long as bytes come, it goes on at once

        while at < end:
            before = at
            problem = self._retried(once)
            if at == before:
                check(problem or "nothing came")
        return crc

    def _json(self, target: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def once(attempt: _Try) -> str | None:
            said = bytearray()
            problem = self._fetch_once(attempt, target, {}, said.extend)
            if problem is None:
                try:
                    found.update(json.loads(said))
                    rows = found.get("items", []) if "name" not in found else [found]
                    assert all(str(row["size"]).isdigit() and row["name"] for row in rows)
                except (AssertionError, KeyError, TypeError, ValueError):
                    found.clear()
                    raise Transient("the reply is not that of Cloud Storage") from None
            return problem

        check(self._retried(once))
        return found


def check(problem: str | None) -> None:
    """Raise Changed or Failed for a problem of a request."""
    if problem is not None:
        raise (Changed if problem.startswith(("HTTP 404", "HTTP 412")) else Failed)(problem)


def _write(file: int, piece: bytes, at: int) -> None:
    """Write all of it; zeros where the file has a hole stay one."""
    if not piece.strip(b"\0") and _is_hole(file, at, len(piece)):
        return
    rest = memoryview(piece)
    while rest:
        written = os.pwrite(file, rest, at)
        rest, at = rest[written:], at + written


def _is_hole(file: int, at: int, size: int) -> bool:
    try:
        return os.lseek(file, at, os.SEEK_DATA) >= at + size
    except OSError as error:
        return error.errno == errno.ENXIO  # no data follows
