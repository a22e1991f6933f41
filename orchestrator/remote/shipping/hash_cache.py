"""The hashes of the files of a directory, so that a file that has not changed is not read again.

A file counts as unchanged if size, inode and both times are those of when it was read, as for git's index. A file that was
written in the last moments before it was read may be written again within the same tick of the clock, so it is read again.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import private_files, whole_file

RACY_NS = 2_000_000_000  # the coarsest clock of a file system (FAT)

Stamp = tuple[int, int, int, int]


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@dataclass(slots=True)
class HashCache:
    """Of one root, in one file. A file that cannot be read or written costs time: what it should hold is read again."""

    path: Path
    known: dict[str, tuple[Stamp, str]]
    used: dict[str, tuple[Stamp, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: str, directory: Path) -> HashCache:
        path = directory / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.json"
        try:
            rows = json.loads(path.read_bytes())
            known = {
                str(name): ((size, mtime, ctime, inode), str(sha)) for name, size, mtime, ctime, inode, sha in rows
            }
        except (OSError, ValueError, TypeError):
            known = {}
        return cls(path, known)

    def get(self, path: str, stamp: Stamp) -> str | None:
        found = self.known.get(path)
        if found is None or found[0] != stamp:
            return None
        self.used[path] = found
        return found[1]

    def put(self, path: str, stamp: Stamp, sha256: str, *, read_at_ns: int) -> None:
        """Remember the hash of a file that had this stamp before it was read, at that time of the wall clock."""
        if max(stamp[1], stamp[2]) < read_at_ns - RACY_NS:
            self.used[path] = (stamp, sha256)

    def save(self) -> None:
        """Write what was used, if it differs from what is there."""
        if self.used == self.known:
            return
        with suppress(OSError):
            private_files.make_directory(self.path.parent)
            rows = [(path, *stamp, sha256) for path, (stamp, sha256) in self.used.items()]
            whole_file.replace(self.path, json.dumps(rows))
