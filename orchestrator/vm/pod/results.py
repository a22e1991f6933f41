"""The results of a pod: its files and then their index go to the bucket of the job; without one, small files go into the log.

The files are those of `pack`. An index has a row for each: its path, size and hash, or why it is not sent. In a bucket it is
`RUN/worker<i>/index.json`, and comes after all files: a reader of it has everything that is going to be there, also when the
pod, its node and its log are gone.

The log of a container is gone with its node, which keeps its last 10 MiB at least, and GKE sends every line of it to Cloud
Logging. So what it carries is small: the index, and as many files as fit, the smallest first, in one piece at its end.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..buckets import upload
from ..buckets.cloud_storage import Storage, split
from ..buckets.manifest import MEASURED
from ..files import pack
from .output import Output

SAY_EVERY_S = 5.0
INDEX_S = 5.0  # of the time that is left, for the index alone
PIECE_BYTES = 9000  # of a control line, before base64
INDEX_BYTES = 1 << 20  # of rows in a log
SMALL_BYTES = 1 << 20  # read in any case: a large file before it must not cost it
MOST_CHARS = 500  # of a reason
LONGEST_BYTES = 16 << 20  # no larger file is packed into the log, however well that goes
# What is left of the time when the packing for the log ends: the log itself takes the rest.
AFTER_PACKING = 0.25
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
        self.files = 0  # sent
        self.sent_bytes = 0  # of the piece of the log
        self.failed = False  # something did not reach the bucket

    def send(self, storage: Storage, left_s: Callable[[], float], note: Callable[[], dict[str, Any]]) -> None:
        """Send all, as far as `left_s` allows: in its second half only small files are still read.

        `note`: how the job has ended.
        """
        found, refused = self._look(left_s)
        if self.bucket is None:
            self._print(found, refused, left_s)
        else:
            self._upload(found, refused, storage, note)

    def _look(self, left_s: Callable[[], float]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the rows of what can be sent, what was promised first, and of what cannot."""
        found: list[dict[str, Any]] = []
        refused: list[dict[str, Any]] = []
        half_s = left_s() / 2

        def why(size_bytes: int) -> str | None:
            if self.bucket is None and size_bytes > LONGEST_BYTES:  # to read it would cost the time of TPUs
                return NO_ROOM
            return NO_TIME if left_s() <= (half_s if size_bytes > SMALL_BYTES else 0) else None

        beside = {"most_bytes": MOST_BESIDE} if self.request.get("beside") else None
        unmatched: list[str] = []  # patterns
        for row in pack.rows(self.run, self.request["artifacts"], refused=why, wanted=beside, unmatched=unmatched):
            if row.get("beside") and "sha256" not in row:
                row.setdefault("why", ELSEWHERE if "files" in row else TOO_MUCH)
                row["harmless"] = True  # no promise is broken
            elif "why" in row and row["path"] in MEASURED:
                row["harmless"] = True
            (refused if "why" in row else found).append(row)
            if left_s() <= 0:
                refused.append({"path": "(the rest)", "why": NO_TIME})
                break
        for pattern in unmatched:
            self.output.control(say=f"`artifacts: {pattern[:MOST_CHARS]}` matches no file of this worker")
        return sorted(found, key=lambda row: row.get("beside") is True), refused

    def _upload(
        self,
        found: list[dict[str, Any]],
        refused: list[dict[str, Any]],
        storage: Storage,
        note: Callable[[], dict[str, Any]],
    ) -> None:
        place = f"{self.bucket}/{self.request['run']}"

        def sent() -> Iterator[dict[str, Any]]:
            said_at = time.monotonic()
            for number, row in enumerate(found):
                yield row
                if time.monotonic() - said_at >= SAY_EVERY_S:  # a sign of life
                    said_at = time.monotonic()
                    self.output.control(sent=number + 1, files=len(found))

        in_time = storage.sparing(INDEX_S)
        failed = dict(upload.copy(Path(self.run), sent(), place, str(self.worker), in_time, lambda text: None))
        for row in found:
            if row["path"] in failed:
                row["why"] = f"it did not reach the bucket: {failed[row['path']][:MOST_CHARS]}"
        rows = _listed(found + refused, upload.INDEX_BYTES)
        self.files = len(found) - len(failed)
        ids = {"schema": 1, "attempt": self.request["attempt"], "worker": self.worker}
        index = json.dumps(dict(ids, rows=rows, note=note())).encode()
        bucket, prefix = split(f"{place}/worker{self.worker}/{upload.INDEX}")
        problem = storage.put(bucket, prefix, index)
        self.failed = bool(failed) or problem is not None
        for why in sorted({*failed.values()} | ({problem} if problem else set())):
            self.output.control(say=f"results did not reach {place}: {why[:MOST_CHARS]}")

    def _print(self, found: list[dict[str, Any]], refused: list[dict[str, Any]], left_s: Callable[[], float]) -> None:
        """Pack what fits, what was promised first and then the smallest first. Contents have the order of their rows."""
        until_s, left_bytes = left_s() * AFTER_PACKING, int(self.request["inline_bytes"])
        packed: dict[str, bytes] = {}
        extra = {row["path"] for row in found if row.get("beside") is True or row["path"] in MEASURED}
        for row in sorted(found, key=lambda row: (row["path"] in extra, row["size_bytes"])):
            in_time = left_s() > until_s
            place = pack.place_of(self.run, row["path"])
            content = _squeezed(place, row["size_bytes"], left_bytes) if in_time else None
            if content is None:
                row.update(why=NO_ROOM if in_time else NO_TIME, harmless=row["path"] in extra)
                continue
            packed[row["path"]], row["packed_bytes"] = content, len(content)
            left_bytes -= len(content)
        found.sort(key=lambda row: "why" in row)
        rows = _listed(found + refused, INDEX_BYTES)
        contents = [packed[row["path"]] for row in rows if "packed_bytes" in row]
        self.files = len(contents)
        whole = zlib.compress(json.dumps(rows).encode()) + b"".join(contents)
        self.sent_bytes = len(whole)
        for begin in range(0, len(whole), PIECE_BYTES):
            self.output.control(results=base64.b64encode(whole[begin : begin + PIECE_BYTES]).decode())


def _squeezed(path: str, size_bytes: int, most_bytes: int) -> bytes | None:
    """Return the compressed content of a file; None if that takes more room."""
    squeeze, packed = zlib.compressobj(), b""
    for piece in pack.content(path, size_bytes):
        packed += squeeze.compress(piece)
        if len(packed) > most_bytes:
            return None
    packed += squeeze.flush()
    return packed if len(packed) <= most_bytes else None


def _listed(rows: list[dict[str, Any]], most_bytes: int) -> list[dict[str, Any]]:
    """Return the rows that fit, with one that stands for the others."""
    sizes = accumulate(len(json.dumps(row)) + 2 for row in rows)
    listed = [row for row, size_bytes in zip(rows, sizes) if size_bytes <= most_bytes]
    if len(listed) < len(rows):
        why = f"{len(rows) - len(listed)} more files than the index of a pod lists"
        listed.append({"path": "(the rest)", "why": f"{why}: have the job put small ones into one archive (tar)"})
    return listed
