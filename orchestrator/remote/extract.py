"""Takes files out of a tar that a possibly hostile machine sent. Not `tarfile`: its safe filters were bypassed too often.

Only regular files and directories are made, each opened relative to its parent's descriptor, never through a link,
never over something that exists. Every other entry is refused by name and skipped; what came before and after it is
kept. The archive is plain, so that no byte on the wire can become a thousand on disk. `remote.collect` calls this.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tarfile
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.remote.terminal import printable

BLOCK = tarfile.BLOCKSIZE
LONG_NAME_BYTES = 4096
PIECE_BYTES = 1 << 20
DEPTH = 32
NAME_BYTES = 255
FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
WITHOUT_CONTENT = (
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
)
KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.CONTTYPE: "a contiguous file",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


@dataclass(frozen=True, slots=True)
class Limits:
    files: int = 10_000
    size_bytes: int = 5 << 30  # of all files of one worker


@dataclass(frozen=True, slots=True)
class Promise:
    """What the index said about a file before it came."""

    size_bytes: int
    sha256: str


@dataclass(slots=True)
class Extracted:
    files: dict[str, Promise] = field(default_factory=dict)  # what is on disk now, measured
    refused: list[tuple[str, str]] = field(default_factory=list)  # printable path, why
    size_bytes: int = 0


class Refused(Exception):
    """Why an entry is not taken."""


class Damaged(Exception):
    """The archive makes no sense from here on."""


Read = Callable[[int], bytes]  # exactly so many bytes, or an exception


def extract(read: Read, into: Path, promised: Mapping[str, Promise], limits: Limits, result: Extracted) -> None:
    """Everything that `promised` names, from `read` into the fresh, empty directory `into`.

    What happened is in `result`, also when this raises: Damaged, or whatever `read` does when the source is cut.
    """
    root = os.open(into, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _Extraction(read, root, promised, limits, result).run()
    finally:
        os.close(root)


def parts_of(name: str) -> list[str]:
    """The components of a path that is safe on every system that we run on."""
    if not name or name.startswith("/") or re.match(r"[A-Za-z]:", name):
        raise Refused("an absolute path" if name else "an empty path")
    if "\\" in name:
        raise Refused("a backslash in the path")
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in name):
        raise Refused("a control character in the path, or it is not UTF-8")
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise Refused("a path with empty, . or .. components")
    if len(parts) > DEPTH or any(len(part.encode()) > NAME_BYTES for part in parts):
        raise Refused("a path that is too deep or too long")
    return parts


class _Extraction:
    def __init__(
        self, read: Read, root: int, promised: Mapping[str, Promise], limits: Limits, result: Extracted
    ) -> None:
        self.read, self.root, self.promised, self.limits, self.result = read, root, promised, limits, result
        self.spelling: dict[str, str] = {}  # case-folded path → the path that took it
        self.entries = 0
        self.passed_bytes = 0

    def run(self) -> None:
        long_name: str | None = None
        while (header := self._header()) is not None:
            name, self.left = long_name or header.name, header.size
            long_name = None
            if header.type == tarfile.GNUTYPE_LONGNAME:
                long_name = self._long_name()
            else:
                try:
                    self._entry(header, name)
                except Refused as refusal:
                    self.result.refused.append((printable(name), str(refusal)))
                except OSError as error:
                    self.result.refused.append((printable(name), error.strerror or str(error)))
            self._skip()

    def _header(self) -> tarfile.TarInfo | None:
        block = self.read(BLOCK)
        if block == bytes(BLOCK):
            return None
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise Damaged(f"a damaged archive: {error}") from error
        self.entries += 1
        if header.size < 0 or self.entries > 2 * self.limits.files + 10:
            raise Damaged("a damaged archive: a negative size, or entries without end")
        if header.type == tarfile.GNUTYPE_SPARSE:
            more = block[482]
            while more:
                more = self.read(BLOCK)[504]
        if header.type in WITHOUT_CONTENT:  # whatever size it claims
            header.size = 0
        self.padding = -header.size % BLOCK
        return header

    def _long_name(self) -> str:
        if self.left > LONG_NAME_BYTES:
            raise Damaged("a damaged archive: a path without end")
        return self._take(self.left).rstrip(b"\0").decode("utf-8", "surrogateescape")

    def _entry(self, header: tarfile.TarInfo, name: str) -> None:
        if header.type == tarfile.DIRTYPE:
            os.close(self._open_directory(parts_of(name.rstrip("/"))))
            return
        if header.type not in FILES:
            raise Refused(KINDS.get(header.type, "an entry of a kind that is not used here"))
        parts = parts_of(name)
        if name in self.result.files:
            raise Refused("the same path twice")
        promise = self.promised.get(name)
        if promise is None:
            raise Refused("it is not in the index")
        if len(self.result.files) >= self.limits.files:
            raise Refused(f"more than {self.limits.files:,} files")
        if self.result.size_bytes + header.size > self.limits.size_bytes:
            raise Refused(f"all files together would exceed {self.limits.size_bytes:,} bytes")
        self._file(name, parts, promise)

    def _file(self, name: str, parts: list[str], promise: Promise) -> None:
        self._claim_spelling(parts)
        directory = self._open_directory(parts[:-1])
        try:
            found = self._write(parts[-1], directory)
            if found != promise:
                os.unlink(parts[-1], dir_fd=directory)
                raise Refused("its content is not what the index says: it changed on the worker, or on the way")
        finally:
            os.close(directory)
        self.result.files[name] = found
        self.result.size_bytes += found.size_bytes

    def _write(self, name: str, directory: int) -> Promise:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        digest, size_bytes = hashlib.sha256(), self.left
        with os.fdopen(os.open(name, flags, 0o644, dir_fd=directory), "wb") as file:
            try:
                while self.left:
                    piece = self._take(min(self.left, PIECE_BYTES))
                    digest.update(piece)
                    file.write(piece)
                file.flush()
            except BaseException:
                os.unlink(name, dir_fd=directory)  # half a file is worse than none
                raise
        return Promise(size_bytes, digest.hexdigest())

    def _open_directory(self, parts: list[str]) -> int:
        """A descriptor of the directory, made where it is missing, reached without following any link."""
        self._claim_spelling(parts)
        fd = os.dup(self.root)
        for part in parts:
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=fd)
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def _claim_spelling(self, parts: list[str]) -> None:
        """On a disk that ignores case, `A/x` and `a/y` would share a directory, and `X` replace `x`."""
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            folded = unicodedata.normalize("NFKC", path).casefold()
            if self.spelling.setdefault(folded, path) != path:
                raise Refused(f"its path differs from {printable(self.spelling[folded])} only in case")

    def _take(self, size: int) -> bytes:
        self.passed_bytes += size
        if self.passed_bytes > 2 * self.limits.size_bytes:
            raise Damaged("the archive is much larger than anything that was asked for")
        data = self.read(size)
        self.left -= size
        return data

    def _skip(self) -> None:
        """To the next header: the rest of the content, and its padding."""
        self.left += self.padding
        while self.left:
            self._take(min(self.left, PIECE_BYTES))
