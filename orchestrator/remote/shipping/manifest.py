"""A tree as text: each file with its hash, each link, each empty directory. Its own hash names it.

The same tree gives the same manifest on every machine, at any time, for any user. `vm/store.py` reads it on the workers.
"""

import hashlib
import json
import zlib
from dataclasses import dataclass
from functools import cached_property


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
