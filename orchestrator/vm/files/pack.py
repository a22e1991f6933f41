"""Packs what a run made on a worker: an index, one line of JSON for each file, then the contents of those that are asked for.

`hosts.transfer.collector` asks for it. Taken are regular files under `artifacts/`, those under `work/` that match the job's
patterns, and then, if asked for, what the job wrote beside them (`beside`). A link is packed as the file it leads to, wherever
that is: the job could have copied it. What is not packed is named, with why; what is no file at all (a FIFO, a link to
nothing) harms nothing, and what vanishes meanwhile is nothing. The contents follow one another in the order of the index, each
as long as it says there: nothing can be larger than it says. They are never on this disk a second time.
"""

# Paths are text, as in `phases`.
# ruff: noqa: SIM115, PTH112, PTH114, PTH116, PTH118, PTH123, PTH208
from __future__ import annotations

import errno
import fnmatch
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from . import beside
from .frames import reply, widen, write
from .phases import PhaseFiles

SAY_EVERY_S = 1.0  # a sign of life while a large file is hashed
PIECE_BYTES = 1 << 20
OF_THE_KERNEL = ("/proc/", "/sys/")  # no file on a disk: reading it may wait for ever, or tell secrets of the reader


class PackRefused(Exception):
    """Why a file is not packed."""


class NoFile(PackRefused):
    """Why there is nothing to pack, which is harmless."""


def pack() -> None:
    """Lines on stdin: first {"attempt", "patterns"}, and "runs" where that is another place; after the index, which of its
    files are wanted: [[from, to], …], numbers of their rows, counted from 0, `to` left out.

    "patterns" may be null: no artifacts. "beside": {"most_bytes", "only"} adds what the job wrote beside them and matches
    `only`; "most_bytes": no more is read in all.

    Rows: {"path", "size_bytes", "sha256"}, {"path", "why"} for what is not packed, with "harmless" where that is no file,
    {"hashed": bytes} as a sign of life, and at the end {"end": the number of files, and "unmatched": patterns. Those of files
    beside the artifacts have "beside"; without "sha256" they are more than "most_bytes" in all, and not packed. A file that was
    written to while it was read is "changing": what comes of it may be a part.
    """
    request = json.loads(sys.stdin.buffer.readline())
    run = PhaseFiles(request["attempt"], "main", request.get("runs")).run
    files: list[tuple[str, int]] = []
    unmatched: list[str] = []
    left_bytes, signal = request.get("most_bytes"), ActivitySignal()

    def refused(size_bytes: int) -> str | None:
        return "too much to be copied" if left_bytes is not None and size_bytes > left_bytes else None

    for row in rows(run, request["patterns"], signal, refused, request.get("beside"), unmatched):
        if "sha256" in row:
            files.append((row["path"], row["size_bytes"]))
            left_bytes = None if left_bytes is None else left_bytes - row["size_bytes"]
        reply(row)
    reply({"end": len(files), **({"unmatched": unmatched} if unmatched else {})})
    widen(1)
    for first, after in json.loads(sys.stdin.buffer.readline() or b"[]"):
        for name, size_bytes in files[first:after]:
            for piece in content(place_of(run, name), size_bytes):
                write(piece)


@lru_cache(maxsize=1)
def _home(run: str) -> str:
    return str((beside.recorded(run) or {}).get("home") or run)


def place_of(run: str, name: str) -> str:
    """Return where the file of a row lies."""
    if name.startswith("home/"):
        return os.path.join(_home(run), name[5:])
    return os.path.join(run, name[6:] if name.startswith("above/") else name)


def content(path: str, size_bytes: int) -> Iterator[bytes]:
    """Yield exactly as many bytes as the index says, whatever became of the file since: padded with zeros, or cut."""
    try:
        file = open(path, "rb", buffering=0, opener=_never_waiting)
    except OSError:
        file = open(os.devnull, "rb", buffering=0)
    with file:
        while size_bytes:
            size = min(size_bytes, PIECE_BYTES)
            try:
                piece = file.read(size) or bytes(size)
            except OSError:  # of its disk: the other files come
                piece = bytes(size)
            size_bytes -= len(piece)
            yield piece


def _never_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO may have taken the place of the file


def rows(
    run: str,
    patterns: list[str] | None,
    hashed: Callable[[int], None] = lambda count: None,
    refused: Callable[[int], str | None] = lambda size_bytes: None,
    wanted: dict[str, Any] | None = None,
    unmatched: list[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """The index: each file once, with its size and hash, or with why it is not packed.

    `hashed` hears of every piece that is read, and of every directory, with 0. `refused` returns why a file of this size is not
    read, or None; it is asked before each piece. If something vanishes meanwhile, what came in its place is looked for once.
    `wanted`: of what lies beside ("beside" of `pack`). `unmatched` gets the patterns that match nothing.
    """
    index = _Index(run, hashed, refused, [] if unmatched is None else unmatched)
    if patterns is not None:
        yield from index.artifacts(patterns)
    if wanted is not None:
        yield from beside.rows(run, [place_of(run, name) for name in index.seen], wanted, index.row, hashed)


class _Index:
    """The index as it is made. `seen`: the names of its files."""

    def __init__(
        self, run: str, hashed: Callable[[int], None], refused: Callable[[int], str | None], unmatched: list[str]
    ) -> None:
        self.run, self.hashed, self.refused, self.unmatched = run, hashed, refused, unmatched
        self.seen: set[str] = set()

    def artifacts(self, patterns: list[str]) -> Iterator[dict[str, Any]]:
        for _ in range(2):
            has_vanished = False
            self.unmatched.clear()
            for path in self._candidates(patterns):
                name = path[len(self.run) + 1 :]
                if name in self.seen:
                    continue
                row = self.row(name, path)
                if row is None:
                    has_vanished = True
                else:
                    self.seen.add(name)
                    yield row
            if not has_vanished:
                return

    def row(self, name: str, path: str) -> dict[str, Any] | None:
        """Return the row of a file; None if it has vanished."""
        try:
            if ".." in name.split("/"):
                raise PackRefused("the pattern leads out of the work directory")
            return {"path": name, **self._measured(path)}
        except PackRefused as refusal:
            harmless = {"harmless": True} if isinstance(refusal, NoFile) else {}
            return {"path": name, "why": str(refusal), **harmless}
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return {"path": name, "why": error.strerror or str(error)}

    def _candidates(self, patterns: list[str]) -> Iterator[str]:
        """A directory that matches is taken whole. A pattern that is relative to no place below `work/` is itself a candidate.

        So is a link to a directory, unless that one lies in `work/` and its files come by no other way: they come by the link.
        """
        work, taken, links = f"{self.run}/work", [f"{self.run}/artifacts"], []

        def files(paths: Iterable[str]) -> Iterator[str]:
            for path in paths:
                if os.path.islink(path) and os.path.isdir(path):
                    links.append(path)
                else:
                    yield path

        yield from files(self._walk(taken[0]))
        for pattern in patterns:
            if pattern.startswith("/") or ".." in pattern.split("/"):
                yield f"{work}/../{pattern.lstrip('/')}"
                continue
            self.unmatched.append(pattern)
            for match in self._matches(work, pattern):
                if self.unmatched[-1:] == [pattern]:
                    self.unmatched.pop()
                if _is_directory(match):
                    taken.append(match)
                    yield from files(self._walk(match))
                else:
                    yield from files([match])
        home, *whole = (os.path.realpath(path) + "/" for path in (work, *taken))
        for link in links:  # to which those that such a directory has are added
            target = os.path.realpath(link) + "/"
            if target.startswith(home) and target != home and not target.startswith(tuple(whole)):
                whole.append(target)
                yield from files(self._walk(link))
            else:
                yield link

    def _measured(self, path: str) -> dict[str, Any]:
        _check(path)
        with open(path, "rb", buffering=0, opener=_never_waiting) as file:
            before = os.fstat(file.fileno())
            digest, size_bytes = hashlib.sha256(), 0
            while True:
                why = self.refused(max(before.st_size, size_bytes))
                if why is not None:
                    raise PackRefused(why)
                piece = file.read(PIECE_BYTES)
                if not piece:
                    break
                digest.update(piece)
                size_bytes += len(piece)
                self.hashed(len(piece))
            is_same = os.fstat(file.fileno()).st_mtime_ns == before.st_mtime_ns
        return dict({"size_bytes": size_bytes, "sha256": digest.hexdigest()}, **({} if is_same else {"changing": True}))

    def _walk(self, top: str) -> Iterator[str]:
        """Everything below that is not a directory, in a fixed order, and the directories that cannot be read.

        Links are named, never entered.
        """
        waiting = [top]
        while waiting:
            directory = waiting.pop()
            self.hashed(0)
            try:
                paths = [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
            except OSError:
                yield directory
                continue
            inner = [path for path in paths if _is_directory(path)]
            waiting += reversed(inner)
            yield from sorted(set(paths) - set(inner))

    def _matches(self, top: str, pattern: str) -> Iterator[str]:
        """Like `Path.glob`, in a fixed order, never through a link. What cannot be read matters where the pattern names it."""
        waiting = [(top, pattern, True)]
        while waiting:
            directory, pattern, is_named = waiting.pop()
            self.hashed(0)
            try:
                names = sorted(os.listdir(directory))
            except OSError as error:
                if is_named or isinstance(error, FileNotFoundError):
                    yield directory  # `_check` says why
                continue
            head, _, rest = pattern.partition("/")
            found = [os.path.join(directory, name) for name in names if fnmatch.fnmatchcase(name, head)]
            if not rest:  # `**`, too: a directory that matches is taken whole
                yield from found
                continue
            if head == "**":
                waiting += [(path, pattern, False) for path in reversed(found) if _is_directory(path)]
                waiting.append((directory, rest, True))
            else:
                waiting += [(path, rest, True) for path in reversed(found) if _is_directory(path)]


def _check(path: str) -> None:
    """Raise NoFile where there is nothing to pack, FileNotFoundError where another look is worth it, else OSError."""
    is_link = os.path.islink(path)
    try:
        found = os.stat(path)
    except OSError as error:
        if is_link and error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR):
            raise NoFile("a link to nothing") from error
        raise
    if stat.S_ISDIR(found.st_mode):
        if is_link:
            raise NoFile("a link to a directory")
        os.listdir(path)  # why `_walk` could not
        raise FileNotFoundError(path)  # as it was: now it can be read
    if not stat.S_ISREG(found.st_mode) or os.path.realpath(path).startswith(OF_THE_KERNEL):
        raise NoFile("not a regular file")  # opening a FIFO would wait for ever


class ActivitySignal:
    """Says how many bytes were hashed since it last did, once a second, also where there is much to look through."""

    def __init__(self) -> None:
        self.count, self.said_at = 0, time.monotonic()

    def __call__(self, count: int) -> None:
        self.count += count
        if time.monotonic() - self.said_at >= SAY_EVERY_S:
            reply({"hashed": self.count})
            self.count, self.said_at = 0, time.monotonic()


def _is_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)
