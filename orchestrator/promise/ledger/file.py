"""The file of the ledger: how it is opened, its tables, shared with forked children, written in transactions, and refused.

`promise.ledger.ledger` has what is in it.

`schema.sql` says all that there is. A step that adds more than tables, indexes and columns has its line in `bring_forward`.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from orchestrator import __version__
from orchestrator.errors import TpujobError
from orchestrator.system import fork

VERSION = 12  # of schema.sql


def version_of(database: sqlite3.Connection) -> int:
    """Return the version of the file; 0: it is empty."""
    (version,) = database.execute("pragma user_version").fetchone()
    return int(version)


def written_by(database: sqlite3.Connection) -> str:
    """Return the version of the tpujob that wrote the tables as they are."""
    (tpujob,) = database.execute("select tpujob from written order by schema desc limit 1").fetchone()
    return str(tpujob)


def bring_forward(database: sqlite3.Connection) -> None:
    """Give the file what it lacks of `schema.sql`. Nothing in it changes when this ends early, by whatever cause.

    Another process may be at it, too: this one waits for it, and finds nothing to do.
    """
    with closing(sqlite3.connect(":memory:")) as wanted:
        wanted.executescript(_script())
        database.execute("begin immediate")
        try:
            if version_of(database) < VERSION:
                if "scope" in _columns(database, "sweep"):  # until version 6 a sweep was what is a gc run now
                    database.execute("alter table sweep rename to gc_run")
                _add_missing(database, wanted)
                database.execute("insert into written values (?, ?)", (VERSION, __version__))
                database.execute(f"pragma user_version = {VERSION}")
            database.execute("commit")
        except BaseException:
            if database.in_transaction:  # a full disk has ended it already
                database.execute("rollback")
            raise


def _script() -> str:
    from importlib import resources  # only for a new ledger

    return resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")


def _add_missing(database: sqlite3.Connection, wanted: sqlite3.Connection) -> None:
    there = {name for (name,) in database.execute("select name from sqlite_master")}
    made = "select type, name, sql from sqlite_master where sql is not null and name not like 'sqlite_%' order by rowid"
    for kind, name, sql in wanted.execute(made):
        if name not in there:
            database.execute(sql)
        elif kind == "table":
            here = _columns(database, name)
            for column, definition in _columns(wanted, name).items():
                if column not in here:
                    database.execute(f"alter table {name} add column {column} {definition}")


def _columns(database: sqlite3.Connection, table: str) -> dict[str, str]:
    """Return the definition of each column; empty if there is no such table."""
    query = 'select name, type, "notnull", dflt_value from pragma_table_info(?)'
    return {
        name: f"{kind}{' not null' if required else ''}{'' if default is None else f' default {default}'}"
        for name, kind, required, default in database.execute(query, (table,))
    }


BUSY_TIMEOUT_S = 5.0  # a signal is not heard while a commit waits
BUSY_POLL_S = 0.01


class LedgerUnavailable(TpujobError):
    """The ledger cannot be read or written (disk full, locked, damaged). No create may follow; teardown goes on without."""

    exit_code = 70


class LedgerIsNewer(LedgerUnavailable):
    """The ledger was written by a newer tpujob: it is read, for what may be billed, and takes ends only, no promises."""

    exit_code = 64

    def __init__(self, path: Path, version: int, by: str) -> None:
        super().__init__(
            f"the ledger {path} was written by a newer tpujob, {by} (schema {version}, this one has {VERSION})",
            hint=f"install tpujob {by}; until then `tpujob status`, `cancel`, `down` and `gc` work, and nothing new is created",
        )


class LedgerFile:
    """The SQLite file. Safe to use from several threads.

    It is closed during a fork, and each of the two processes opens it again when it needs it. SQLite keeps in memory which
    locks its process holds: a child with a copy of an open connection would take its parent's locks for its own, also through
    a connection that it opens itself, and lose commits. Only SQLite opens the file: closing any other descriptor of it would
    drop the locks of this process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._busy = False  # the thread with the lock is in a call
        self._connection: sqlite3.Connection | None = None
        self._refusal = ""  # why it is not opened again
        self.newer: LedgerIsNewer | None = None  # why nothing is promised in it
        self._from_parent: sqlite3.Connection | None = None  # never to be used, nor closed
        # Before the first use of the lock: a fork takes the lock after it held off other forks, so never the other way round.
        fork.register(self)
        with self._lock, _translated(path):
            self._connection = self._connected()
            version = version_of(self._connection)
            if version > VERSION:  # later that is no hindrance: what this process has begun goes on
                self.newer = LedgerIsNewer(path, version, written_by(self._connection))

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connected()
        return self._connection

    def _connected(self) -> sqlite3.Connection:
        """Open the file, with the tables of this tpujob. Raises LedgerUnavailable after `close`."""
        if self._refusal:
            raise LedgerUnavailable(f"the ledger {self.path} {self._refusal}")
        complete = is_complete(self.path)
        try:
            database = self._open()
        except sqlite3.OperationalError as error:
            if not complete or error.sqlite_errorcode & 0xFF not in UNWRITABLE:
                raise
            # Even reading needs a file beside it. As it lies there it still says what is to be torn down.
            database = self._connect(f"{self.path.absolute().as_uri()}?immutable=1")
        with _closed_if_refused(database):
            if version_of(database) < VERSION:
                database = self._brought_forward(database)
        return database

    def _open(self) -> sqlite3.Connection:
        known = self.path.exists()
        database = self._connect(self.path.absolute().as_uri())
        with _closed_if_refused(database):
            if not known:
                os.chmod(self.path, 0o600)  # noqa: PTH101 - before any content is in it
            # A write-ahead log needs memory that its readers share.
            _set_journal(database, "delete" if on_network(self.path) else "wal")
            # fullfsync is for macOS: a plain fsync there does not reach the platter.
            for pragma in ("synchronous=full", "foreign_keys=on", "fullfsync=1"):
                database.execute(f"pragma {pragma}")
        return database

    @staticmethod
    def _connect(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=True)

    def close(self) -> None:
        with self._lock:
            self._refusal = "was closed"
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def __del__(self) -> None:
        # sqlite3 would keep a connection that is not closed until the next garbage collection, and a fork may come before.
        if self._connection is not None:
            self._connection.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        if not self._busy and self._connection is not None:
            self._connection.close()
            self._connection = None

    def after_fork(self, *, in_child: bool) -> None:
        if in_child and self._connection is not None:  # a signal handler forked in the middle of a call
            self._from_parent, self._connection, self._busy = self._connection, None, False
            self._refusal = "was in use when this process was forked"
        self._lock.release()

    def check_writable(self) -> None:
        """Raise LedgerUnavailable if nothing can be recorded: the disk is read-only, or a newer tpujob wrote the ledger."""
        with self._transaction():
            pass  # a ledger that cannot be written lets none begin

    def check_not_newer(self) -> None:
        """Raise LedgerIsNewer if it is: for what acts on a slice before it records what it promises."""
        if self.newer is not None:
            raise self.newer

    @contextmanager
    def _transaction(self, *, ends: bool = False) -> Iterator[None]:
        """`ends`: it only ends what is there already, which the ledger of a newer tpujob takes, too."""
        with self._reading():
            if not ends:
                self.check_not_newer()
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._lock, _translated(self.path):
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    def _brought_forward(self, database: sqlite3.Connection) -> sqlite3.Connection:
        """Return the ledger with the tables of this tpujob: the file, or a copy to read, where the file cannot be written."""
        try:
            bring_forward(database)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in UNWRITABLE or version_of(database) == 0:
                raise
            copy = self._connect("file::memory:")
            with _closed_if_refused(copy):
                database.backup(copy)
                bring_forward(copy)
                copy.execute("pragma query_only=on")
            database.close()
            return copy
        return database


@contextmanager
def _closed_if_refused(database: sqlite3.Connection) -> Iterator[None]:
    """Close it at once after an error, which may be kept, and the connection with it."""
    try:
        yield
    except BaseException:
        database.close()
        raise


def _set_journal(database: sqlite3.Connection, mode: str) -> None:
    """Set the journal mode. SQLite does not wait for another first command that is setting it, too."""
    give_up_at = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            database.execute(f"pragma journal_mode={mode}")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
        time.sleep(BUSY_POLL_S)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        hint = "free some disk space, or move the damaged file aside; what is alive in the cloud carries tpujob labels"
        raise LedgerUnavailable(f"the ledger {path} cannot be used: {error}", hint=hint) from error


# The disk of the ledger: full, read-only, or on another machine. `ledger` chooses by it how to open the file.

# SQLite's error codes (their low byte) for a disk that cannot be written.
UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
_NETWORK = frozenset(("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "lustre", "beegfs", "ceph"))


def is_complete(database: Path) -> bool:
    """Return whether the file has every commit. The last ones may still be in the log beside it."""
    try:
        return database.exists() and not database.with_name(f"{database.name}-wal").stat().st_size
    except FileNotFoundError:  # the log goes with the last process that closes the ledger, at any moment
        return True


def on_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether the file is on another machine's disk. Only Linux tells: elsewhere False."""
    try:
        rows = [line.split() for line in mounts.read_text(errors="replace").splitlines()]
    except OSError:
        return False
    place = path.absolute()
    above = [row for row in rows if place.is_relative_to(row[1].replace("\\040", " "))]
    above.sort(key=lambda row: len(row[1]))  # of two on one place the later one hides the other
    return bool(above) and above[-1][2] in _NETWORK
