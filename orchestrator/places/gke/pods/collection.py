"""The results of a pod, from the control lines of its log and from Cloud Storage, in the form in which a packer sends them.

`hosts.transfer.collection` reads it as it reads the packer of a worker, with the same checks of paths, sizes and hashes.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from orchestrator.errors import CloudError
from orchestrator.hosts.ssh.fan_out import Wakeup
from orchestrator.hosts.transfer.collect import THE_REST
from orchestrator.hosts.transfer.collector import CollectionStopped
from orchestrator.hosts.transfer.extract import ContentLost
from orchestrator.places.gke.pods.follower import GAP, Follower
from orchestrator.places.gke.pods.stream import Control
from orchestrator.text.terminal import printable
from orchestrator.vm.buckets.upload import object_path

LONGEST_BYTES = 64 << 20  # of a file in a log, as `vm/pod/output.py`
PIECE_BYTES = 1 << 20
WHY_CHARS = 300
DAMAGED_NAME, DAMAGED = "(a file)", "its row in the log of the pod is damaged"
FROM_LOG, FROM_BUCKET = "log", "bucket"
CUT = "the pod ended before it had sent its results"
LOST = "it is gone from the log of the pod, of which its node keeps the last part only; "
NO_BUCKET, IN_BUCKET = "with `bucket:` in the job all results are kept", "the bucket of the job has it"


# Yields the content of a file of a worker, by its path in the bucket of the run. Raises CloudError.
ReadResult = Callable[[int, str], Iterator[bytes]]


@dataclass(frozen=True, slots=True)
class _Row:
    number: int  # of its line
    path: str
    size_bytes: int
    kept: str


class PodPacker:
    """The results of one pod; each is read once. Raises CollectionStopped when nothing more can come."""

    def __init__(self, follower: Follower, wakeup: Wakeup, read_result: ReadResult | None) -> None:
        self._follower, self._wakeup, self._read_result = follower, wakeup, read_result
        self._lost = LOST + (NO_BUCKET if read_result is None else IN_BUCKET)
        self._rows: list[_Row] = []
        self._seen: set[str] = set()
        self._asked = self._cut = self._has_gap = False
        self._wanted: Iterator[_Row] = iter(())
        self._missing: dict[str, str] = {}  # what did not reach the bucket, and why
        self._content: Iterator[bytes] = iter(())
        self._buffer = b""
        self._left_bytes = 0  # of the file that is read
        self._closed = False

    def __enter__(self) -> PodPacker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every wait, from any thread."""
        with self._wakeup.changed:
            self._closed = True
            self._wakeup.changed.notify_all()

    def send(self, data: bytes) -> None:
        """Take the two lines of a client: what it asks for, which the pod knows already, and which files it wants."""
        if not self._asked:
            self._asked = True
            return
        self._wanted = iter([row for begin, end in json.loads(data) for row in self._rows[begin:end]])

    def answer(self, limit: int) -> dict[str, Any]:
        """Return the next row of the index."""
        line = self._next(lambda each: "file" in each.said or GAP in each.said)
        if line is None and not self._cut and self._follower.finished and not self._follower.has_sent_all:
            self._cut = True
            return _lost(THE_REST, CUT)
        if line is None:
            return {"end": len(self._rows)}
        if GAP in line.said:
            return _lost(THE_REST, self._lost)
        number, row = line.said.get("row"), line.said["file"]
        if not isinstance(row, dict):
            return _lost(DAMAGED_NAME, DAMAGED)
        beside = {"beside": row.get("beside") is True}
        if "why" in row:
            kind = "harmless" if row.get("harmless") is True else "lost"
            return {"path": str(row.get("path")), "why": str(row["why"])[:WHY_CHARS], kind: True, **beside}
        path, size_bytes, kept = row.get("path"), row.get("size_bytes"), row.get("kept")
        if not isinstance(path, str) or type(size_bytes) is not int or type(number) is not int or size_bytes < 0:
            return _lost(DAMAGED_NAME, DAMAGED)
        if path in self._seen:
            return _lost(path, "it is listed twice")
        if kept == FROM_LOG and size_bytes > LONGEST_BYTES:
            return _lost(path, "too large for the log of a pod")
        if kept not in (FROM_LOG, FROM_BUCKET):
            return _lost(path, "where it is kept is not known")
        self._seen.add(path)
        self._rows.append(_Row(number, path, size_bytes, kept))
        return {"path": path, "size_bytes": size_bytes, "sha256": str(row.get("sha256")), **beside}

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes of the wanted contents, in their order. Raises ContentLost for the rest of a file."""
        while not self._left_bytes:
            row = next(self._wanted)
            self._content = self._from_log(row) if row.kept == FROM_LOG else self._from_bucket(row)
            self._left_bytes, self._buffer = row.size_bytes, b""
        assert size <= self._left_bytes, "one file at a time"
        try:
            while len(self._buffer) < size:
                self._buffer += next(self._content)
        except StopIteration:
            self._left_bytes = 0
            raise ContentLost(self._lost) from None
        except ContentLost:
            self._left_bytes = 0
            raise
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        self._left_bytes -= size
        return data

    def _from_log(self, row: _Row) -> Iterator[bytes]:
        inflate = zlib.decompressobj()
        while True:
            line = self._next(lambda each: GAP in each.said or _number(each) <= row.number)
            if line is None:
                has_more = self._follower.has_sent_all or bool(self._follower.results)
                raise ContentLost(self._lost if has_more else CUT)
            if GAP in line.said:
                self._has_gap = True
                raise ContentLost(self._lost)
            if _number(line) < row.number:
                continue  # of a file that is not wanted
            try:
                packed = base64.b64decode(str(line.said.get("data")), validate=True)
                while packed:
                    yield inflate.decompress(packed, PIECE_BYTES)
                    packed = inflate.unconsumed_tail
            except (ValueError, zlib.error) as error:
                raise ContentLost(
                    self._lost if self._has_gap else "its content in the log of the pod is damaged"
                ) from error

    def _from_bucket(self, row: _Row) -> Iterator[bytes]:
        while self._next(lambda each: True) is not None:
            pass  # until the pod has sent everything
        if row.path in self._missing:
            raise ContentLost(f"it did not reach the bucket: {self._missing[row.path]}")
        if not self._follower.has_sent_all:
            raise ContentLost(CUT)
        if self._read_result is None:
            raise ContentLost("it is in the bucket of the job, which this command does not read")
        try:
            yield from self._read_result(self._follower.index, object_path(row.path))
        except CloudError as error:
            raise ContentLost(f"it is in the bucket of the job: {error.message}") from error

    def _next(self, fits: Callable[[Control], bool]) -> Control | None:
        """Take the next line if it fits; None: it does not, or nothing more comes."""
        lines, follower = self._follower.results, self._follower
        while True:
            with self._wakeup.changed:
                self._wakeup.wait_for(lambda: bool(lines) or follower.finished or self._closed)
                if self._closed:
                    raise CollectionStopped("it was stopped")
                if not lines:
                    return None
                if "missing" in lines[0].said:
                    line = lines.popleft()
                    self._missing[str(line.said["missing"])] = printable(str(line.said.get("why")))[:WHY_CHARS]
                    self._wakeup.changed.notify_all()
                    continue
                if not fits(lines[0]):
                    return None
                self._wakeup.changed.notify_all()
                return lines.popleft()


def _lost(path: str, why: str) -> dict[str, Any]:
    """Return the row of a file that no other try brings: its pod is over."""
    return {"path": path, "why": why, "lost": True}


def _number(line: Control) -> int:
    number = line.said.get("piece")
    return number if type(number) is int else -1
