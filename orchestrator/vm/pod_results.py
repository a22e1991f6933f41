"""The results of a job from its pod: small ones in its log, as many as fit; with a bucket, all of them to Cloud Storage.

The log of a container is gone with its node, and the node keeps its last 10 MiB at least. So the index and the contents in it
are limited, and what does not fit is named. The files are those of `pack`, in this order of control lines (`pod` lists them): a
row for each file, then the contents of those in the log, and, once they are sent, what did not reach the bucket.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import pack, upload
from .cloud_storage import Storage
from .pod_output import CONTROL_BYTES, Output

PIECE_BYTES = 6144  # of packed content in a line, before base64
INDEX_BYTES = 2 << 20  # of rows
LONGEST_BYTES = 64 << 20  # no larger file is packed into the log, however well that goes
SMALL_BYTES = 1 << 20  # read in any case: a large file before it must not cost it
ROW_BYTES = CONTROL_BYTES - 500
MOST_CHARS = 500  # of a long name, and of a reason: a character may take 12 bytes in JSON
# What is left of the time when the packing for the log ends: the bucket or the log itself takes more than that.
AFTER_PACKING, AFTER_PACKING_BUCKET = 0.25, 0.75
DEFLATES_TO = 1040  # times less than a file, at most: no compression of zlib is better
MOST_BESIDE = 2_000_000_000
TOO_MUCH = "more than 2 GB lie beside the artifacts"
ELSEWHERE = "new while the job ran, and not collected"
NO_TIME = "there was no time left to look at it"
NO_ROOM = "too large for the log of a pod; `bucket:` in the job takes results of any size"


class Results:
    """The results of one run, `run` being the directory of its attempt. The other attributes tell what became of them."""

    def __init__(self, run: str, request: dict[str, Any], worker: int, output: Output) -> None:
        self.run, self.request, self.worker, self.output = run, request, worker, output
        self.bucket: str | None = request.get("bucket")
        self.files = 0  # sent, one way or the other
        self.left_out: list[str] = []
        self.unmatched: list[str] = []  # patterns
        self.unlisted = 0  # for want of room for their rows
        self.failed = False  # something did not reach the bucket
        self._left_bytes, self._rows = INDEX_BYTES, 0
        self._late = False  # there was no time to pack the rest

    def send(self, storage: Storage, left_s: Callable[[], float]) -> None:
        """Send all, as far as `left_s` allows: in its second half only small files are still read."""
        found, refused = self._look(left_s)
        for pattern in self.unmatched:
            self.output.control(say=f"`artifacts: {_short(pattern)}` matches no file of this worker")
        packed = self._pack(found, left_s)
        listed = [
            row["path"]
            for row in sorted(found, key=lambda row: (row.get("beside") is True, row["path"] not in packed))
            if self._list(row, packed)
        ]
        for row in refused:
            self._list(row, packed)
        if self.unlisted:
            self.output.control(
                file={"path": "(the rest)", "why": f"{self.unlisted} more files than the log of a pod lists"}
            )
        for number, path in enumerate(listed):
            content = packed.get(path, b"")
            for begin in range(0, len(content), PIECE_BYTES):
                piece = content[begin : begin + PIECE_BYTES]
                self.output.control(piece=number, data=base64.b64encode(piece).decode())
            self.files += path in packed
        if self.bucket is not None:
            self._upload(found, packed, storage)

    def _look(self, left_s: Callable[[], float]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the rows of what can be sent, and of what cannot."""
        found: list[dict[str, Any]] = []
        refused: list[dict[str, Any]] = []
        half_s = left_s() / 2

        def why(size_bytes: int) -> str | None:
            if self.bucket is None and size_bytes > LONGEST_BYTES:  # to read it would cost the time of TPUs
                return NO_ROOM
            return NO_TIME if left_s() <= (half_s if size_bytes > SMALL_BYTES else 0) else None

        beside = {"most_bytes": MOST_BESIDE} if self.request.get("beside") else None
        for row in pack.rows(self.run, self.request["artifacts"], refused=why, wanted=beside, unmatched=self.unmatched):
            if row.get("beside") and "sha256" not in row:
                row.setdefault("why", ELSEWHERE if "files" in row else TOO_MUCH)
                row["harmless"] = True  # no promise is broken
            (refused if "why" in row else found).append(row)
            if left_s() <= 0:
                refused.append({"path": "(the rest)", "why": NO_TIME})
                break
        return found, refused

    def _pack(self, rows: list[dict[str, Any]], left_s: Callable[[], float]) -> dict[str, bytes]:
        """Return the compressed contents of the files that fit into the log, the smallest files first.

        With a bucket only small ones: a large one would be read twice for a place where it may have no room.
        """
        packed: dict[str, bytes] = {}
        left_bytes = int(self.request["inline_bytes"])
        longest = LONGEST_BYTES if self.bucket is None else SMALL_BYTES
        until_s = left_s() * (AFTER_PACKING if self.bucket is None else AFTER_PACKING_BUCKET)
        for row in sorted(rows, key=lambda row: (row.get("beside") is True, row["size_bytes"])):  # promises come first
            self._late = left_s() <= until_s
            if row["size_bytes"] > longest or self._late:
                break
            if row["size_bytes"] > left_bytes * DEFLATES_TO:
                continue
            content = _squeezed(pack.place_of(self.run, row["path"]), row["size_bytes"], left_bytes)
            if content is not None:
                packed[row["path"]] = content
                left_bytes -= len(content)
        return packed

    def _list(self, row: dict[str, Any], packed: dict[str, bytes]) -> bool:
        """Write the row of a file. False: there is no room for more rows."""
        path = row["path"]
        if "why" not in row and path not in packed and self.bucket is None:
            why = NO_TIME if self._late else NO_ROOM
            row = {"path": path, "why": why, "beside": row.get("beside"), "harmless": row.get("beside")}
        if "why" not in row:
            row = dict(row, kept="log" if path in packed else "bucket")
        text = json.dumps(row)
        if len(text) > ROW_BYTES:
            packed.pop(path, None)
            row = dict(row, path=_short(path), why=_short(row.get("why", "its name is too long")))
        if "why" in row and (row.get("beside") or not row.get("harmless")):
            self.left_out.append(path)
        self._left_bytes -= len(text)
        if self._left_bytes < 0:
            self.unlisted += 1
            return False
        self.output.control(file=row, row=self._rows)
        self._rows += 1
        return True

    def _upload(self, rows: list[dict[str, Any]], packed: dict[str, bytes], storage: Storage) -> None:
        destination = f"{self.bucket}/{self.request['run']}"
        failed = upload.copy(Path(self.run), rows, destination, str(self.worker), storage, lambda text: None)
        self.failed = bool(failed)
        for path, why in failed:
            self.left_out.append(path)
            self.output.control(missing=_short(path), why=_short(why))
        self.files += len({row["path"] for row in rows} - set(packed) - {path for path, _ in failed})


def _squeezed(path: str, size_bytes: int, most_bytes: int) -> bytes | None:
    """Return the compressed content of a file; None if that takes more room."""
    squeeze, packed = zlib.compressobj(), b""
    for piece in pack.content(path, size_bytes):
        packed += squeeze.compress(piece)
        if len(packed) > most_bytes:
            return None
    packed += squeeze.flush()
    return packed if len(packed) <= most_bytes else None


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}…"
