"""Sends a shipment to a worker: the worker says which contents it lacks, and gets these in one stream of blocks.

`vm/files/receive.py` is the other end. Neither trusts the other: a worker can ask for nothing but contents of this manifest,
and it checks each against its hash. A block is a MiB of the stream: zeros by their number alone, what zlib makes much smaller
packed, the rest as it is. Workers that lack the same get the same blocks, made once.
"""

from __future__ import annotations

import bisect
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from orchestrator.errors import CommandFailed, RemoteError, Unreachable
from orchestrator.hosts.shipping.shipment import PushResult, Shipment
from orchestrator.hosts.ssh.call import WorkerCall
from orchestrator.hosts.ssh.connection import Connection
from orchestrator.text.units import format_size

BLOCK_BYTES = 1 << 20
HEADER = struct.Struct(">cI")
RAW, PACKED, ZEROS = b"R", b"Z", b"0"
LEVEL = 1  # of zlib: higher ones cost more than they save, on any line faster than a modem's
TRY_BYTES = 32 << 10  # of a block, so much shows whether packing pays
PAYS = 0.8
WINDOW_BYTES = 32 << 20  # of blocks that stay in memory for the slower workers: what is packed is not packed again
SILENCE_S = 30.0
ANSWER_BYTES = 64 << 10  # for an answer, and for each content
NOTHING = bytes(BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class Selection:
    """Contents that a worker lacks: ranges of their numbers, and how much of the first one it has."""

    ranges: tuple[tuple[int, int], ...]
    offset: int

    @classmethod
    def of(cls, answer: dict[str, Any], shipment: Shipment) -> Selection:
        """Return what the worker asks for. Raises RemoteError for anything that it was not offered."""
        contents, last, ranges = shipment.manifest.contents, 0, []
        missing, offset = answer.get("missing"), answer.get("offset")
        if not isinstance(missing, list) or not isinstance(offset, int):
            raise RemoteError("a worker asks for code in a way that this tpujob does not understand")
        for pair in missing:
            match pair:
                case [int(first), int(after)] if last <= first < after <= len(contents):
                    ranges.append((first, after))
                    last = after
                case _:
                    raise RemoteError("a worker asks for what it was not offered")
        if offset and not (ranges and 0 < offset < contents[ranges[0][0]][1]):
            raise RemoteError("a worker asks for what it was not offered")
        return cls(tuple(ranges), offset)

    def contents(self, shipment: Shipment) -> list[tuple[str, int]]:
        return [content for first, after in self.ranges for content in shipment.manifest.contents[first:after]]


class Blocks:
    """The stream of one selection, in blocks. Thread-safe; the newest blocks are kept."""

    def __init__(self, shipment: Shipment, selection: Selection) -> None:
        contents = selection.contents(shipment)
        self._places = [shipment.contents[sha256] for sha256, _ in contents]
        self._ends = list(accumulate(size for _, size in contents))
        self._offset = selection.offset
        self.size_bytes = (self._ends[-1] if self._ends else 0) - self._offset
        self.count = -(-self.size_bytes // BLOCK_BYTES)
        self._lock = threading.Lock()
        self._made: OrderedDict[int, tuple[bytes, int]] = OrderedDict()
        self._made_bytes = 0

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Yield each block as it is sent, and how many bytes of contents it holds."""
        for number in range(self.count):
            with self._lock:
                made = self._made.get(number)
                if made is None:
                    made = self._made[number] = self._make(number)
                    self._made_bytes += len(made[0])
                    while self._made_bytes > WINDOW_BYTES:
                        self._made_bytes -= len(self._made.popitem(last=False)[1][0])
            yield made

    def _make(self, number: int) -> tuple[bytes, int]:
        begin = self._offset + number * BLOCK_BYTES
        data = b"".join(self._pieces(begin, min(begin + BLOCK_BYTES, self._ends[-1])))
        return encoded(data), len(data)

    def _pieces(self, begin: int, end: int) -> Iterator[bytes]:
        index = bisect.bisect_right(self._ends, begin)
        while begin < end:
            before = self._ends[index - 1] if index else 0
            until = min(end, self._ends[index])
            with self._places[index].open("rb", buffering=0) as file:
                file.seek(begin - before)
                while begin < until:
                    piece = file.read(until - begin)
                    if not piece:
                        raise RemoteError(f"{self._places[index]} was cut while it was sent")
                    begin += len(piece)
                    yield piece
            index += 1


def encoded(data: bytes) -> bytes:
    """Return the block that holds this data."""
    if data == NOTHING[: len(data)]:
        return HEADER.pack(ZEROS, len(data))
    sample = data[:TRY_BYTES]
    if len(zlib.compress(sample, LEVEL)) < PAYS * len(sample):
        packed = zlib.compress(data, LEVEL)
        if len(packed) < PAYS * len(data):
            return HEADER.pack(PACKED, len(packed)) + packed
    return HEADER.pack(RAW, len(data)) + data


class Sending:
    """One push to the workers of a fleet."""

    def __init__(self, on_progress: Callable[[int, int], None] = lambda sent, total: None) -> None:
        """`on_progress` receives the bytes sent, and those to send as far as the workers have answered; one call at a time."""
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._blocks: dict[tuple[str, Selection], Blocks] = {}
        self._lacked: dict[int, Selection] = {}  # by worker, when it was first asked
        self._sent = self._total = 0

    def send(self, connection: Connection, shipment: Shipment) -> PushResult:
        """Send to one worker what it lacks. Raises Unreachable after a cut: the next call goes on where this one ended."""
        with WorkerCall(connection, "receive", shipment.id, silence_s=SILENCE_S) as call:
            if not call.answer().get("manifest"):
                packed = shipment.manifest.packed
                call.send(b"%d\n%s" % (len(packed), packed))
            limit = ANSWER_BYTES + 32 * len(shipment.manifest.contents)
            while "missing" not in (answer := call.answer(limit)):  # a sign of life
                _check(answer, call, shipment)
            selection = Selection.of(answer, shipment)
            lacked = self._lacked.setdefault(connection.index, selection).contents(shipment)
            blocks = self._stream(shipment, selection)
            self._note(0, blocks.size_bytes)
            try:
                for block, size_bytes in blocks:
                    call.send(block)
                    self._note(size_bytes, 0)
            except (CommandFailed, Unreachable):
                _check(call.answer(), call, shipment)  # raises the reason, if the worker gave one
                raise
            _check(call.answer(), call, shipment)
        names = {sha256 for sha256, _ in lacked}
        files = sum(file.sha256 in names for file in shipment.manifest.files)
        return PushResult(files, sum(size_bytes for _, size_bytes in lacked))

    def _stream(self, shipment: Shipment, selection: Selection) -> Blocks:
        with self._lock:
            key = (shipment.id, selection)
            if key not in self._blocks:
                self._blocks[key] = Blocks(shipment, selection)
            return self._blocks[key]

    def _note(self, sent: int, more: int) -> None:
        with self._lock:
            self._sent += sent
            self._total += more
            self._on_progress(self._sent, self._total)


def _check(answer: dict[str, Any], call: WorkerCall, shipment: Shipment) -> None:
    """Raise RemoteError if the worker's disk is full, or if a content arrived as another one."""
    if "changed" in answer:
        raise _changed(answer["changed"], call, shipment)
    if "free" in answer:
        name, need, free = call.connection.name, format_size(shipment.size_bytes), answer["free"]
        left = format_size(free) if isinstance(free, int) and free >= 0 else "nothing that it can tell"
        raise RemoteError(
            f"{name}: no room on its disk for what is shipped ({need}, stored once and unpacked once): {left} is free",
            hint="leave out what the job does not need in .tpujobignore, or keep data in a bucket",
        )


def _changed(sha256: Any, call: WorkerCall, shipment: Shipment) -> RemoteError:
    """Return the error for a content that arrived as another one, once a damaged copy of it here is removed."""
    files = [file.path for file in shipment.manifest.files if file.size_bytes and file.sha256 == sha256]
    if not files:
        return RemoteError(f"{call.connection.name}: a worker asks for what it was not offered")
    damaged = shipment.forget_damaged(sha256)
    return RemoteError(
        f"{call.connection.name}: {files[0]} arrived with another content than announced"
        + (f": the copy in {shipment.store} was damaged, and is removed" if damaged else ""),
        hint="run it again: it is read anew",
    )
