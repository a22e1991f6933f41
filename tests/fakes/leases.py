"""Leases and drafts as most tests want them, a ledger in memory, and ledgers as other versions wrote them.

One is a real ledger of schema 11; of the others it is known what they lack and have.
"""

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.promise.lease.cloud_api import QueueTerms, SliceRequest
from orchestrator.promise.lease.lease import Lease, Purpose, SliceName
from orchestrator.promise.ledger import file
from orchestrator.promise.ledger.ledger import KeptEnds, Ledger
from orchestrator.promise.obtain.drafts import Draft

ZONE = "us-central1-a"


def lease_on(name: SliceName, now: float, **other: Any) -> Lease:
    """Return a lease on an emulated v5litepod-8, for a day from `now` on; `other`: fields that are not so."""
    _, owner, identity = name.node.split("-", 2)
    fields: dict[str, Any] = {
        **{"id": identity, "handle": "x", "purpose": Purpose.RUN, "cloud": "emulated", "name": name, "owner": owner},
        **{"accelerator_type": "v5litepod-8", "runtime_version": "v2-alpha-tpuv5-lite", "spot": False},
        **{"deadline": now + 24 * 3600, "created_at": now},
    }
    return Lease(**fields | other)


def lease_and_request(
    n: int = 0, *, zone: str = ZONE, now: float = 1_800_000_000.0, purpose: Purpose = Purpose.RUN
) -> Draft:
    identity = f"{n:010d}"
    name = SliceName("a-project", zone, f"tpujob-owner0-{identity}")
    lease = lease_on(name, now, handle="alice", purpose=purpose, usd_per_hour=9.6)
    request = SliceRequest(
        name, "v5litepod-8", "v2-alpha-tpuv5-lite", labels={"tpujob": "1", "tpujob-lease-id": identity}
    )
    return Draft(lease, request)


def queued(draft: Draft, valid_for_s: float = 3600.0) -> Draft:
    """Return a draft that asks for the same slice in the queue."""
    lease, request = draft
    name = replace(lease.name, queued=True)
    queue = QueueTerms(valid_for_s, f"00000000-0000-4000-8000-{lease.id:0>12}")
    return Draft(replace(lease, name=name), replace(request, name=name, queue=queue))


FILES = Path(__file__).parents[1] / "unit" / "promise" / "ledger"
SCHEMA_11 = FILES / "schema-11.sqlite3"
OPEN, DONE, SWEPT = (
    "tpujob-tcmsq6-9cqy6312g3",
    "k928dt4bg4",
    "wq6p98qr9k",
)  # in it: a slice of `up`, a run, a run of a sweep

# What each schema did not have yet of the next one. In those that a released commit had, `sweep` came without a new number.
_LACKS = {
    11: ("drop table written",),
    10: ("alter table lease drop column slices",),
    9: ("alter table lease drop column route", "drop table sweep"),
    8: ("alter table lease drop column held_for",),
    7: ("alter table attempt drop column error", "alter table attempt drop column hint"),
    6: ("alter table lease drop column idle_s", "alter table gc_run rename to sweep"),
    1: (
        *("drop table sweep", "drop table anchor", "drop index lease_of_run"),
        *("alter table attempt drop column exit_code", "update run set spec = 'none'"),
        *(
            f"alter table lease drop column {name}"
            for name in ("run", "queued", "provisioning", "ready_by", "budget_usd", "detached_at", "sends")
        ),
    ),
}

NEWER = (
    *(f"alter table {table} add column colour text not null default 'blue'" for table in ("lease", "run", "attempt")),
    "update lease set purpose = 'lent', held_for = 'a party' where state = 'ready'",
    "update run set spec = json_set(spec, '$.ports', json('{\"a\": 1}'), '$.colour', 'blue')",
    f"insert into written values ({file.VERSION + 1}, '9.9.9')",
    f"pragma user_version = {file.VERSION + 1}",
)


def as_of(path: Path, version: int) -> None:
    """Make a ledger of today one of an older schema."""
    older = [line for number, lines in _LACKS.items() if number >= version for line in lines]
    execute(path, *older, f"pragma user_version = {version}")


def execute(path: Path, *lines: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for line in lines:
            database.execute(line)


def dump(path: Path) -> list[object]:
    """All that is in a ledger, and its version."""
    with closing(sqlite3.connect(path)) as database:
        return [*database.execute("pragma user_version"), *database.iterdump()]


class LedgerInMemory(Ledger):
    """The production ledger without its file: a crash here is of the program, never of the machine."""

    _empty: sqlite3.Connection | None = None  # made from the schema once, and copied from then on

    def __init__(self, path: Path = Path("memory")) -> None:
        super().__init__(path)

    def _open(self) -> sqlite3.Connection:
        database = self._connect(":memory:")
        if LedgerInMemory._empty is not None:
            LedgerInMemory._empty.backup(database)
        database.execute("pragma foreign_keys=on")
        return database

    def _brought_forward(self, database: sqlite3.Connection) -> sqlite3.Connection:
        LedgerInMemory._empty = super()._brought_forward(database)
        database = self._connect(":memory:")
        LedgerInMemory._empty.backup(database)
        return database

    @property
    def _ends(self) -> KeptEnds:
        return KeptEnds(Path(os.devnull))
