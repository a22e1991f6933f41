"""The contents of what was shipped, on this machine: a run ships what it was when it began, hours later, too.

`objects/` holds each content under its hash, `manifests/` what the shipments consist of; `vm/files/store.py` reads the same
layout for local runs. The newest manifests, those of living processes and their contents stay; the rest is deleted. Locks
tell who lives: the kernel drops those of a killed process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from orchestrator.errors import ConfigError, UserError
from orchestrator.system import fork, private_files

KEEP = 8  # manifests
PIECE_BYTES = 1 << 20
DRAFT = ".draft-"


class Store:
    def __init__(self, root: Path) -> None:
        """Raise ConfigError if the directory cannot be made."""
        self.root, self.objects, self.manifests = root, root / "objects", root / "manifests"
        try:
            for directory in (self.objects, self.manifests):
                private_files.make_directory(directory)
        except OSError as error:
            raise ConfigError(
                f"{error.filename} cannot be created: {error.strerror}",
                hint="what is shipped is kept there; TPUJOB_STATE_DIR can name another directory",
            ) from error

    def content(self, sha256: str) -> Path:
        return self.objects / sha256[:2] / sha256

    def has(self, sha256: str, size_bytes: int) -> bool:
        try:
            return os.stat(self.content(sha256)).st_size == size_bytes  # noqa: PTH116 (faster)
        except OSError:
            return False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Nothing is deleted meanwhile."""
        lock = self._locked(self.root / "lock", fcntl.LOCK_SH)
        assert lock is not None
        try:
            yield
        finally:
            lock.close()

    def add_bytes(self, data: bytes) -> tuple[str, int]:
        """Store the bytes; return their hash and their size."""
        sha256 = hashlib.sha256(data).hexdigest()
        if data and not self.has(sha256, len(data)):
            with self._draft() as draft:
                draft.write_bytes(data)
                self._name(draft, sha256)
        return sha256, len(data)

    def add_file(self, number: int, on_read: Callable[[int], None]) -> tuple[str, int]:
        """Store what this descriptor reads, if it is not here; return its hash and its size.

        `on_read` receives the size of each piece.
        """
        sha256, size_bytes = hashed(number, on_read)
        if not size_bytes or self.has(sha256, size_bytes):
            return sha256, size_bytes
        os.lseek(number, 0, os.SEEK_SET)
        with self._draft() as draft:
            with draft.open("wb") as file:
                # What is stored counts: it may be written to meanwhile.
                sha256, size_bytes = hashed(number, lambda size: None, file.write)
            self._name(draft, sha256)
        return sha256, size_bytes

    def keep(self, manifest: Manifest) -> fork.Descriptor:
        """Write the manifest, while `in_use`. Its contents stay until the result is closed, or this process ends."""
        path = self.manifests / manifest.id
        with self._draft() as draft:
            if not path.exists():
                draft.write_bytes(manifest.text)
                draft.replace(path)
            elif path.read_bytes() == manifest.text:
                os.utime(path)
            else:  # damaged, and perhaps locked: a new file of this name would not be
                path.write_bytes(manifest.text)
        held = self._locked(path, fcntl.LOCK_SH)
        assert held is not None
        return held

    def prune(self) -> None:
        """Delete what neither a living process nor the newest manifests need. Does nothing while another command ships."""
        lock = self._locked(self.root / "lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is None:
            return
        try:
            for draft in self.objects.glob(f"{DRAFT}*"):  # of killed processes
                draft.unlink(missing_ok=True)
            by_age = sorted(self.manifests.iterdir(), key=lambda path: -path.stat().st_mtime)
            dropped = [self._drop(path) for path in by_age[KEEP:]]
            if not any(dropped):
                return
            needed = self._needed()
            for path in self.objects.glob("*/*"):
                if path.name not in needed:
                    path.unlink(missing_ok=True)
        except OSError:  # the next command tries again
            return
        finally:
            lock.close()

    def _needed(self) -> set[str]:
        """Return the names of the contents that the manifests need; delete damaged manifests."""
        needed: set[str] = set()
        for path in list(self.manifests.iterdir()):
            text = path.read_bytes()
            if hashlib.sha256(text).hexdigest() == path.name:
                needed.update(row[1] for row in json.loads(text)["files"])
            else:
                path.unlink()
        return needed

    def _drop(self, path: Path) -> bool:
        """Delete a manifest, unless a living process holds it."""
        held = self._locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if held is None:
            return False
        path.unlink()
        held.close()
        return True

    @contextmanager
    def _draft(self) -> Iterator[Path]:
        draft = self.objects / f"{DRAFT}{os.getpid()}-{time.monotonic_ns()}"
        try:
            yield draft
        except OSError as error:
            raise UserError(
                f"{self.root}: {error.strerror}: the code is stored there before it is shipped",
                hint="free some space, or name another place with TPUJOB_STATE_DIR",
            ) from error
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)

    def _name(self, draft: Path, sha256: str) -> None:
        path = self.content(sha256)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft.replace(path)

    @staticmethod
    def _locked(path: Path, how: int) -> fork.Descriptor | None:
        descriptor = fork.Descriptor(lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            fcntl.flock(descriptor.fileno(), how)
        except BlockingIOError:
            descriptor.close()
            return None
        return descriptor


def hashed(
    number: int, on_read: Callable[[int], None], take: Callable[[bytes], object] = lambda piece: None
) -> tuple[str, int]:
    """Return hash and size of what this descriptor reads. `take` receives each piece, `on_read` its size."""
    digest, size_bytes = hashlib.sha256(), 0
    while piece := os.read(number, PIECE_BYTES):
        digest.update(piece)
        size_bytes += len(piece)
        take(piece)
        on_read(len(piece))
    return digest.hexdigest(), size_bytes


# A tree as text: each file with its hash, each link, each empty directory. Its own hash names it.
#
# The same tree gives the same manifest on every machine, at any time, for any user. `vm/files/store.py` reads it on the
# workers.


@dataclass(frozen=True, slots=True)
class File:
    path: str
    sha256: str
    size_bytes: int
    executable: bool


@dataclass(frozen=True)
class Manifest:
    """All three in the order of their paths."""

    files: tuple[File, ...]
    links: tuple[tuple[str, str], ...] = ()  # (path, relative target)
    directories: tuple[str, ...] = ()

    @cached_property
    def text(self) -> bytes:
        shape = {
            "files": [[file.path, file.sha256, file.size_bytes, int(file.executable)] for file in self.files],
            "links": self.links,
            "directories": self.directories,
        }
        return json.dumps(shape, separators=(",", ":")).encode()  # ASCII: names that are not UTF-8 keep their bytes

    @cached_property
    def packed(self) -> bytes:
        """The text as it travels."""
        return zlib.compress(self.text, 1)

    @cached_property
    def id(self) -> str:
        return hashlib.sha256(self.text).hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @cached_property
    def contents(self) -> tuple[tuple[str, int], ...]:
        """Each content once, with its size, in the order in which it is sent. Nothing is sent of an empty file."""
        return tuple({file.sha256: file.size_bytes for file in self.files if file.size_bytes}.items())
