"""Where the files of a worker are stored, under their own paths or under safe ones, and how much more may be.

A safe name is `NAME~HASH.EXTENSION`, in ASCII, of a hash of the path on the worker: the same in each try, and no other file's.
Paths that no packer sends, which lead out of the directory, have no place at all.

All workers of a collection share one `DiskSpace`: files in transit count as stored, so that together the workers do not
reserve more than is free. `hosts.transfer.collector` asks before each file.
"""

import hashlib
import os
import re
import shutil
import threading
import unicodedata
from collections import Counter
from pathlib import Path

from orchestrator.text.terminal import harmless
from orchestrator.text.units import format_size

DRAFT = ".tpujob-draft"  # of the file that is being written
DEPTH = 100  # directories of a path: each that is read here costs a level of some program's stack
NAME_BYTES = 255
STEM_CHARS, KIND_CHARS = 100, 20  # of a safe name
SPARE_BYTES = 200  # of the longest path that this system takes: for what is put beside a file
_UNSAFE = re.compile(r"[^\w.+=@,()-]", re.ASCII)


class RefusedFile(Exception):
    """Why a file is not taken."""


class Places:
    """The places of the files of one worker, in the order of its index: the first one of a name has it."""

    def __init__(self, into: Path) -> None:
        """`into`: the directory of the worker, which is there."""
        self._folds = _folds(into)
        self._most_bytes = os.pathconf(into, "PC_PATH_MAX") - len(os.fsencode(into.absolute())) - SPARE_BYTES
        self._taken: dict[str, str] = {}  # whose path on the worker a place stands for

    def of(self, path: str) -> str:
        """Return where a file belongs, relative to the directory, now and whenever it is asked for again.

        Raises RefusedFile for a path that no packer sends.
        """
        parts = parts_of(path)
        if len(parts) > DEPTH or len(path.encode("utf-8", "surrogatepass")) > self._most_bytes:
            return self.plain(path)
        place = ""
        for end, part in enumerate(parts, 1):
            before, whose = f"{place}/" if place else "", "/".join(parts[:end])
            place = before + part
            if not _is_fine(part) or not self._takes(place, whose):
                place = self._safe(before, part, whose)
        return place

    def plain(self, path: str) -> str:
        """Return the place of a file for a disk that does not take its path: a safe name in the first of its directories."""
        *directories, name = parts_of(path)
        return self._safe("".join(f"{first}/" for first in directories[:1]), name, path)

    def _safe(self, before: str, name: str, path: str) -> str:
        """Return a safe name in the directory `before`, made of this one and of a hash of the path, that is no other file's."""
        stem, dot, kind = name.rpartition(".")
        if not stem or len(kind) > KIND_CHARS:
            stem, dot, kind = name, "", ""
        begin, end = _UNSAFE.sub("_", stem)[:STEM_CHARS], dot + _UNSAFE.sub("_", kind)
        hashed = hashlib.sha256(path.encode("utf-8", "surrogatepass"))
        while not self._takes(place := f"{before}{begin}~{hashed.hexdigest()[:8]}{end}", path):
            hashed.update(b"~")
        return place

    def _takes(self, place: str, whose: str) -> bool:
        """On a disk that ignores case, `A/x` and `a/y` would share a directory, and `X` replace `x`."""
        key = unicodedata.normalize("NFKC", place).casefold() if self._folds else place
        return self._taken.setdefault(key, whose) == whose


def parts_of(path: str) -> list[str]:
    """Return the components of a path. Raises RefusedFile for one that leads out of its directory, or that is none."""
    parts = path.split("/")
    if not parts[0] or "\0" in path:
        raise RefusedFile("an absolute path" if path.startswith("/") else "no path")
    if any(part in ("", ".", "..") for part in parts):
        raise RefusedFile("a path with empty, . or .. components")
    if parts[0].casefold() == DRAFT:
        raise RefusedFile("a name that is used while files are stored")
    return parts


def _is_fine(name: str) -> bool:
    """Return whether a terminal shows it as it is, and any disk takes it."""
    return "\t" not in name and harmless(name) == name and len(name.encode()) <= NAME_BYTES


def _folds(into: Path) -> bool:
    """Return whether the disk takes names for the same that differ only in case."""
    try:
        return into.samefile(into.with_name(into.name.swapcase()))
    except OSError:
        return False


RESERVED_BYTES = 16 << 20  # stays free: the ledger, logs and other programs write there, too


class DiskSpace:
    """`most_bytes` limits all results of the run, `most_beside` those beside its artifacts; None: only the disk limits them."""

    def __init__(self, directory: Path, most_bytes: int | None = None, most_beside: int | None = None) -> None:
        self._directory, self._most_bytes, self._most_beside = directory, most_bytes, most_beside
        self._lock = threading.Lock()
        self._used: Counter[int] = Counter()  # by worker: stored or in transit
        self._coming: Counter[int] = Counter()  # by worker: in transit, not on the disk yet
        self._beside: Counter[int] = Counter()  # by worker: what of the first is beside the artifacts

    def begin(self, worker: int) -> None:
        """Start counting the files of a worker."""
        with self._lock:
            self._used[worker] = self._coming[worker] = self._beside[worker] = 0

    def end(self, worker: int) -> None:
        """Release what was reserved for files of a worker that did not arrive."""
        with self._lock:
            self._coming[worker] = 0

    def has(self, worker: int, size_bytes: int, *, beside: bool = False) -> None:
        """Count a file that exists already."""
        with self._lock:
            self._used[worker] += size_bytes
            self._beside[worker] += size_bytes * beside

    def take(self, worker: int, size_bytes: int, *, beside: bool = False) -> str | None:
        """Reserve space for a file; return None, or the reason why it does not fit."""
        with self._lock:
            size = format_size(size_bytes)
            if self._most_bytes is not None and self._used.total() + size_bytes > self._most_bytes:
                most = format_size(self._most_bytes)
                return f"{size} more than the {most} of limits.max_results (`--max-results` lifts it)"
            if beside and self._most_beside is not None and self._beside.total() + size_bytes > self._most_beside:
                return too_much(size_bytes, self._most_beside)
            free_bytes = shutil.disk_usage(self._directory).free - self._coming.total()
            if size_bytes > max(free_bytes - RESERVED_BYTES, 0):
                free, stays = format_size(max(free_bytes, 0)), format_size(RESERVED_BYTES)
                return f"no room for {size}: {self._directory} has {free}, of which {stays} must stay free"
            self._used[worker] += size_bytes
            self._beside[worker] += size_bytes * beside
            self._coming[worker] += size_bytes
            return None

    def arrived(self, worker: int, size_bytes: int) -> None:
        """Note that so many reserved bytes are on the disk."""
        with self._lock:
            self._coming[worker] -= size_bytes


def too_much(size_bytes: int, most_bytes: int) -> str:
    """Return why a file beside the artifacts is not collected by itself."""
    most = format_size(most_bytes)
    return f"{format_size(size_bytes)}; of what lies beside the artifacts, {most} of a run come by themselves"
