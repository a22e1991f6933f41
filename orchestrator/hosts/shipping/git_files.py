"""What git has beside the files of a directory: its repository, which files it tracks, its rules outside of the work tree.

The files of git are read, and git is not asked: what a run ships does not depend on whether git is installed, and what the
configuration of a repository names is not run.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import UserError

GITLINK = 0o160000  # the mode of a submodule
_EXCLUDES_FILE = re.compile(r'^(?:\s*\[core\])?\s*excludesfile\s*=[ \t]*"?([^"#;\n]*)', re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Repository:
    """A work tree: `directory` holds its index, and `common` what it shares with the other work trees of the repository."""

    top: Path
    directory: Path
    common: Path

    @classmethod
    def at(cls, top: Path) -> Repository | None:
        """Return the repository whose work tree begins in this directory; None if none does."""
        directory = top / ".git"
        if not directory.exists():
            return None
        with suppress(OSError):  # it is a file in another work tree, and in a submodule
            directory = top / directory.read_text(errors="surrogateescape").strip().removeprefix("gitdir:").strip()
        common = directory
        with suppress(OSError):
            common = directory / (directory / "commondir").read_text(errors="surrogateescape").strip()
        return cls(top, directory, common)

    @classmethod
    def holding(cls, directory: Path) -> Repository | None:
        """Return the innermost repository that holds the directory; None outside of one."""
        return next(filter(None, map(cls.at, (directory, *directory.parents))), None)

    def rule_files(self) -> Iterator[tuple[Path, str]]:
        """Yield the files with patterns beside those named .gitignore, the stronger first, each with what it is called."""
        yield self.common / "info" / "exclude", ".git/info/exclude"
        home, found = Path.home(), list[str]()
        settings = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "git"
        for file in (Path("/etc/gitconfig"), settings / "config", home / ".gitconfig", self.common / "config"):
            with suppress(OSError):  # what they include is not read
                found += _EXCLUDES_FILE.findall(file.read_text(errors="surrogateescape"))
        named = os.path.expanduser(found[-1].strip()) if found else settings / "ignore"  # noqa: PTH111 - raises for no user
        name = str(path := self.top / named)
        yield path, f"~{name.removeprefix(str(home))}" if name.startswith(f"{home}/") else name

    def tracked(self) -> Iterator[tuple[str, bool]]:
        """Yield each path that git tracks, from the top, and whether it is a submodule. Raises UserError."""
        index = self.directory / "index"
        try:
            for name, mode in _entries(index):
                yield os.fsdecode(name), mode & 0o170000 == GITLINK
        except (OSError, struct.error, LookupError, ValueError) as error:
            hint = "`git update-index --index-version 2` writes it anew"
            raise UserError(f"{index} cannot be read, so what git tracks is not known", hint=hint) from error


@dataclass(frozen=True, slots=True)
class Tracked:
    """What git tracks in a tree, by paths from its root: files, and the directories that hold some of them."""

    files: frozenset[str]
    directories: frozenset[str]

    @classmethod
    def of(cls, tracked: Iterable[tuple[str, bool]], relative: str, below: str) -> Tracked:
        """Return what a repository has `tracked` in a directory at `relative` ("." for all), called `below` in the tree."""
        prefix = "" if relative == "." else f"{relative}/"
        files, directories = set[str](), set[str]()
        for name, is_submodule in tracked:
            if not name.startswith(prefix):
                continue
            path = below + name[len(prefix) :]
            (directories if is_submodule else files).add(path)
            while (path := path.rpartition("/")[0]) and path not in directories:
                directories.add(path)
        return cls(frozenset(files), frozenset(directories))


def _entries(index: Path) -> Iterator[tuple[bytes, int]]:
    """Yield name and mode of each entry of an index (gitformat-index, versions 2 to 4), those of a shared index included."""
    try:
        data = index.read_bytes()
    except FileNotFoundError:  # nothing was ever added
        return
    signature, version, count = struct.unpack_from(">4sLL", data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError(version)
    hash_bytes = 32 if hashlib.sha256(data[:-32]).digest() == data[-32:] else 20
    at, name = 12, b""
    for _ in range(count):
        (mode,) = struct.unpack_from(">L", data, at + 24)
        begin = at + 42 + hash_bytes
        begin += 2 * bool(data[begin - 2] & 0x40)  # more flags
        if version == 4:
            dropped, begin = _number(data, begin)
            end = data.index(0, begin)
            name, at = name[: len(name) - dropped] + data[begin:end], end + 1
        else:
            end = data.index(0, begin)
            name, at = data[begin:end], at + (end - at) // 8 * 8 + 8
        if name:  # one of a shared index has none
            yield name, mode
    while at + 8 < len(data) - hash_bytes:
        signature, size = struct.unpack_from(">4sL", data, at)
        if signature == b"link":
            # What is deleted since counts as tracked until git writes both as one again.
            yield from _entries(index.with_name(f"sharedindex.{data[at + 8 : at + 8 + hash_bytes].hex()}"))
        at += 8 + size


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins there, as git packs offsets, and where it ends."""
    found = data[at] & 127
    while data[at] & 128:
        at += 1
        found = (found + 1) << 7 | data[at] & 127
    return found, at + 1
