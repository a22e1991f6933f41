"""Packs what a run made on a worker: one line of JSON, the index, then a tar of exactly the files in it, on stdout.

`remote.collect` asks for it. Taken are the regular files under `artifacts/` and those under `work/` that match the
job's patterns. A link is packed as the file it leads to, and only if that lies in the same directory tree; everything
else that is not a regular file is refused by name. The archive is plain and not compressed: nothing can be larger than it says.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from .phase import Phase
from .wire import reply

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from typing import Any, BinaryIO


class Refused(Exception):
    """Why a file is not packed."""


def pack() -> None:
    """The request on stdin: {"attempt", "patterns", "max_files", "max_bytes"}, and "runs" where that is another place."""
    request = json.loads(sys.stdin.buffer.read())
    phase = Phase(request["attempt"], "main", request.get("runs"))
    index = Index(phase.run, request["max_files"], request["max_bytes"])
    index.add_tree("artifacts")
    for pattern in request["patterns"]:
        index.add_pattern(pattern)
    reply({"files": list(index.files.values()), "refused": index.refused})
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for name, entry in index.files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = entry["size_bytes"], 0o644
            with (index.run / name).open("rb") as file:
                tar.addfile(member, Exactly(file, member.size))


class Index:
    """The files to send, by their path under the run's directory, each with its size and hash."""

    def __init__(self, run: Path, max_files: int, max_bytes: int) -> None:
        self.run, self.max_files, self.max_bytes = run, max_files, max_bytes
        self.files: dict[str, dict[str, Any]] = {}
        self.refused: list[dict[str, str]] = []
        self.seen: set[str] = set()
        self.size_bytes = 0

    def add_tree(self, name: str) -> None:
        for path in _walk(self.run / name):
            if not self._add(path, self.run / name):
                return

    def add_pattern(self, pattern: str) -> None:
        """A pattern such as `out/**/*.png`, relative to `work/`; a directory that matches is taken whole."""
        work = self.run / "work"
        if pattern.startswith("/") or ".." in pattern.split("/"):
            self._refuse(f"work/{pattern}", "the pattern leads out of the work directory")
            return
        for match in _matches(work, pattern):
            for path in _walk(match) if match.is_dir() and not match.is_symlink() else [match]:
                if not self._add(path, work):
                    return

    def _add(self, path: Path, within: Path) -> bool:
        """False: there are too many files, look no further."""
        name = path.relative_to(self.run).as_posix()
        if name in self.seen:
            return True
        self.seen.add(name)
        if len(self.seen) > self.max_files:
            self._refuse(name, f"more than {self.max_files:,} files; this one and the rest were left on the worker")
            return False
        try:
            self.files[name] = self._entry(name, path, within)
        except Refused as refusal:
            self._refuse(name, str(refusal))
        except OSError as error:
            self._refuse(name, error.strerror or str(error))
        return True

    def _entry(self, name: str, path: Path, within: Path) -> dict[str, Any]:
        target = Path(os.path.realpath(path))
        home = Path(os.path.realpath(within))
        if home not in target.parents:
            raise Refused("a link that leads out of the directory")
        kind = os.lstat(target).st_mode
        if not stat.S_ISREG(kind):  # opening a FIFO would wait for ever
            raise Refused("a link to a directory" if stat.S_ISDIR(kind) else "not a regular file")
        digest, size_bytes = hashlib.sha256(), 0
        with target.open("rb") as file:
            if self.size_bytes + os.fstat(file.fileno()).st_size > self.max_bytes:
                raise Refused(f"all files together would exceed {self.max_bytes:,} bytes")
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
                size_bytes += len(piece)
        self.size_bytes += size_bytes
        return {"path": name, "size_bytes": size_bytes, "sha256": digest.hexdigest()}

    def _refuse(self, name: str, why: str) -> None:
        self.refused.append({"path": name, "why": why})


def _walk(top: Path) -> Iterator[Path]:
    """Everything below that is not a directory, in a fixed order; links are named, never entered."""
    for directory, names, files in os.walk(top):
        links = [name for name in names if Path(directory, name).is_symlink()]
        names[:] = sorted(set(names) - set(links))
        for name in sorted(files + links):
            yield Path(directory, name)


def _matches(top: Path, pattern: str) -> Iterator[Path]:
    """Like `Path.glob`, in a fixed order and never through a link."""
    head, _, rest = pattern.partition("/")
    if head == "**":
        yield from _matches(top, rest or "*")
        for child in _children(top):
            if child.is_dir() and not child.is_symlink():
                yield from _matches(child, pattern)
        return
    for child in _children(top):
        if fnmatch.fnmatchcase(child.name, head):
            if not rest:
                yield child
            elif child.is_dir() and not child.is_symlink():
                yield from _matches(child, rest)


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


class Exactly:
    """Reads as many bytes as were announced, whatever became of the file since: padded with zeros, or cut."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self.file, self.left = file, size_bytes

    def read(self, size: int = -1) -> bytes:
        size = self.left if size < 0 else min(size, self.left)
        data = self.file.read(size)
        self.left -= size
        return data + bytes(size - len(data))
