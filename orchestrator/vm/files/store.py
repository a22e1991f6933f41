"""What was shipped to this worker: `~/tpujob/store` keeps each content once, under its hash, and the manifests.

`objects/<aa>/<sha256>` appears whole or not at all, so a kill at any moment leaves nothing that is half. A lock is held
while the store is read or filled, and pruning needs it alone; the kernel drops it with its holder.
"""

# For thousands of files, paths as text are much faster than Path.
# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH108, PTH111, PTH112, PTH114, PTH116, PTH118, PTH120, PTH123, PTH208, PTH211
from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import time
from typing import Any

HOME = os.path.expanduser("~")  # as `phases.root`, without the 4 ms that pathlib takes on each worker
KEEP = 4  # manifests: those of the newest runs
YOUNG_S = 3600.0  # what was used so recently may still be needed by a run that is about to start
PIECE_BYTES = 1 << 20
HOLE_BYTES = 4096  # what a file system can leave out
NOTHING = bytes(PIECE_BYTES)
HEX = frozenset("0123456789abcdef")
# Of a link: up first, then down.
TARGET = r"\.|(?:\.\./)*(?:\.\.|(?!\.\.?(?:/|$))[^/]+(?:/(?!\.\.?(?:/|$))[^/]+)*)"


class Damaged(Exception):
    """A content in the store is not what its name says."""


def contents(text: bytes) -> list[tuple[str, int]]:
    """Each content of a manifest once, in the order of the stream; nothing is stored of an empty file. Raises ValueError."""
    found = {sha256: size_bytes for _, sha256, size_bytes, _ in json.loads(text)["files"] if size_bytes}
    for sha256, size_bytes in found.items():
        check_sha256(sha256)
        if type(size_bytes) is not int or size_bytes < 0:
            raise ValueError("the manifest has a bad size")
    return list(found.items())


class Manifest:
    """A checked manifest. Raises ValueError for one that would write outside of its directory."""

    def __init__(self, text: bytes) -> None:
        contents(text)
        shape = json.loads(text)
        self.files: list[tuple[str, str, int, int]] = [tuple(row) for row in shape["files"]]
        self.links: list[tuple[str, str]] = [tuple(row) for row in shape["links"]]
        self.directories: list[str] = shape["directories"]
        leaves = [row[0] for row in self.files] + [row[0] for row in self.links]
        parents = set(self.directories)
        for path in leaves + self.directories:
            check_path(path)
            while "/" in path:
                path = path.rpartition("/")[0]  # noqa: PLW2901
                if path in parents:
                    break
                parents.add(path)
        if len(set(leaves)) < len(leaves) or not parents.isdisjoint(leaves):
            raise ValueError("the manifest names a path twice")
        for path, target in self.links:
            if not re.fullmatch(TARGET, target) or target.split("/").count("..") > path.count("/"):
                raise ValueError(f"the manifest has a link out of the directory: {path!r}")


def check_path(path: str) -> None:
    if not isinstance(path, str) or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"the manifest has a bad path: {path!r}")


def check_sha256(text: str) -> str:
    if not isinstance(text, str) or len(text) != 64 or not HEX.issuperset(text):
        raise ValueError(f"bad sha256 {text!r}")
    return text


class Store:
    """At another place than `~/tpujob/store` for local runs."""

    def __init__(self, place: str | None = None) -> None:
        self.place = f"{HOME}/tpujob/store" if place is None else place
        for name in ("objects", "manifests", "drafts"):
            os.makedirs(os.path.join(self.place, name), 0o700, exist_ok=True)

    def path(self, *parts: str) -> str:
        return os.path.join(self.place, *parts)

    def content(self, sha256: str) -> str:
        return f"{self.place}/objects/{sha256[:2]}/{sha256}"

    def has(self, sha256: str, size_bytes: int) -> bool:
        try:
            return os.stat(self.content(sha256)).st_size == size_bytes
        except FileNotFoundError:
            return False

    def manifest(self, sha256: str) -> bytes | None:
        """The manifest of this name; it counts as used now."""
        text = self._manifest(check_sha256(sha256))
        if text is not None:
            os.utime(self.path("manifests", sha256))
        return text

    def _manifest(self, name: str) -> bytes | None:
        """None where there is none, or a damaged one."""
        try:
            with open(self.path("manifests", name), "rb") as file:
                text = file.read()
        except FileNotFoundError:
            return None
        return text if hashlib.sha256(text).hexdigest() == name else None

    def put_manifest(self, sha256: str, text: bytes) -> None:
        draft = self.path("drafts", f"{sha256}.{os.getpid()}")
        with open(draft, "wb") as file:
            file.write(text)
        os.rename(draft, self.path("manifests", sha256))

    def lock(self, how: int = fcntl.LOCK_SH) -> int | None:
        """Hold it until this process ends, or the result is closed. None: with LOCK_NB, others hold it."""
        fd = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, how)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def prune(self, keep: int = KEEP) -> None:
        """Delete what the newest manifests, and those of the last hour, do not need, unless the store is in use."""
        if len(os.listdir(self.path("manifests"))) <= keep and not os.listdir(self.path("drafts")):
            return
        lock = self.lock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is None:
            return
        names = os.listdir(self.path("manifests"))
        before = time.time() - YOUNG_S
        for name in os.listdir(self.path("drafts")):  # of transfers that were never completed
            if os.stat(self.path("drafts", name)).st_mtime < before:
                os.unlink(self.path("drafts", name))
        used_at = {name: os.stat(self.path("manifests", name)).st_mtime for name in names}
        newest = sorted(names, key=lambda name: -used_at[name])[:keep]
        kept: set[str] = set()
        pruned = False
        for name in names:
            text = self._manifest(name)
            if text is not None and (name in newest or used_at[name] >= before):
                kept.update(sha256 for sha256, _ in contents(text))
            else:
                os.unlink(self.path("manifests", name))
                pruned = True
        for directory in os.listdir(self.path("objects")) if pruned else ():
            for name in set(os.listdir(self.path("objects", directory))) - kept:
                os.unlink(self.path("objects", directory, name))
        os.close(lock)

    def make_tree(self, sha256: str, into: str, *, take: bool = False) -> None:
        """Make the files of a manifest in a directory. `take`: move the contents out of the store where that is possible.

        Every content that is copied is checked. Raises Damaged, after which shipping again mends it.
        """
        text = self.manifest(sha256)
        if text is None:
            raise Damaged("what was shipped to this worker is not in its store: run it again")
        manifest = Manifest(text)
        made = {into}
        for path in manifest.directories:
            _make_directory(os.path.join(into, path), made)
        uses: dict[str, int] = {}
        for _, content, _, _ in manifest.files:
            uses[content] = uses.get(content, 0) + 1
        for path, content, size_bytes, executable in manifest.files:
            target = os.path.join(into, path)
            _make_directory(os.path.dirname(target), made)
            uses[content] -= 1
            _remove(target)
            if take and size_bytes and not uses[content] and self.has(content, size_bytes):
                os.rename(self.content(content), target)
            elif not self._copy(content, size_bytes, target):
                raise Damaged(f"{path} in the store of this worker was damaged, and is removed: run it again")
            os.chmod(target, 0o755 if executable else 0o644)
        for path, link in manifest.links:
            target = os.path.join(into, path)
            _make_directory(os.path.dirname(target), made)
            _remove(target)
            os.symlink(link, target)
        if take:
            os.unlink(self.path("manifests", sha256))

    def _copy(self, sha256: str, size_bytes: int, target: str) -> bool:
        """Return whether the copy is what it should be; a damaged content is deleted."""
        digest = hashlib.sha256()
        with open(target, "xb", buffering=0) as out:
            if not size_bytes:
                return True
            try:
                source = os.open(self.content(sha256), os.O_RDONLY)
            except FileNotFoundError:
                return False
            try:
                while True:
                    piece = os.read(source, PIECE_BYTES)
                    if not piece:
                        break
                    digest.update(piece)
                    write_sparse(out.fileno(), piece)
            finally:
                os.close(source)
        if digest.hexdigest() == sha256:
            return True
        os.unlink(self.content(sha256))
        return False


def write_sparse(fd: int, data: Any) -> None:
    """Write at the end of the file. Zeros become a hole."""
    if len(data) >= HOLE_BYTES and not data[0] and bytes(data) == NOTHING[: len(data)]:
        os.ftruncate(fd, os.lseek(fd, len(data), os.SEEK_CUR))
        return
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _make_directory(path: str, made: set[str]) -> None:
    if path not in made:
        _make_directory(os.path.dirname(path), made)
        if os.path.islink(path) or not os.path.isdir(path):
            _remove(path)
            os.mkdir(path)
            os.chmod(path, 0o755)  # noqa: S103 - whatever the umask
        made.add(path)


def _remove(path: str) -> None:
    """Remove what another tree has put there: a job may make a directory where its code has a file."""
    if not os.path.lexists(path):
        return
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
    else:
        import shutil  # seldom needed, and slow to import

        shutil.rmtree(path)


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the last: over the limit of this user


def free_bytes() -> int:
    """Return how much this user may still write below the home directory."""
    status = os.statvfs(HOME)
    return status.f_bavail * status.f_frsize
