"""The ledger: one SQLite file with every lease, run and attempt. Transactions and reads; decisions are in `promise.lease`.

Every write is one transaction. It changes a row by a pure transition (`promise.lease.changes`), appends the event, and is
committed with `synchronous=FULL`: when `record` returns, a power cut cannot take it back.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UnknownLease, UnknownRun
from orchestrator.promise.lease.lease import Lease
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import read
from orchestrator.promise.ledger import rows
from orchestrator.promise.ledger.clocks import Anchor
from orchestrator.promise.ledger.file import LedgerFile, LedgerUnavailable
from orchestrator.promise.ledger.rows import GcRun, LedgerEvent, SweepRecord, marks
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    from orchestrator.promise.lease import changes
else:  # what only reads has none
    changes = Later("orchestrator.promise.lease.changes")

ROOM_BYTES = 16384


class KeptEnds:
    """How attempts ended, kept beside a ledger that could not be written, until a later command records it. Raises nothing.

    Without that, recovery would call a run whose process is gone interrupted, also one that succeeded. There is one file for
    each attempt that has not ended in the ledger: a line for each end, then blanks. Room for it is taken when the attempt
    begins: the disk may be full when it ends. `directory` has nothing else in it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def follow(self, *events: object) -> None:
        """Take room for the ends of attempts that began, and drop those of attempts that ended: the ledger has these events."""
        for event in events:
            if isinstance(event, changes.Began):
                with contextlib.suppress(OSError):
                    self._directory.mkdir(mode=0o700, exist_ok=True)
                    self._write(event.attempt.id, b" " * ROOM_BYTES, 0)
            elif isinstance(event, changes.End):
                self.drop(event.attempt_id)

    def keep(self, *events: object) -> None:
        """Keep the ends among the events, after those that are kept: the ledger decides which one counts."""
        for end in (event for event in events if isinstance(event, changes.End)):
            line = json.dumps({"kind": type(end).__name__, **asdict(end)}).encode() + b"\n"
            with contextlib.suppress(OSError):
                used = len(self._read(end.attempt_id).rstrip(b" "))
                if used + len(line) <= ROOM_BYTES:  # a ledger that stays full has one more end with every command
                    self._write(end.attempt_id, line, used)

    def every(self) -> Iterator[tuple[str, list[changes.End]]]:
        """Yield each attempt with its ends in their order; with none, while it goes on or if it was killed."""
        with contextlib.suppress(OSError):
            for path in sorted(self._directory.iterdir()):
                lines = self._read(path.name).splitlines()
                yield path.name, [end for line in lines if (end := _end(line)) is not None]

    def drop(self, attempt_id: str) -> None:
        """Forget the attempt: its end is in the ledger."""
        with contextlib.suppress(OSError):
            (self._directory / attempt_id).unlink()

    def _read(self, attempt_id: str) -> bytes:
        try:
            return (self._directory / attempt_id).read_bytes()
        except FileNotFoundError:
            return b""

    def _write(self, attempt_id: str, data: bytes, at: int) -> None:
        file = os.open(self._directory / attempt_id, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(file, data, at)
            os.fsync(file)
        finally:
            os.close(file)


def _end(line: bytes) -> changes.End | None:
    try:
        values = json.loads(line)
        return read(changes.ENDS[values["kind"]], values)
    except (ValueError, KeyError, TypeError):  # blanks, or written by halves
        return None


KEPT_GC_RUNS = 100
SWEEP_CANCELED = "sweep_canceled"

_OPEN = "state not in ('gone', 'forgotten')"


class Ledger(LedgerFile):
    """Open one per process. Each call is a transaction of its own."""

    # -- writing ---------------------------------------------------------------------------------------------------

    def record(self, *events: changes.LeaseEvent | changes.AttemptEvent) -> None:
        """Apply the events in one durable transaction.

        Raises NotAllowed when a lease has moved on meanwhile, or when the run or its sweep was canceled;
        LedgerUnavailable, and then a later command records how the attempts of these events ended.
        """
        try:
            self._record(*events)
        except LedgerUnavailable:
            self._ends.keep(*events)
            raise
        self._ends.follow(*events)

    def _record(self, *events: changes.LeaseEvent | changes.AttemptEvent) -> None:
        with self._transaction(ends=all(isinstance(event, changes.LAST) for event in events)):
            for event in events:
                self._apply(event)

    @property
    def _ends(self) -> KeptEnds:
        return KeptEnds(self.path.with_suffix(".ends"))

    def _record_kept(self) -> None:
        """Record the ends that are kept beside the ledger, if it can be written now."""
        for attempt_id, ends in self._ends.every():
            with contextlib.suppress(LedgerUnavailable):
                with contextlib.suppress(UnknownRun):  # this is another ledger
                    if ends:
                        self._record(*ends)
                    if not self.attempt(attempt_id).state.ended:
                        continue
                self._ends.drop(attempt_id)

    def record_gc(self, ran: GcRun) -> None:
        """Record a gc run. A timer's are many: of each kind the latest hundred are kept."""
        kind = (ran.cloud, ran.project, ran.scope)
        same = "from gc_run where cloud = ? and project = ? and scope = ?"
        with self._transaction():
            self._insert("gc_run", asdict(ran))
            newest = f"select rowid {same} order by at desc limit {KEPT_GC_RUNS}"
            self._db.execute(f"delete {same} and rowid not in ({newest})", (*kind, *kind))

    def record_sweep(self, sweep: SweepRecord) -> None:
        """Record that a sweep begins. What becomes of it is in its runs."""
        with self._transaction():
            row = asdict(sweep)
            self._insert("sweep", row | {"variants": json.dumps(row["variants"])})

    def cancel_sweep(self, sweep_id: str, at: float) -> None:
        """Record that the user ended the sweep: from here on it begins no run. `at`: ledger time."""
        with self._transaction(ends=True):
            self._insert("event", {"at": at, "subject": sweep_id, "kind": SWEEP_CANCELED, "data": "{}"})

    def anchor(self, cloud: str, change: Callable[[Anchor | None, list[Lease]], Anchor]) -> Anchor:
        """Return the anchor of a cloud's time, made by `change` of the last one (None: there is none) and the open leases."""
        with self._reading():
            before = self._anchor(cloud)
            after = change(before, self._leases(f"where cloud = ? and {_OPEN}", cloud))
        if after == before:
            return after
        with contextlib.suppress(LedgerUnavailable), self._transaction():  # a full disk must not stop a teardown
            before = self._anchor(cloud)  # another process may have been quicker
            after = change(before, self._leases(f"where cloud = ? and {_OPEN}", cloud))
            if after != before:
                self._put("anchor", "cloud", {"cloud": cloud, **asdict(after)})
        return after

    def _anchor(self, cloud: str) -> Anchor | None:
        query = "select boot, zero, sure, ahead_s from anchor where cloud = ?"
        for boot, zero, sure, ahead_s in self._db.execute(query, (cloud,)):
            return Anchor(boot, zero, bool(sure), ahead_s)
        return None

    def _apply(self, event: changes.LeaseEvent | changes.AttemptEvent) -> None:
        match event:
            case changes.Intent(lease=lease):
                changes.check_not_canceled(self._last_attempt(lease.run), event)
                self._insert("lease", rows.lease_row(lease))
                self._append(lease.created_at, lease.id, event)
            case changes.Began(run=run, attempt=attempt):
                changes.check_not_canceled(self._last_attempt(run.id), event)
                if (sweep := run.spec.sweep.id) is not None and self._is_canceled(sweep):
                    raise changes.SweepEnded(sweep)
                self._insert("run", rows.run_row(run), "on conflict (id) do nothing")
                self._put("attempt", "id", asdict(attempt))
                self._append(event.at or run.created_at, attempt.id, event)
            case changes.RunCanceled(run_id=run_id):
                last = self._last_attempt(run_id)
                if last is None:
                    raise UnknownRun(f"there is no run {run_id!r}")
                leases_of_run = self._leases(f"where run = ? and {_OPEN} order by created_at", run_id)
                for each in changes.events_of_cancel(event, last, leases_of_run):
                    self._apply(each)
            case changes.AttemptChange():
                before = self._attempt(event.attempt_id)
                self._change("attempt", asdict(before), asdict(changes.apply_to_attempt(before, event)))
                self._append(event.at, event.attempt_id, event)
            case _:
                lease = self._lease(event.lease_id)
                self._change("lease", rows.lease_row(lease), rows.lease_row(changes.apply(lease, event)))
                self._append(event.at, event.lease_id, event)

    def _is_canceled(self, sweep_id: str) -> bool:
        query = "select 1 from event where subject = ? and kind = ? limit 1"
        return self._db.execute(query, (sweep_id, SWEEP_CANCELED)).fetchone() is not None

    def _change(self, table: str, before: dict[str, Any], after: dict[str, Any]) -> None:
        """Update what differs in the row of this id: in the other columns a newer tpujob may have words of its own."""
        changed = {column: value for column, value in after.items() if value != before[column]}
        if changed:
            sets = ", ".join(f"{column} = ?" for column in changed)
            self._db.execute(f"update {table} set {sets} where id = ?", (*changed.values(), after["id"]))  # noqa: S608

    def _put(self, table: str, key: str, row: dict[str, Any]) -> None:
        """Insert the row, or give the one with its key these values."""
        sets = ", ".join(f"{column} = excluded.{column}" for column in row)
        self._insert(table, row, f"on conflict ({key}) do update set {sets}")

    def _insert(self, table: str, row: dict[str, Any], otherwise: str = "") -> None:
        """Insert the row, by the names of its columns: a newer tpujob may add others while this process goes on."""
        insert = f"insert into {table} ({', '.join(row)}) values ({marks(row)}) {otherwise}"  # noqa: S608
        self._db.execute(insert, [*row.values()])

    def _append(self, at: float, subject: str, event: changes.LeaseEvent | changes.AttemptEvent) -> None:
        data = {} if isinstance(event, changes.Intent | changes.Began) else asdict(event)
        named = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()
        kind = getattr(event, "kind", "") or named
        self._insert("event", {"at": at, "subject": subject, "kind": kind, "data": json.dumps(data)})

    # -- reading ---------------------------------------------------------------------------------------------------

    def lease(self, lease_id: str) -> Lease:
        """Return a lease. Raises UnknownLease."""
        with self._reading():
            return self._lease(lease_id)

    def open_leases(self) -> list[Lease]:
        """Return the leases of slices that are neither proven absent nor forgotten, in every cloud, oldest first."""
        with self._reading():
            return self._leases(f"where {_OPEN} order by created_at")

    def leases(self) -> list[Lease]:
        """Return every lease, oldest first."""
        with self._reading():
            return self._leases("order by created_at")

    def runs(self) -> list[tuple[RunRecord, Attempt]]:
        """Return every run with its last attempt, newest first."""
        with self._reading():
            return self._runs("order by rowid desc")

    def run(self, run_id: str) -> tuple[RunRecord, Attempt]:
        """Return a run with its last attempt. Raises UnknownRun."""
        with self._reading():
            for run in self._runs("where id = ?", run_id):
                return run
        raise UnknownRun(f"there is no run {run_id!r}")

    def run_names(self) -> list[tuple[str, str]]:
        """Return id and name of every run, newest first."""
        with self._reading():
            return list(self._db.execute("select id, name from run order by rowid desc"))

    def newest_run(self) -> tuple[RunRecord, Attempt]:
        """Raises UnknownRun when there is none."""
        with self._reading():
            for run in self._runs("order by rowid desc limit 1"):
                return run
        raise UnknownRun("there is no run yet", hint="`tpujob run --help` shows how to make one")

    def attempt(self, attempt_id: str) -> Attempt:
        """Return an attempt. Raises UnknownRun."""
        with self._reading():
            return self._attempt(attempt_id)

    def attempts_open(self) -> list[Attempt]:
        """Return the attempts that have not ended; those in a state of a newer tpujob are for that one to judge."""
        self._record_kept()
        words = [state.value for state in AttemptState if not state.ended]
        with self._reading():
            return self._attempts(f"where state in ({marks(words)})", *words)

    def attempts_of(self, run_id: str) -> list[Attempt]:
        """Return the attempts of a run, in the order in which they were made."""
        with self._reading():
            return self._attempts("where run_id = ? order by rowid", run_id)

    def events(self, subject: str) -> list[tuple[float, str, dict[str, Any]]]:
        """Return the time, the kind and the data of each event of a lease or an attempt, in their order."""
        with self._reading():
            query = "select at, kind, data from event where subject = ? order by seq"
            return [(at, kind, json.loads(data)) for at, kind, data in self._db.execute(query, (subject,))]

    def last_event(self) -> int:
        """Return the number of the newest event; 0 without any."""
        with self._reading():
            (seq,) = self._db.execute("select coalesce(max(seq), 0) from event").fetchone()
        return int(seq)

    def events_after(self, seq: int, kinds: Sequence[str], most: int) -> list[LedgerEvent]:
        """Return the first events of these kinds after the one with this number, of every lease and attempt."""
        columns = "select seq, at, subject, kind, data from event"
        query = f"{columns} where seq > ? and kind in ({marks(kinds)}) order by seq limit ?"
        with self._reading():
            rows = self._db.execute(query, (seq, *kinds, most)).fetchall()
        return [LedgerEvent(number, at, subject, kind, json.loads(data)) for number, at, subject, kind, data in rows]

    def gc_runs(self, of_cloud: str, of_project: str | None = None) -> list[GcRun]:
        """Return the gc runs of one project, or of the whole cloud, newest first."""
        with self._reading():
            tail = "where cloud = ? order by at desc"
            found = [rows.gc_run_of(row) for row in self._select("gc_run", rows.GC_COLUMNS, tail, of_cloud)]
        return [ran for ran in found if of_project in (None, ran.project)]

    def sweeps(self) -> list[SweepRecord]:
        """Return every sweep, newest first."""
        with self._reading():
            return [rows.sweep_of(row) for row in self._select("sweep", rows.SWEEP_COLUMNS, "order by rowid desc")]

    def is_canceled(self, sweep_id: str) -> bool:
        """Return whether the user ended the sweep."""
        with self._reading():
            return self._is_canceled(sweep_id)

    def leases_of(self, run_id: str) -> list[Lease]:
        """Return the leases of all attempts of a run: also of slices that were refused, or lost a race."""
        with self._reading():
            return self._leases("where run = ? order by created_at", run_id)

    def _leases(self, tail: str, *values: str) -> list[Lease]:
        return [rows.lease_of(row) for row in self._select("lease", rows.LEASE_COLUMNS, tail, *values)]

    def _lease(self, lease_id: str) -> Lease:
        for lease in self._leases("where id = ?", lease_id):
            return lease
        raise UnknownLease(f"there is no lease {lease_id!r}")

    def _runs(self, tail: str, *values: str | int) -> list[tuple[RunRecord, Attempt]]:
        found = [rows.run_of(row) for row in self._select("run", rows.RUN_COLUMNS, tail, *values)]
        return [(run, self._attempts("where run_id = ? order by rowid desc limit 1", run.id)[0]) for run in found]

    def _attempts(self, tail: str, *values: str) -> list[Attempt]:
        return [rows.attempt_of(row) for row in self._select("attempt", rows.ATTEMPT_COLUMNS, tail, *values)]

    def _select(self, table: str, columns: Sequence[str], tail: str, *values: str | int) -> Iterator[dict[str, Any]]:
        for row in self._db.execute(f"select {', '.join(columns)} from {table} {tail}", values):  # noqa: S608
            yield dict(zip(columns, row, strict=True))

    def _last_attempt(self, run_id: str | None) -> Attempt | None:
        found = self._attempts("where run_id = ? order by rowid desc limit 1", run_id) if run_id is not None else []
        return found[0] if found else None

    def _attempt(self, attempt_id: str) -> Attempt:
        for attempt in self._attempts("where id = ?", attempt_id):
            return attempt
        raise UnknownRun(f"there is no attempt {attempt_id!r}")
