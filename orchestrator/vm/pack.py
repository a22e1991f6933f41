"""Packs what a run made on a worker: an index, one line of JSON for each file, then a tar of the files that are asked for.

`remote.transfer.collect` asks for it. Taken are the regular files under `artifacts/` and those under `work/` that match the
job's patterns. A link is packed as the file it leads to, and only if that lies in the same directory tree; everything
else that is not a regular file is refused by name. The archive is plain and not compressed: nothing can be larger than
it says. It is never on this disk: it is made while it is sent.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import stat
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .frames import reply
from .phase import PhaseFiles

TYPE_CHECKING = False  # typing itself takes 5 ms to import, on each of many short calls
if TYPE_CHECKING:
    from typing import Any, BinaryIO

SAY_EVERY_S = 1.0  # a sign of life while a large file is hashed


class PackRefused(Exception):
    """Why a file is not packed."""


def pack() -> None:
    """Lines on stdin: first {"attempt", "patterns"}, and "runs" where that is another place; after the index, which of its
    files are wanted: [[from, to], …], numbers of their rows, counted from 0, `to` left out.

    Rows: {"path", "size_bytes", "sha256"}, {"path", "why"} for what is not packed, {"hashed": bytes} as a sign of life, and
    at the end {"end": the number of files}.
    """
    request = json.loads(sys.stdin.buffer.readline())
    run = Path(PhaseFiles(request["attempt"], "main", request.get("runs")).run)
    files: list[tuple[str, int]] = []
    for row in rows(run, request["patterns"], ActivitySignal()):
        if "sha256" in row:
            files.append((row["path"], row["size_bytes"]))
        reply(row)
    reply({"end": len(files)})
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for first, after in json.loads(sys.stdin.buffer.readline() or b"[]"):
            for name, size_bytes in files[first:after]:
                _send(tar, run / name, name, size_bytes)


def _send(tar: tarfile.TarFile, path: Path, name: str, size_bytes: int) -> None:
    """As many bytes as the index says, whatever became of the file since: who reads them compares the hashes."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = size_bytes, 0o644
    try:
        file = path.open("rb")
    except OSError:
        file = open(os.devnull, "rb")  # noqa: PTH123, SIM115 - closed below
    with file:
        tar.addfile(member, Exactly(file, size_bytes))
    tar.members = []  # type: ignore[attr-defined]  # it keeps each of them, for questions that are not asked here


def rows(
    run: Path, patterns: list[str], hashed: Callable[[int], None] = lambda count: None
) -> Iterator[dict[str, Any]]:
    """The index: each file once, with its size and hash, or with why it is not packed.

    `hashed` hears of every piece that is read, and of every directory, with 0.
    """
    seen: set[str] = set()
    for path, within in _candidates(run, patterns, hashed):
        if within is None:
            yield {"path": path.relative_to(run).as_posix(), "why": "the pattern leads out of the work directory"}
            continue
        name = path.relative_to(run).as_posix()
        if name in seen:
            continue
        seen.add(name)
        try:
            yield {"path": name, **_measured(path, within, hashed)}
        except PackRefused as refusal:
            yield {"path": name, "why": str(refusal)}
        except OSError as error:
            yield {"path": name, "why": error.strerror or str(error)}


def _candidates(run: Path, patterns: list[str], looked: Callable[[int], None]) -> Iterator[tuple[Path, Path | None]]:
    """Each with the directory that it must not lead out of. A pattern that is relative to no place below `work/` has none;
    a directory that matches is taken whole."""
    artifacts, work = run / "artifacts", run / "work"
    for path in _walk(artifacts, looked):
        yield path, artifacts
    for pattern in patterns:
        if pattern.startswith("/") or ".." in pattern.split("/"):
            yield work / pattern.lstrip("/"), None
            continue
        for match in _matches(work, pattern, looked):
            for path in _walk(match, looked) if match.is_dir() and not match.is_symlink() else [match]:
                yield path, work


def _measured(path: Path, within: Path, hashed: Callable[[int], None]) -> dict[str, Any]:
    target = Path(os.path.realpath(path))
    home = Path(os.path.realpath(within))
    if home not in target.parents:
        raise PackRefused("a link that leads out of the directory")
    kind = os.lstat(target).st_mode
    if not stat.S_ISREG(kind):  # opening a FIFO would wait for ever
        raise PackRefused("a link to a directory" if stat.S_ISDIR(kind) else "not a regular file")
    digest, size_bytes = hashlib.sha256(), 0
    with target.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
            size_bytes += len(piece)
            hashed(len(piece))
    return {"size_bytes": size_bytes, "sha256": digest.hexdigest()}


class ActivitySignal:
    """Says how many bytes were hashed since it last did, once a second, also where there is much to look through."""

    def __init__(self) -> None:
        self.count, self.said_at = 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self.count += count
        if time.monotonic() - self.said_at >= SAY_EVERY_S:
            reply({"hashed": self.count})
            self.count, self.said_at = 0, time.monotonic()


def _walk(top: Path, looked: Callable[[int], None]) -> Iterator[Path]:
    """Everything below that is not a directory, in a fixed order; links are named, never entered."""
    for directory, names, files in os.walk(top):
        looked(0)
        links = [name for name in names if Path(directory, name).is_symlink()]
        names[:] = sorted(set(names) - set(links))
        for name in sorted(files + links):
            yield Path(directory, name)


def _matches(top: Path, pattern: str, looked: Callable[[int], None]) -> Iterator[Path]:
    """Like `Path.glob`, in a fixed order and never through a link."""
    looked(0)
    head, _, rest = pattern.partition("/")
    if head == "**":
        yield from _matches(top, rest or "*", looked)
        for child in _children(top):
            if child.is_dir() and not child.is_symlink():
                yield from _matches(child, pattern, looked)
        return
    for child in _children(top):
        if fnmatch.fnmatchcase(child.name, head):
            if not rest:
                yield child
            elif child.is_dir() and not child.is_symlink():
                yield from _matches(child, rest, looked)


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
