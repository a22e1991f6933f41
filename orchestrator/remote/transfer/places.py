"""Where the files of a worker are stored: under their own paths where this disk has room for such names, else under safe ones.

A safe name is `NAME~HASH.EXTENSION`, in ASCII, of a hash of the path on the worker: the same in each try, and no other file's.
Paths that no packer sends, which lead out of the directory, have no place at all.
"""

import hashlib
import os
import re
import unicodedata
from pathlib import Path

from orchestrator.core.text.terminal import harmless

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
