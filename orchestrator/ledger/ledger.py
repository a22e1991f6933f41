"""The ledger: one SQLite file with every lease, run and attempt. Transactions and reads; decisions are in `core`.

Every write is one transaction. It changes a row by a pure transition (`core.lease.lease`, `core.lease.run_and_attempt`),
appends the event, and is committed with `synchronous=FULL`: when `record` returns, a power cut cannot take it back.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from orchestrator import fork
from orchestrator.core.lease import lease as leases
from orchestrator.core.lease import run_and_attempt as attempts
from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.core.lease.lease import HeldFor, Intent, Lease, LeaseEvent, LeaseState, Purpose
from orchestrator.core.lease.run_and_attempt import Attempt, AttemptEvent, AttemptState, Began, RunCanceled, RunRecord
from orchestrator.core.lease.timekeeping import Anchor
from orchestrator.errors import ConfigError, TpujobError, UnknownLease, UnknownRun
from orchestrator.ledger import disk

SCHEMA_VERSION = 9  # of schema.sql; a ledger of another version is refused
KEPT_GC_RUNS = 100
BUSY_TIMEOUT_S = 5.0  # a signal is not heard while a commit waits

_NAME_COLUMNS = ("project", "zone", "node", "queued")
_OPEN = "state not in ('gone', 'forgotten')"
_LEASE_COLUMNS = (*(field.name for field in fields(Lease) if field.name != "name"), *_NAME_COLUMNS)


@dataclass(frozen=True, slots=True)
class GcRun:
    """One gc run on this machine. `scope` is `local` (what this ledger owes), `all`, or zones with commas."""

    at: float
    cloud: str
    project: str
    scope: str
    complete: bool
    found: int
    deleted: int


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """One execution of a sweep. `variants`: number, name, label, parameters and key of each, as JSON values."""

    id: str
    name: str
    job_path: str
    created_at: float
    variants: list[dict[str, Any]]


class LedgerUnavailable(TpujobError):
    """The ledger cannot be read or written (disk full, locked, damaged). No create may follow; teardown goes on without."""

    exit_code = 70


class Ledger:
    """Open one per process. Safe to call from several threads; each call is a transaction of its own.

    The file is closed during a fork, and each of the two processes opens it again when it needs it. SQLite keeps in memory
    which locks its process holds: a child with a copy of an open connection would take its parent's locks for its own, also
    through a connection that it opens itself, and lose commits. Only SQLite opens the file: closing any other descriptor of
    it would drop the locks of this process.
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
            for pragma in (f"journal_mode={journal}", "synchronous=full", "foreign_keys=on"):
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

    # -- writing ---------------------------------------------------------------------------------------------------

    def record(self, *events: LeaseEvent | AttemptEvent) -> None:
        """Apply the events in one durable transaction.

        Raises leases.NotAllowed when a lease has moved on meanwhile, or when the run was canceled.
        """
        with self._transaction():
            for event in events:
                self._apply(event)

    def record_gc(self, ran: GcRun) -> None:
        """A timer's gc runs are many: of each kind the latest hundred are kept."""
        kind = (ran.cloud, ran.project, ran.scope)
        same = "from gc_run where cloud = ? and project = ? and scope = ?"
        with self._transaction():
            self._db.execute("insert into gc_run values (?, ?, ?, ?, ?, ?, ?)", astuple(ran))
            newest = f"select rowid {same} order by at desc limit {KEPT_GC_RUNS}"
            self._db.execute(f"delete {same} and rowid not in ({newest})", (*kind, *kind))

    def record_sweep(self, sweep: SweepRecord) -> None:
        row = (sweep.id, sweep.name, sweep.job_path, sweep.created_at, json.dumps(sweep.variants))
        with self._transaction():
            self._db.execute("insert into sweep values (?, ?, ?, ?, ?)", row)

    def anchor(self, cloud: str, change: Callable[[Anchor | None, list[Lease]], Anchor]) -> Anchor:
        """The anchor of a cloud's time, after `change` made it from the last one (None: there is none) and the open leases."""
        with self._reading():
            before = self._anchor(cloud)
            after = change(before, self._leases(f"where cloud = ? and {_OPEN}", cloud))
        if after == before:
            return after
        with contextlib.suppress(LedgerUnavailable), self._transaction():  # a full disk must not stop a teardown
            before = self._anchor(cloud)  # another process may have been quicker
            after = change(before, self._leases(f"where cloud = ? and {_OPEN}", cloud))
            if after != before:
                row = (cloud, after.boot, after.zero, after.sure, after.ahead_s)
                self._db.execute("insert or replace into anchor values (?, ?, ?, ?, ?)", row)
        return after

    def _anchor(self, cloud: str) -> Anchor | None:
        query = "select boot, zero, sure, ahead_s from anchor where cloud = ?"
        for boot, zero, sure, ahead_s in self._db.execute(query, (cloud,)):
            return Anchor(boot, zero, bool(sure), ahead_s)
        return None

    def _apply(self, event: LeaseEvent | AttemptEvent) -> None:
        match event:
            case Intent(lease=lease):
                attempts.check_not_canceled(self._last_attempt(lease.run), event)
                self._insert_lease(lease)
                self._append(lease.created_at, lease.id, event)
            case Began(run=run, attempt=attempt):
                attempts.check_not_canceled(self._last_attempt(run.id), event)
                self._insert_run(run)
                self._put_attempt(attempt)
                self._append(event.at or run.created_at, attempt.id, event)
            case RunCanceled(run_id=run_id):
                last = self._last_attempt(run_id)
                if last is None:
                    raise UnknownRun(f"there is no run {run_id!r}")
                leases_of_run = self._leases(f"where run = ? and {_OPEN} order by created_at", run_id)
                for each in attempts.events_of_cancel(event, last, leases_of_run):
                    self._apply(each)
            case attempts.AttemptChange():
                before = self._attempt(event.attempt_id)
                self._put_attempt(attempts.apply(before, event))
                self._append(event.at, event.attempt_id, event)
            case _:
                lease = self._lease(event.lease_id)
                self._update_lease(leases.apply(lease, event))
                self._append(event.at, event.lease_id, event)

    def _insert_lease(self, lease: Lease) -> None:
        columns = ", ".join(_LEASE_COLUMNS)
        self._db.execute(f"insert into lease ({columns}) values ({_marks(_LEASE_COLUMNS)})", _lease_row(lease))  # noqa: S608

    def _update_lease(self, lease: Lease) -> None:
        sets = ", ".join(f"{column} = ?" for column in _LEASE_COLUMNS)
        self._db.execute(f"update lease set {sets} where id = ?", [*_lease_row(lease), lease.id])  # noqa: S608

    def _insert_run(self, run: RunRecord) -> None:
        row = (run.id, run.name, run.job_path, run.cloud, run.created_at, run.directory, json.dumps(run.spec))
        self._db.execute("insert into run values (?, ?, ?, ?, ?, ?, ?) on conflict (id) do nothing", row)

    def _put_attempt(self, attempt: Attempt) -> None:
        columns = [field.name for field in fields(attempt)]
        sets = ", ".join(f"{column} = excluded.{column}" for column in columns)
        row = [getattr(attempt, column) for column in columns]
        self._db.execute(f"insert into attempt values ({_marks(columns)}) on conflict (id) do update set {sets}", row)  # noqa: S608

    def _append(self, at: float, subject: str, event: LeaseEvent | AttemptEvent) -> None:
        data = {} if isinstance(event, Intent | Began) else asdict(event)
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()
        self._db.execute(
            "insert into event (at, subject, kind, data) values (?, ?, ?, ?)", (at, subject, kind, json.dumps(data))
        )

    # -- reading ---------------------------------------------------------------------------------------------------

    def lease(self, lease_id: str) -> Lease:
        with self._reading():
            return self._lease(lease_id)

    def open_leases(self) -> list[Lease]:
        with self._reading():
            return self._leases(f"where {_OPEN} order by created_at")

    def leases(self) -> list[Lease]:
        with self._reading():
            return self._leases("order by created_at")

    def runs(self) -> list[tuple[RunRecord, Attempt]]:
        """Every run with its last attempt, newest first."""
        with self._reading():
            found = [_run_of(row) for row in self._db.execute("select * from run order by rowid desc")]
            return [(run, self._attempts("where run_id = ? order by rowid desc limit 1", run.id)[0]) for run in found]

    def find_run(self, text: str) -> tuple[RunRecord, Attempt]:
        """The run whose id starts with `text`, or the newest one of that name that has not ended, else the newest one.

        Raises UnknownRun when there is none, or the id of several starts with `text`.
        """
        found = self.find_runs(text)
        return next((pair for pair in found if not pair[1].state.ended), found[0])

    def find_runs(self, text: str) -> list[tuple[RunRecord, Attempt]]:
        """The run whose id starts with `text`, else every run of that name, newest first; never empty.

        Raises UnknownRun when there is none, or the id of several starts with `text`.
        """
        every = self.runs()
        matches = [pair for pair in every if pair[0].id.startswith(text)] if text else []
        if len(matches) > 1:
            names = ", ".join(run.id for run, _ in matches)
            raise UnknownRun(f"{text!r} could be any of these runs: {names}", hint="type more of the id")
        by_name = [pair for pair in every if pair[0].name == text]
        if not matches and not by_name:
            raise UnknownRun(f"there is no run {text!r}", hint="`tpujob list` shows the runs")
        return matches or by_name

    def attempt(self, attempt_id: str) -> Attempt:
        """One attempt. Raises UnknownRun."""
        with self._reading():
            return self._attempt(attempt_id)

    def attempts_open(self) -> list[Attempt]:
        ended = [state.value for state in AttemptState if state.ended]
        with self._reading():
            return self._attempts(f"where state not in ({_marks(ended)})", *ended)

    def attempts_of(self, run_id: str) -> list[Attempt]:
        """In the order in which they were made."""
        with self._reading():
            return self._attempts("where run_id = ? order by rowid", run_id)

    def events(self, subject: str) -> list[tuple[float, str, dict[str, Any]]]:
        with self._reading():
            rows = self._db.execute("select at, kind, data from event where subject = ? order by seq", (subject,))
            return [(at, kind, json.loads(data)) for at, kind, data in rows]

    def gc_runs(self, of_cloud: str, of_project: str | None = None) -> list[GcRun]:
        """Newest first; of one project, or of the whole cloud."""
        with self._reading():
            rows = self._db.execute("select * from gc_run where cloud = ? order by at desc", (of_cloud,))
            found = [
                GcRun(at, cloud, project, scope, complete == 1, seen, deleted)
                for at, cloud, project, scope, complete, seen, deleted in rows
            ]
        return [ran for ran in found if of_project in (None, ran.project)]

    def sweeps(self) -> list[SweepRecord]:
        """Newest first."""
        with self._reading():
            rows = self._db.execute("select id, name, job_path, created_at, variants from sweep order by rowid desc")
            return [
                SweepRecord(identity, name, job_path, created_at, json.loads(variants))
                for identity, name, job_path, created_at, variants in rows
            ]

    def leases_of(self, run_id: str) -> list[Lease]:
        """Every slice that the run asked for, in all of its attempts: also those that were refused or lost a race."""
        with self._reading():
            return self._leases("where run = ? order by created_at", run_id)

    def _leases(self, tail: str, *values: str) -> list[Lease]:
        rows = self._db.execute(f"select {', '.join(_LEASE_COLUMNS)} from lease {tail}", values)  # noqa: S608
        return [_lease_of(row) for row in rows]

    def _lease(self, lease_id: str) -> Lease:
        for lease in self._leases("where id = ?", lease_id):
            return lease
        raise UnknownLease(f"there is no lease {lease_id!r}")

    def _attempts(self, tail: str, *values: str) -> list[Attempt]:
        return [_attempt_of(row) for row in self._db.execute(f"select * from attempt {tail}", values)]  # noqa: S608

    def _last_attempt(self, run_id: str | None) -> Attempt | None:
        found = self._attempts("where run_id = ? order by rowid desc limit 1", run_id) if run_id is not None else []
        return found[0] if found else None

    def _attempt(self, attempt_id: str) -> Attempt:
        for attempt in self._attempts("where id = ?", attempt_id):
            return attempt
        raise UnknownRun(f"there is no attempt {attempt_id!r}")

    # -- SQLite ----------------------------------------------------------------------------------------------------

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


def _lease_row(lease: Lease) -> list[Any]:
    return [getattr(lease.name if column in _NAME_COLUMNS else lease, column) for column in _LEASE_COLUMNS]


def _lease_of(row: tuple[Any, ...]) -> Lease:
    data = dict(zip(_LEASE_COLUMNS, row, strict=True))
    project, zone, node, queued = (data.pop(column) for column in _NAME_COLUMNS)
    name = SliceName(project, zone, node, bool(queued))
    data |= {"purpose": Purpose(data["purpose"]), "state": LeaseState(data["state"])}
    data |= {"spot": bool(data["spot"]), "settled": bool(data["settled"])}
    data["held_for"] = HeldFor(data["held_for"]) if data["held_for"] else None
    return Lease(name=name, **data)


def _run_of(row: tuple[Any, ...]) -> RunRecord:
    identity, name, job_path, cloud, created_at, directory, spec = row
    return RunRecord(identity, name, job_path, cloud, created_at, directory, json.loads(spec))


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _attempt_of(row: tuple[Any, ...]) -> Attempt:
    data = dict(zip((field.name for field in fields(Attempt)), row, strict=True))
    return Attempt(**data | {"state": AttemptState(data["state"])})
