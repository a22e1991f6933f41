"""The results of a pod, from the bucket of its job or from its log, in the form in which a packer sends them.

`hosts.transfer.collection` reads it as it reads the packer of a worker, with the same checks of paths, sizes and hashes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.errors import ArtifactError, CloudError
from orchestrator.hosts.ssh.fan_out import Wakeup
from orchestrator.hosts.transfer.collect import THE_REST, CollectRequest
from orchestrator.hosts.transfer.collection import Collection, Packer
from orchestrator.hosts.transfer.collector import CollectionStopped, Collector
from orchestrator.hosts.transfer.extract import ContentLater, ContentLost
from orchestrator.places.gke.pods.follower import Follower
from orchestrator.places.gke.pods.index import ReadResult, read_index
from orchestrator.text import parsing
from orchestrator.vm.buckets.upload import object_path
from orchestrator.vm.files.beside import matches

LONGEST_BYTES = 16 << 20  # of a file in a log, as `vm/pod/results.py`
MOST_BYTES = 2 << 20  # of the index in a log
WHY_CHARS = 300
ALIVE_S = 5.0  # between two signs of life of a pod that still sends
DAMAGED_NAME, DAMAGED = "(a file)", "its row in the index is damaged"
CUT = "the pod ended before it had sent its results"
LOST = "they are gone from the log of the pod, of which its node keeps the last part only"
GONE = "the pod is gone, and its log with it; `bucket:` in the job keeps results"
UNREAD = "the log of the pod, which has them, could not be read: "
NO_INDEX = "what came of its results is in the bucket, and no index says that it is all: "


@dataclass(frozen=True, slots=True)
class Stored:
    """A pod of which nothing is known but what it has left in the bucket; as a `Follower` that has ended."""

    index: int
    note: Mapping[str, Any] = field(default_factory=dict)
    finished, news = True, 0


def collected_from(read: ReadResult, pods: int, order: CollectRequest) -> Collection:
    """Start collecting what so many pods have left in the bucket of their job."""
    return collected([Stored(index) for index in range(pods)], Wakeup(), read, order)


def collected(
    sources: Sequence[Follower | Stored], wakeup: Wakeup, read_result: ReadResult | None, order: CollectRequest
) -> Collection:
    """Start collecting. What is not there once a pod has ended never comes: one pass."""

    def open_packer(source: Follower | Stored) -> PodPacker:
        return PodPacker(source, wakeup, read_result, order.attempt)

    return Collection(Collector(replace(order, passes=1)), sources, wakeup, lambda slow, why: None, open_packer)


class PodPacker(Packer):
    """The results of one pod. Raises CollectionStopped after `close`."""

    def __init__(
        self, follower: Follower | Stored, wakeup: Wakeup, read_result: ReadResult | None, attempt: str
    ) -> None:
        """`read_result`: of the bucket of the job, if it has one. `attempt`: whose results are wanted."""
        self._follower, self._wakeup, self._read_result, self._attempt = follower, wakeup, read_result, attempt
        self._answers: Iterator[dict[str, Any]] | None = None
        self._rows: list[Mapping[str, Any]] = []  # of the files that can be asked for
        self._packed = b""  # contents of those in a log, one after the other
        self._wanted: Iterator[Mapping[str, Any]] = iter(())
        self._content: Iterator[bytes] = iter(())
        self._left_bytes = 0  # of the file that is read
        self._buffer = b""
        self._question: dict[str, Any] = {}
        self._closed = False

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every wait, from any thread."""
        with self._wakeup.changed:
            self._closed = True
            self._wakeup.changed.notify_all()

    def send(self, data: bytes) -> None:
        """Take the two lines of a client: what it asks for, as `vm.files.pack` does, and which files of that it wants."""
        if not self._question:
            self._question = json.loads(data)
        else:
            self._wanted = iter([row for begin, end in json.loads(data) for row in self._rows[begin:end]])

    def answer(self, limit: int) -> dict[str, Any]:
        """Return the next row of the index."""
        follower, news = self._follower, self._follower.news
        while self._answers is None:
            with self._wakeup.changed:
                self._wakeup.wait_for(lambda: follower.finished or self._closed, ALIVE_S)
            if self._closed:
                raise CollectionStopped("it was stopped")
            if follower.finished:
                self._answers = self._index()
            elif follower.news > news:
                return {"hashed": 0}
        return next(self._answers)

    def _index(self) -> Iterator[dict[str, Any]]:
        note, read = self._follower.note, self._read_result
        rows, why, is_lost = self._of_log() if read is None else self._of_bucket(read)
        if note.get("results_bytes", 0) is None:
            rows, why = [], ""  # the job has not begun
        seen: set[str] = set()
        for row in rows:
            answer = self._answer(row, seen)
            if self._is_asked_for(answer["path"], beside=answer.get("beside") is True):
                self._rows += [] if "why" in answer else [row]
                yield answer
        if why:
            yield {"path": THE_REST, "why": why, "lost": is_lost}
        yield {"end": len(self._rows)}

    def _answer(self, row: Any, seen: set[str]) -> dict[str, Any]:
        """Return what a client is told of a row; nothing in it is trusted."""
        if not isinstance(row, dict) or not isinstance(row.get("path"), str):
            return _lost(DAMAGED_NAME, DAMAGED)
        path, beside = row["path"], {"beside": row.get("beside") is True}
        try:
            object_path(path)
        except UnicodeEncodeError:  # no name of a file
            return _lost(DAMAGED_NAME, DAMAGED)
        if "why" in row:
            kind = "harmless" if row.get("harmless") is True else "lost"
            return {"path": path, "why": str(row["why"])[:WHY_CHARS], kind: True, **beside}
        if type(row.get("size_bytes")) is not int or row["size_bytes"] < 0:
            return _lost(DAMAGED_NAME, DAMAGED)
        if path in seen:
            return _lost(path, "it is listed twice")
        if self._read_result is None and not self._has_packed(row):
            return _lost(path, DAMAGED)
        seen.add(path)
        return {"path": path, "size_bytes": row["size_bytes"], "sha256": str(row.get("sha256")), **beside}

    def _is_asked_for(self, path: str, *, beside: bool) -> bool:
        if not beside:
            return self._question["patterns"] is not None
        only = self._question.get("beside", {}).get("only")
        return only is None or matches(path, only)

    def _has_packed(self, row: dict[str, Any]) -> bool:
        """Give the row of a file in a log its contents, which come in the order of rows; False if it has none."""
        size_bytes = row.get("packed_bytes")
        if type(size_bytes) is not int or size_bytes < 0 or row["size_bytes"] > LONGEST_BYTES:
            return False
        row["packed"], self._packed = self._packed[:size_bytes], self._packed[size_bytes:]
        return True

    def _of_log(self) -> tuple[list[Any], str, bool]:
        """Return the rows in the log; or why there are none, and whether they are lost for good."""
        follower, inflate = self._follower, zlib.decompressobj()
        assert isinstance(follower, Follower), "what has no log has a bucket"
        if follower.has_sent_all:
            if len(follower.results) != follower.note.get("results_bytes"):
                return [], LOST, True
            try:
                rows = parsing.loads(inflate.decompress(follower.results, MOST_BYTES).decode())
            except (ValueError, RecursionError, zlib.error):
                rows = None
            self._packed = inflate.unused_data
            return (rows, "", False) if isinstance(rows, list) else ([], "their index is damaged", True)
        if follower.is_gone:
            return [], GONE, True
        return ([], UNREAD + follower.unread, False) if follower.unread else ([], CUT, True)

    def _of_bucket(self, read: ReadResult) -> tuple[list[Any], str, bool]:
        try:
            return list(read_index(read, self._follower.index, self._attempt)["rows"]), "", False
        except CloudError as error:
            if error.reason != "absent":
                return [], f"their index is in the bucket of the job: {error.message}", False
            return [], f"{NO_INDEX}{error.message}", True
        except ArtifactError as error:
            return [], f"{NO_INDEX}{error.message}", True

    def read(self, size: int) -> bytes:
        """Return exactly so many bytes of the wanted contents, in their order. Raises ContentLost for the rest of a file."""
        while not self._left_bytes:
            row = next(self._wanted)
            self._content = self._from_log(row) if self._read_result is None else self._from_bucket(row)
            self._left_bytes, self._buffer = row["size_bytes"], b""
        assert size <= self._left_bytes, "one file at a time"
        try:
            while len(self._buffer) < size:
                self._buffer += next(self._content)
        except (StopIteration, ContentLost) as error:
            self._left_bytes = 0
            raise (
                error if isinstance(error, ContentLost) else ContentLost("it is shorter than its index says")
            ) from None
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        self._left_bytes -= size
        return data

    def _from_log(self, row: Mapping[str, Any]) -> Iterator[bytes]:
        try:
            yield zlib.decompressobj().decompress(row["packed"], row["size_bytes"])
        except zlib.error as error:
            raise ContentLost("its content in the log of the pod is damaged") from error

    def _from_bucket(self, row: Mapping[str, Any]) -> Iterator[bytes]:
        assert self._read_result is not None, "it has given the index"
        try:
            yield from self._read_result(self._follower.index, object_path(row["path"]))
        except CloudError as error:
            if error.reason == "absent":  # it was there before its index
                raise ContentLost(f"it is gone from the bucket of the job: {error.message}") from error
            raise ContentLater(f"it is in the bucket of the job: {error.message}") from error


def _lost(path: str, why: str) -> dict[str, Any]:
    """Return the row of a file that no other try brings: its pod is over."""
    return {"path": path, "why": why, "lost": True}
