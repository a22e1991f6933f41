"""Receives what this worker lacks of a shipment, and stores each content once it is whole and what its name says.

Lines to the client: {"manifest": whether it is here}; {"missing": [[from, to], …], "offset": how many bytes of the first of
these are here}; {"stored": how many}, or {"changed": the hash of a content that arrived as another one}. After the first
line the client sends the manifest, if it is not here; after the second one the missing contents, in blocks.
`hosts.shipping.sending` is the other end.
"""

# For thousands of files, paths as text are much faster than Path.
# ruff: noqa: PTH103, PTH104, PTH108, PTH116, PTH120
from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import time
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from .frames import reply, widen
from .store import PIECE_BYTES, Store, check_sha256, contents, free_bytes, is_full, write_sparse

HEADER = struct.Struct(">cI")
BLOCK_BYTES = 1 << 20
MANIFEST_BYTES = 1 << 30
CONTINUED_BYTES = 4 << 20  # a smaller file is sent again from its first byte after a cut
SAY_EVERY_S = 1.0


def receive(sha256: str) -> None:
    store = Store()
    lock = store.lock()
    widen(0)
    source = open(0, "rb", buffering=BLOCK_BYTES, closefd=False)  # noqa: SIM115 (it ends with the process)
    text = store.manifest(check_sha256(sha256))
    reply({"manifest": text is not None})
    known = text is not None
    if text is None:
        text = zlib.decompressobj().decompress(_exactly(source, int(source.readline(32))), MANIFEST_BYTES)
        if hashlib.sha256(text).hexdigest() != sha256:
            raise ValueError("the manifest arrived cut or changed")
    wanted = contents(text)
    missing = [number for number, content in enumerate(wanted) if not store.has(*content)]
    if missing and sum(wanted[number][1] for number in missing) > free_bytes():
        assert lock is not None
        os.close(lock)
        store.prune(keep=0)
        lock = store.lock()
        missing = [number for number, content in enumerate(wanted) if not store.has(*content)]
    try:
        draft = Draft(store, *wanted[missing[0]]) if missing else None
        reply({"missing": ranges(missing), "offset": draft.written if draft is not None else 0})
        stream = Stream(source)
        for number in missing:
            if draft is None:
                draft = Draft(store, *wanted[number])
            draft.fill(stream)
            draft = None
        if not known:
            store.put_manifest(sha256, text)
    except OSError as error:
        if not is_full(error):
            raise
        reply({"free": free_bytes()})
        return
    except Changed as error:
        reply({"changed": str(error)})
        return
    reply({"stored": len(missing)})
    if not known:
        assert lock is not None
        os.close(lock)
        store.prune()


def ranges(numbers: list[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1][1] += 1
        else:
            found.append([number, number + 1])
    return found


class Changed(Exception):
    """The content of this hash arrived as another one: it was changed meanwhile, on either side."""


class Stream:
    """The bytes of the blocks, one after the other."""

    def __init__(self, source: BinaryIO) -> None:
        self.blocks = self._decoded(source)
        self.block: memoryview = memoryview(b"")

    def pieces(self, size_bytes: int) -> Iterator[memoryview]:
        """Exactly so many bytes, in pieces."""
        while size_bytes:
            if not self.block:
                self.block = memoryview(next(self.blocks))
            piece, self.block = self.block[:size_bytes], self.block[size_bytes:]
            size_bytes -= len(piece)
            yield piece

    @staticmethod
    def _decoded(source: BinaryIO) -> Iterator[bytes]:
        while True:
            kind, size = HEADER.unpack(_exactly(source, HEADER.size))
            if size > BLOCK_BYTES:
                raise ValueError("a block is too large")
            if kind == b"0":
                yield bytes(size)
            elif kind == b"Z":
                yield zlib.decompressobj().decompress(_exactly(source, size), BLOCK_BYTES)
            else:
                yield _exactly(source, size)


class Draft:
    """A content that arrives. Of a large one, what had arrived before a cut counts: it goes on from there."""

    def __init__(self, store: Store, sha256: str, size_bytes: int) -> None:
        self.store, self.sha256, self.size_bytes = store, sha256, size_bytes
        self.digest, self.written = hashlib.sha256(), 0
        self.path = store.path("drafts", sha256)
        self.fd = self._open() if size_bytes >= CONTINUED_BYTES else None
        if self.fd is None:  # small, or an earlier receiver has not noticed yet that its connection was cut
            self.path += f".{os.getpid()}"
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def _open(self) -> int | None:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        if not self._is_ours(fd):
            os.close(fd)
            return None
        if os.fstat(fd).st_size >= self.size_bytes:
            os.ftruncate(fd, 0)
        said_at = time.monotonic()
        while True:
            piece = os.read(fd, PIECE_BYTES)
            if not piece:
                return fd
            self.digest.update(piece)
            self.written += len(piece)
            if time.monotonic() - said_at > SAY_EVERY_S:
                reply({"hashed": self.written})
                said_at = time.monotonic()

    def _is_ours(self, fd: int) -> bool:
        """False where another receiver fills the file, or has just given it its name in the store."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(fd), os.stat(self.path))
        except (BlockingIOError, FileNotFoundError):
            return False

    def fill(self, stream: Stream) -> None:
        """Take the rest from the stream, and give the file its name. Raises Changed for another content."""
        assert self.fd is not None
        for piece in stream.pieces(self.size_bytes - self.written):
            self.digest.update(piece)
            write_sparse(self.fd, piece)
        if self.digest.hexdigest() != self.sha256:
            os.unlink(self.path)
            raise Changed(self.sha256)
        path = self.store.content(self.sha256)
        try:
            os.rename(self.path, path)
        except FileNotFoundError:  # the first content whose hash begins like this
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            os.rename(self.path, path)
        os.close(self.fd)


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise EOFError("the connection was cut")
    return data
