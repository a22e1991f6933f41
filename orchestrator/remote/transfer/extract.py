"""Stores the contents that a possibly hostile machine sends, in the order of its index, each as long as it says there.

Files are opened relative to their directory's descriptor, never through a link. A file gets its name when it is whole and what
the index says, so what carries a name was checked, at whichever moment this ends. What cannot be stored is refused by name and
skipped; what comes before and after it is kept. `remote.transfer.collect` calls this.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import private_files
from orchestrator.core.text.terminal import printable

PIECE_BYTES = 1 << 20
ZEROS = bytes(PIECE_BYTES)
DEPTH = 32
NAME_BYTES = 255
CHANGED = "its content is not what the index says: it changed meanwhile"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DRAFT = ".tpujob-draft"  # of the file that is being written
# An entry's own fault, whichever disk it is written to. Any other error is the disk's, and may pass.
OF_THE_PATH = (
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.EILSEQ,
    errno.EINVAL,
)


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the index lists for a file: untrusted, and compared with the content that arrives."""

    size_bytes: int
    sha256: str


@dataclass(slots=True)
class Extracted:
    files: dict[str, IndexEntry] = field(default_factory=dict)  # what is on disk now, measured
    # Printable path, and why: `refused` if another try would change nothing, `missing` if it may bring the file.
    refused: list[tuple[str, str]] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)


class RefusedFile(Exception):
    """Why a file is not taken."""


class ContentLost(Exception):
    """Why the rest of a content cannot be had, by the source of it: the next bytes are of the next file."""


Read = Callable[[int], bytes]  # exactly so many bytes, or an exception


def extract(
    read: Read,
    into: Path,
    wanted: Mapping[str, IndexEntry],
    result: Extracted,
    arrived: Callable[[int], None] = lambda size: None,
) -> None:
    """Store the contents of `wanted`, one after the other from `read`, in the directory `into`.

    `arrived` receives the size of each piece that is on the disk. `result` is filled, also when this raises what `read` raises
    when the source is cut, or OSError for a full disk. ContentLost from `read` costs one file.
    """
    root = open_root(into)
    try:
        _Extraction(read, root, result, arrived).run(wanted)
    finally:
        os.close(root)


def open_root(into: Path) -> int:
    return os.open(into, DIRECTORY)


def is_there(root: int, name: str, promise: IndexEntry, read: Callable[[int], None] = lambda size: None) -> bool:
    """Return whether this very file is stored already; follows no link. `read` receives the size of each piece read."""
    try:
        parts = parts_of(name)
        fd = _open_directory(root, parts[:-1])
        try:
            file_fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
    except (RefusedFile, OSError):
        return False
    try:
        found, digest = os.fstat(file_fd), hashlib.sha256()
        if not stat.S_ISREG(found.st_mode) or found.st_size != promise.size_bytes:
            return False
        while piece := os.read(file_fd, PIECE_BYTES):
            digest.update(piece)
            read(len(piece))
    finally:
        os.close(file_fd)
    return digest.hexdigest() == promise.sha256


def _open_directory(root: int, parts: Sequence[str], *, make: bool = False) -> int:
    """A descriptor of the directory, reached without following any link; `make`: what is missing is made."""
    fd = os.dup(root)
    for part in parts:
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, private_files.DIRECTORY_MODE, dir_fd=fd)
            inner = os.open(part, DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def parts_of(name: str) -> list[str]:
    """Return the components of a path. Raises RefusedFile unless it is safe on every supported system."""
    if not name or name.startswith("/") or re.match(r"[A-Za-z]:", name):
        raise RefusedFile("an absolute path" if name else "an empty path")
    if "\\" in name:
        raise RefusedFile("a backslash in the path")
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in name):
        raise RefusedFile("a control character in the path, or it is not UTF-8")
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise RefusedFile("a path with empty, . or .. components")
    if len(parts) > DEPTH or any(len(part.encode()) > NAME_BYTES for part in parts):
        raise RefusedFile("a path that is too deep or too long")
    return parts


class _Extraction:
    def __init__(self, read: Read, root: int, result: Extracted, arrived: Callable[[int], None]) -> None:
        self.read, self.root, self.result, self.arrived = read, root, result, arrived
        self.left = 0  # bytes of the content that comes
        self.spelling: dict[str, str] = {}  # case-folded path → the path that took it
        for name in result.files:  # there already, from an earlier try
            with contextlib.suppress(RefusedFile):
                self._claim_spelling(parts_of(name))

    def run(self, wanted: Mapping[str, IndexEntry]) -> None:
        for name, promise in wanted.items():
            self.left = promise.size_bytes
            try:
                self._store(name, promise)
            except RefusedFile as refusal:
                self.result.refused.append((printable(name), str(refusal)))
            except OSError as error:
                if error.errno not in OF_THE_PATH:
                    raise
                self.result.refused.append((printable(name), error.strerror or str(error)))
            except ContentLost as loss:
                self.result.missing.append((printable(name), str(loss)))
                continue
            with contextlib.suppress(ContentLost):
                while self.left:
                    self._take()

    def _store(self, name: str, promise: IndexEntry) -> None:
        parts = parts_of(name)
        if parts[0] == DRAFT:
            raise RefusedFile("a name that is used while files are stored")
        self._claim_spelling(parts)
        directory = _open_directory(self.root, parts[:-1], make=True)
        try:
            if self._write(directory, parts[-1], promise):
                self.result.files[name] = promise
            else:
                self.result.missing.append((printable(name), CHANGED))
        finally:
            os.close(directory)

    def _write(self, directory: int, name: str, promise: IndexEntry) -> bool:
        """False: the content is another one, and nothing was put in its place."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(DRAFT, dir_fd=self.root)  # left by a process that was killed
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        digest = hashlib.sha256()
        try:
            with os.fdopen(os.open(DRAFT, flags, private_files.FILE_MODE, dir_fd=self.root), "wb") as file:
                while self.left:
                    piece = self._take()
                    digest.update(piece)
                    if piece == ZEROS:  # a hole: a sparse checkpoint takes no more room here than on the worker
                        file.seek(PIECE_BYTES, os.SEEK_CUR)
                    else:
                        file.write(piece)
                    self.arrived(len(piece))
                file.truncate()  # a hole at the end
            if digest.hexdigest() == promise.sha256:
                os.rename(DRAFT, name, src_dir_fd=self.root, dst_dir_fd=directory)
                return True
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(DRAFT, dir_fd=self.root)  # half a file is worse than none, and takes room
            raise
        os.unlink(DRAFT, dir_fd=self.root)
        return False

    def _claim_spelling(self, parts: list[str]) -> None:
        """On a disk that ignores case, `A/x` and `a/y` would share a directory, and `X` replace `x`."""
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            folded = unicodedata.normalize("NFKC", path).casefold()
            if self.spelling.setdefault(folded, path) != path:
                raise RefusedFile(f"its path differs from {printable(self.spelling[folded])} only in case")

    def _take(self) -> bytes:
        data = self.read(min(self.left, PIECE_BYTES))
        self.left -= len(data)
        return data
