"""Stores the contents that a possibly hostile machine sends, in the order of its index, each as long as it says there.

Files are opened relative to their directory's descriptor, never through a link. A file gets its name when it is whole and what
the index says, so what carries a name was checked, at whichever moment this ends. What cannot be stored is refused by name and
skipped; what comes before and after it is kept. `hosts.transfer.collector` calls this.
"""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.hosts.transfer.places import DRAFT, Places, RefusedFile, parts_of
from orchestrator.system import private_files
from orchestrator.text import parsing
from orchestrator.text.terminal import printable
from orchestrator.vm.buckets.manifest import MEASURED

PIECE_BYTES = 1 << 20
ZEROS = bytes(PIECE_BYTES)
CHANGED = "its content is not what the index says: it changed meanwhile"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# An entry's own fault, whichever disk it is written to. Any other error is the disk's, and may pass.
OF_THE_PATH = (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG,
    errno.EILSEQ, errno.EINVAL)  # fmt: skip


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the index lists for a file: untrusted, and compared with the content that arrives."""

    size_bytes: int
    sha256: str
    place: str = ""  # in the directory of the worker; "": not known yet


@dataclass(slots=True)
class Extracted:
    # What is on disk now, measured, and in which place, by its path on the worker.
    files: dict[str, IndexEntry] = field(default_factory=dict)
    # Path on the worker, and why: `refused` if nothing brings the file any more, `missing` while it may come yet.
    refused: list[tuple[str, str]] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)  # what is no result, such as a FIFO


class ContentLost(Exception):
    """Why the rest of a content cannot be had, by the source of it: the next bytes are of the next file."""


class ContentLater(ContentLost):
    """Another try may bring it."""


Read = Callable[[int], bytes]  # exactly so many bytes, or an exception


def extract(
    read: Read,
    into: Path,
    wanted: Mapping[str, IndexEntry],
    places: Places,
    result: Extracted,
    arrived: Callable[[int], None] = lambda size: None,
    *,
    may_change: bool = True,
) -> None:
    """Store the contents of `wanted`, one after the other from `read`, in the directory `into`.

    `places` are those of `into`. `arrived` receives the size of each piece that is on the disk. `result` is filled, also when
    this raises what `read` raises when the source is cut, or OSError for a full disk. ContentLost from `read` costs one file,
    and so does another content than the index says. `may_change`: a later index may say so; else the file is lost.
    """
    with open_root(into) as root:
        _Extraction(read, root, places, result, arrived, may_change).run(wanted)


@contextlib.contextmanager
def open_root(into: Path) -> Iterator[int]:
    """Yield a descriptor of the directory."""
    root = os.open(into, DIRECTORY)
    try:
        yield root
    finally:
        os.close(root)


def is_there(root: int, name: str, promise: IndexEntry, read: Callable[[int], None] = lambda size: None) -> bool:
    """Return whether this very file is stored already; follows no link. `read` receives the size of each piece read."""
    try:
        parts = parts_of(name)
        with _directory(root, parts[:-1]) as fd:
            file_fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
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


def link(root: int, source: Path, entry: IndexEntry) -> bool:
    """Give a file of this machine, which has this content, the place of the entry, too; return whether it has it now."""
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(DRAFT, dir_fd=root)
        os.link(source, DRAFT, dst_dir_fd=root)
        _name_draft(root, entry.place)
    except OSError:  # of another disk, or gone
        return False
    return is_there(root, entry.place, entry)


def _name_draft(root: int, place: str) -> None:
    """Give the file that came its name."""
    *directories, name = parts_of(place)
    with _directory(root, directories, make=True) as directory:
        os.rename(DRAFT, name, src_dir_fd=root, dst_dir_fd=directory)


@contextlib.contextmanager
def _directory(root: int, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """Yield a descriptor of the directory, reached without following any link; `make`: what is missing is made."""
    fd = os.dup(root)
    try:
        for part in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, private_files.DIRECTORY_MODE, dir_fd=fd)
            inner = os.open(part, DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


class _Extraction:
    def __init__(
        self, read: Read, root: int, places: Places, result: Extracted, arrived: Callable[[int], None], may_change: bool
    ) -> None:
        self.read, self.root, self.places, self.result, self.arrived = read, root, places, result, arrived
        self.changed = result.missing if may_change else result.refused
        self.left = 0  # bytes of the content that comes

    def run(self, wanted: Mapping[str, IndexEntry]) -> None:
        for path, promise in wanted.items():
            self.left = promise.size_bytes
            try:
                self._store(path, promise)
            except RefusedFile as refusal:
                self.result.refused.append((path, str(refusal)))
            except OSError as error:
                if error.errno not in OF_THE_PATH:
                    raise
                self.result.missing.append((path, error.strerror or str(error)))
            except ContentLost as loss:
                lost = self.result.missing if isinstance(loss, ContentLater) else self.result.refused
                lost.append((path, str(loss)))
                continue
            with contextlib.suppress(ContentLost):
                while self.left:
                    self._take()

    def _store(self, path: str, promise: IndexEntry) -> None:
        place = self.places.of(path)
        try:
            came = self._write(promise)
            if came:
                try:
                    _name_draft(self.root, place)
                except OSError as error:
                    if error.errno not in OF_THE_PATH:
                        raise
                    place = self.places.plain(path)
                    _name_draft(self.root, place)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(DRAFT, dir_fd=self.root)  # half a file is worse than none, and takes room
        if not came:
            self.changed.append((path, CHANGED))
            return
        self.result.files[path] = replace(promise, place=place)

    def _write(self, promise: IndexEntry) -> bool:
        """Store what comes as a draft. False: the content is another one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(DRAFT, dir_fd=self.root)  # left by a process that was killed
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        digest = hashlib.sha256()
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
        return digest.hexdigest() == promise.sha256

    def _take(self) -> bytes:
        data = self.read(min(self.left, PIECE_BYTES))
        self.left -= len(data)
        return data


# The manifest that a training writes last: what it says is compared with what came.

MANIFEST = "artifacts/manifest.json"
MANIFEST_BYTES = 64 << 20


def check_manifest(root: Path, result: Extracted) -> list[tuple[str, str]]:
    """Return (path, why) of what `manifest.json` lists and is different, or did not come and is no problem in `result`.

    A file of that name that is no manifest of a training is a file as any other; a note says so.
    """
    if MANIFEST not in result.files:
        return []
    try:
        if result.files[MANIFEST].size_bytes > MANIFEST_BYTES:
            raise ValueError("too large")
        manifest = parsing.loads((root / result.files[MANIFEST].place).read_bytes())
        if manifest["schema"] != 1:
            raise ValueError(f"schema {manifest['schema']!r} is not known")
        rows = [(str(row["path"]), IndexEntry(int(row["size_bytes"]), str(row["sha256"]))) for row in manifest["files"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        why = printable(f"nothing was compared with it: it is not the manifest of a training ({error!r})")
        result.notes.append((MANIFEST, why))
        return []
    known = {path for path, _ in [*result.missing, *result.refused]}
    broken = []
    for name, entry in rows:
        path = f"artifacts/{name}"
        if path in MEASURED:  # tpujob may write it until the job has ended; an older one listed it
            continue
        found = result.files.get(path)
        if found is None and path not in known:
            broken.append((path, "the manifest promises it, but it did not come"))
        elif found is not None and found != replace(entry, place=found.place):
            broken.append((path, "its content is not what the manifest says"))
    return broken
