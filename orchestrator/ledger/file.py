"""The file of the ledger: how it is opened, shared with forked children, written in transactions, and refused.

`ledger.ledger` has what is in it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator import fork
from orchestrator.errors import ConfigError, TpujobError
from orchestrator.ledger import disk

SCHEMA_VERSION = 11  # of schema.sql; a ledger of another version is refused
BUSY_TIMEOUT_S = 5.0  # a signal is not heard while a commit waits
BUSY_POLL_S = 0.01


class LedgerUnavailable(TpujobError):
    """The ledger cannot be read or written (disk full, locked, damaged). No create may follow; teardown goes on without."""

    exit_code = 70


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
        self._from_parent: sqlite3.Connection | None = None  # never to be used, nor closed
        # Before the first use of the lock: a fork takes the lock after it held off other forks, so never the other way round.
        fork.register(self)
        with self._lock, _translated(path):
            self._connection = self._connected()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connected()
        return self._connection

    def _connected(self) -> sqlite3.Connection:
        """Open the file. Raises ConfigError for a ledger of another version, LedgerUnavailable after `close`."""
        if self._refusal:
            raise LedgerUnavailable(f"the ledger {self.path} {self._refusal}")
        complete = disk.is_complete(self.path)
        try:
            database = self._open()
        except sqlite3.OperationalError as error:
            if not complete or error.sqlite_errorcode & 0xFF not in disk.UNWRITABLE:
                raise
            # Even reading needs a file beside it. As it lies there it still says what is to be torn down.
            database = self._connect(f"{self.path.absolute().as_uri()}?immutable=1")
        with _closed_if_refused(database):
            self._ensure_schema(database)
        return database

    def _open(self) -> sqlite3.Connection:
        known = self.path.exists()
        database = self._connect(self.path.absolute().as_uri())
        with _closed_if_refused(database):
            if not known:
                os.chmod(self.path, 0o600)  # noqa: PTH101 - before any content is in it
            # A write-ahead log needs memory that its readers share.
            journal = "delete" if disk.on_network(self.path) else "wal"
            _set_journal(database, journal)
            for pragma in ("synchronous=full", "foreign_keys=on"):
                database.execute(f"pragma {pragma}")
            database.execute("pragma fullfsync=1")  # macOS: a plain fsync there does not reach the platter
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

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._reading():
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

    def _ensure_schema(self, database: sqlite3.Connection) -> None:
        """Create the tables in an empty file. Raises ConfigError for a ledger of another version."""
        if _version(database) == 0:
            _create_tables(database)
        version = _version(database)
        if version == SCHEMA_VERSION:
            return
        if version < SCHEMA_VERSION:
            kind, hint = "an older", "delete its slices with that tpujob (`tpujob down --all`), then move the file away"
        else:
            kind, hint = "a newer", "upgrade tpujob; until then `gcloud compute tpus tpu-vm list` shows what is alive"
        raise ConfigError(
            f"the ledger {self.path} was written by {kind} tpujob (schema {version}, this one uses {SCHEMA_VERSION})",
            hint=hint,
        )


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


def _version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("pragma user_version").fetchone()
    return int(version)


def _create_tables(database: sqlite3.Connection) -> None:
    from importlib import resources

    script = resources.files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")
    try:
        database.executescript(f"begin immediate; {script} pragma user_version = {SCHEMA_VERSION}; commit;")
    except sqlite3.OperationalError:
        # Of two first commands at once, the other one created the tables while this one waited for the lock.
        if database.in_transaction:
            database.execute("rollback")
        if _version(database) == 0:
            raise


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        hint = "free some disk space, or move the damaged file aside; what is alive in the cloud carries tpujob labels"
        raise LedgerUnavailable(f"the ledger {path} cannot be used: {error}", hint=hint) from error
