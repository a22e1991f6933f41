"""Where a queue keeps its record and the files of its jobs: in a directory, or in a place in Cloud Storage.

An object is either written over and over (`write`), each time in place of the generation that was read, or stored once (`put`).
No two contents that are written may be equal: a writer whose reply was lost recognizes its own by it, and in a directory the
hash of the content is the generation.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from orchestrator.errors import AlreadyExists, CloudUnavailable
from orchestrator.places import google
from orchestrator.promise.effects.locks import LOOK_AGAIN_S, LOOKS
from orchestrator.system import fork, private_files, whole_file

TRY_S = 10.0
PIECE_BYTES = 1 << 20
LOCK = ".lock"


class Conflict(Exception):
    """Another one has written the object meanwhile: nothing is changed.

    Or the reply to this write was lost, and the other one has written after it: then its content tells.
    """


class StoreUnavailable(CloudUnavailable):
    """A disk refuses. Nothing is written by halves."""


@dataclass(frozen=True, slots=True)
class Found:
    """An object as it was read."""

    content: bytes  # empty: there is no object
    generation: str  # empty: there is no object
    now: float  # unix seconds by the clock of the store, when it answered


class Store(Protocol):
    """Small objects. All methods raise CloudErrors; after CloudUnavailable a change may be made, now or in a while."""

    where: str  # for people: gs://BUCKET/PREFIX, or the directory

    def read(self, name: str) -> Found:
        """Return the object."""

    def write(self, name: str, content: bytes, generation: str) -> None:
        """Write the object, whole. Raises Conflict unless it still has this generation; empty: it does not exist."""

    def put(self, name: str, path: Path) -> None:
        """Store a file as an object that never changes; twice is once. Raises AlreadyExists if it has another content."""

    def fetch(self, name: str, path: Path) -> None:
        """Store the object as a file, whole or not at all. Raises NotFound."""

    def delete(self, name: str) -> None:
        """Delete the object; one that is not there is fine."""


def open_store(where: str, *, emulator: str | None) -> Store:
    """Return the store at gs://BUCKET/PREFIX, or in a directory, which need not exist. `emulator`: of Cloud Storage."""
    if where.startswith("gs://"):
        return BucketStore(where, emulator)
    return DirectoryStore(Path(where).expanduser().absolute())


class DirectoryStore:
    """A directory, private to the user. Its clock is that of this machine; where machines share it, theirs must agree."""

    def __init__(self, directory: Path) -> None:
        self.where, self._directory = str(directory), directory

    def read(self, name: str) -> Found:
        path = self._directory / name
        with _on_disk(path):
            return _found(path)

    def write(self, name: str, content: bytes, generation: str) -> None:
        path = self._directory / name
        with _on_disk(path), self._locked(path):
            if _found(path).generation != generation:
                raise Conflict(f"{path} was written meanwhile")
            whole_file.replace(path, content)

    def put(self, name: str, path: Path) -> None:
        target = self._directory / name
        with _on_disk(target):
            private_files.make_directory(target.parent)
            if not target.exists():
                _keep(target, _pieces(path))
            elif _sha256(path) != _sha256(target):
                raise AlreadyExists(f"{target} exists already, with another content")

    def fetch(self, name: str, path: Path) -> None:
        _keep(path, _pieces(self._directory / name))

    def delete(self, name: str) -> None:
        path = self._directory / name
        with _on_disk(path), self._locked(path):
            path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        """Keep other threads, processes and machines from changing objects. Raises OSError."""
        private_files.make_directory(path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        lock = fork.Descriptor(lambda: os.open(self._directory / LOCK, flags, private_files.FILE_MODE))
        try:
            _lock(lock)
            yield
        finally:
            lock.close()


class BucketStore:
    """A place in Cloud Storage, or in an emulator of it. Its clock is the bucket's, in whole seconds."""

    def __init__(self, url: str, emulator: str | None) -> None:
        self.where = url.rstrip("/")
        self._objects = google.objects.Objects(emulator=emulator, timeout_s=TRY_S)

    def read(self, name: str) -> Found:
        return Found(*self._objects.read(f"{self.where}/{name}"))

    def write(self, name: str, content: bytes, generation: str) -> None:
        url = f"{self.where}/{name}"
        if not self._objects.replace(url, content, generation):
            raise Conflict(f"{url} was written meanwhile")

    def put(self, name: str, path: Path) -> None:
        with _on_disk(path):
            self._objects.upload(f"{self.where}/{name}", path)

    def fetch(self, name: str, path: Path) -> None:
        _keep(path, self._objects.download(f"{self.where}/{name}"))

    def delete(self, name: str) -> None:
        self._objects.delete(f"{self.where}/{name}")


def _found(path: Path) -> Found:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Found(b"", "", time.time())
    return Found(content, hashlib.sha256(content).hexdigest(), time.time())


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise google.error_translation.NotFound(f"{path} does not exist") from None
    with file:
        yield from iter(partial(file.read, PIECE_BYTES), b"")


def _lock(descriptor: fork.Descriptor) -> None:
    """Raise TimeoutError if another process stands still with it."""
    for _ in range(LOOKS):
        try:
            fcntl.flock(descriptor.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(LOOK_AGAIN_S)
    raise TimeoutError(errno.ETIMEDOUT, "another process holds its lock, and stands still")


def _keep(path: Path, pieces: Iterable[bytes]) -> None:
    """Store a file that is there whole or not at all, for this user only. Raises StoreUnavailable, and what `pieces` raises."""
    with _on_disk(path):
        number, draft = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            Path(draft).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(draft).unlink()
            raise


@contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    """Raise StoreUnavailable for OSErrors, with the file and why."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{error.filename or path}: {error.strerror or error}") from error
