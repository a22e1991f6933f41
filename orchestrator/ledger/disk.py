"""The disk of the ledger: full, read-only, or on another machine. `ledger` chooses by it how to open the file."""

import sqlite3
from pathlib import Path

# SQLite's error codes (their low byte) for a disk that cannot be written.
UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
_NETWORK = frozenset(("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "lustre", "beegfs", "ceph"))


def is_complete(database: Path) -> bool:
    """Return whether the file has every commit. The last ones may still be in the log beside it."""
    log = database.with_name(f"{database.name}-wal")
    return database.exists() and not (log.exists() and log.stat().st_size)


def on_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether the file is on another machine's disk. Only Linux tells: elsewhere False."""
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
