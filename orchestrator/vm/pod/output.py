"""What a pod says on its stdout (the log of the job as it is, and lines of its own between those lines), and its results.

`kubectl logs` shows it, `places.gke.pods.stream` reads it. Every line can be read by itself:

- `::tpujob {"n": 7, "at": 1204, "of": "main", …}` is a control line: the seventh of this pod, after so many bytes of the log of
  that phase. What it says is in its other keys (`pod` lists them). One without other keys is a mark.
- `::tpujob|TEXT|` is the line TEXT of the job, which would be misread otherwise: it begins with `::tpujob`, or it ends with a
  carriage return, which some container runtimes drop.
- `::tpujob|TEXT\\` is a piece of a line of the job: its end has not come yet, or the line is long. Container runtimes split
  lines at 16 KiB, and a reader that continues by time could begin between two parts.
- Every other line is a line of the job.

A reader that lost its connection asks for everything from the time of a control line on, and knows by `n` and `at` what it has
already; or how much is gone, where the node has rotated the log away.

Small results are in the log, as many as fit; with a bucket, all of them go to Cloud Storage. The log of a container is gone
with its node, and the node keeps its last 10 MiB at least. So the index and the contents in it are limited, and what does not
fit is named. The files are those of `pack`, in this order of control lines (`pod` lists them): a row for each file, then the
contents of those in the log, and, once they are sent, what did not reach the bucket.
"""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..buckets import upload
from ..buckets.cloud_storage import Storage
from ..files import pack

WORD = b"::tpujob"
LINE_BYTES = 8192  # of the text of a line
CONTROL_BYTES = 15000  # with what is around them, less than the 16 KiB of a runtime
MARK_BYTES, MARK_S = 256 << 10, 60.0  # of log after a control line
HALF_LINE_S = 1.0  # so long the end of a line is waited for


class Output:
    """Writes to `fd`. Once that is closed or broken, everything is dropped: the job goes on without a reader."""

    def __init__(self, fd: int = 1) -> None:
        self.fd = fd
        self.broken = False
        self.of: str | None = None  # the phase
        self.at = 0  # bytes of its log that are written
        self._number = 0  # of the next control line
        self._half = b""  # of a line of the job
        self._half_since = 0.0
        self._marked_at, self._marked_s = 0, time.monotonic()

    def begin(self, phase: str) -> None:
        """Count the bytes of this phase's log from now on."""
        self.flush()
        self.of, self.at = phase, 0
        self._marked_at = 0

    def control(self, **said: Any) -> None:
        """Write a control line. One that is too long for a line of a container's log is a bug."""
        self.flush()
        line = json.dumps(dict({"n": self._number, "at": self.at, "of": self.of}, **said)).encode()
        assert len(line) <= CONTROL_BYTES, "a control line that is too long"
        self._write(WORD + b" " + line + b"\n")
        self._number += 1
        self._marked_at, self._marked_s = self.at, time.monotonic()

    def log(self, data: bytes) -> None:
        """Write the next bytes of the job's log. The beginning of a line waits for its end."""
        data, self._half = self._half + data, b""
        end = data.rfind(b"\n") + 1
        if end:
            self._lines(data[:end])
        rest = data[end:]
        while len(rest) > LINE_BYTES:
            self._text(rest[:LINE_BYTES], ended=False)
            rest = rest[LINE_BYTES:]
        if rest and (end or not self._half_since):
            self._half_since = time.monotonic()
        self._half = rest
        if self.at - self._marked_at >= MARK_BYTES:
            self.control()

    def skip(self, size_bytes: int, **said: Any) -> None:
        """Leave out the next bytes of the log. The next control line, which says this, too, tells how many."""
        self.flush()
        self.at += size_bytes
        self.control(**said)

    def tick(self) -> None:
        """Write what has waited for too long: the beginning of a line, and a mark."""
        now = time.monotonic()
        if self._half and now - self._half_since >= HALF_LINE_S:
            self.flush()
        if self.at > self._marked_at and now - self._marked_s >= MARK_S:
            self.control()

    def flush(self) -> None:
        """Write the beginning of a line without waiting for its end."""
        half, self._half, self._half_since = self._half, b"", 0.0
        if half:
            self._text(half, ended=False)

    def _lines(self, data: bytes) -> None:
        """Write whole lines: all at once where none is special."""
        lines = data[:-1].split(b"\n")
        if WORD not in data and b"\r\n" not in data and max(map(len, lines)) <= LINE_BYTES:
            self._write(data)
            self.at += len(data)
            return
        for line in lines:
            while len(line) > LINE_BYTES:
                self._text(line[:LINE_BYTES], ended=False)
                line = line[LINE_BYTES:]  # noqa: PLW2901 - what is left of it
            self._text(line, ended=True)

    def _text(self, text: bytes, *, ended: bool) -> None:
        if not ended:
            self._write(b"%s|%s\\\n" % (WORD, text))
        elif text.startswith(WORD) or text.endswith(b"\r"):
            self._write(b"%s|%s|\n" % (WORD, text))
        else:
            self._write(text + b"\n")
        self.at += len(text) + ended

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self.broken:
            try:
                rest = rest[os.write(self.fd, rest) :]
            except OSError:
                self.broken = True


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
