"""What the disk under the ledger is like: full, read-only, on another machine. `ledger` asks before it chooses how to open."""

from __future__ import annotations

import sqlite3
from pathlib import Path

# How SQLite says, in the low byte of its codes, that it cannot write here.
UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
_NETWORK = frozenset(("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "lustre", "beegfs", "ceph"))


def is_complete(database: Path) -> bool:
    """Does the file hold everything? Not while the last commits are still in the log beside it."""
    log = database.with_name(f"{database.name}-wal")
    return database.exists() and not (log.exists() and log.stat().st_size)


def on_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Does this file lie on another machine's disk? Only Linux says."""
    try:
        rows = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
    except OSError:
        return False
    place = path.absolute()
    above = [row for row in rows if place.is_relative_to(row[1].replace("\\040", " "))]
    kind = ""
    for row in sorted(above, key=lambda row: len(row[1])):  # of two on one place the later one hides the other
        kind = row[2]
    return kind in _NETWORK
