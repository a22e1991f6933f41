"""The outbox: messages that are not delivered yet, and which have been, in one SQLite file of the state directory.

A message is in here before it is sent. The same id is taken once, whichever process brings it. What is delivered, refused or
too old stays for a while, as a memory of its id. Each call is a transaction of its own on a connection of its own, so that a
fork between two calls shares nothing.

Times are of the wall clock: they only say when to try again.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.notify.messages import Message, message_of

NAME = "notify.sqlite3"
KINDS = ("moved", "attempt_ended", "began", "held")  # of the ledger's events: what a message may come of
BUSY_S = 5.0
AGAIN_S, MOST_AGAIN_S = 15.0, 1800.0  # until the second try, and between two later ones at most
GIVE_UP_S = 86400.0
REMEMBERED_S = 30 * 86400.0
GAVE_UP = "given up after a day"

_SCHEMA = """
create table if not exists message (
  id text primary key,
  receiver text not null,              -- where its address is, not the address
  body text not null,
  put_at real not null,
  next_at real not null,
  tries integer not null default 0,
  ended_at real,                       -- delivered, or not to be tried any more
  problem text not null default ''     -- why the last try failed
) strict;
create table if not exists seen (ledger integer not null) strict;  -- up to which event of the ledger
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The messages of one receiver that are not delivered."""

    receiver: str
    messages: tuple[Message, ...]
    since: float  # the first of them was put in then
    until: float  # and the last one
    next_at: float  # no try before
    tries: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Messages that have not been delivered, for the same reason. `final`: they will not be."""

    receiver: str
    count: int
    why: str
    final: bool


class Outbox:
    """The messages of one ledger. Raises sqlite3.Error; nothing that matters may depend on it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME

    def make(self, seen: int) -> None:
        """Make the file, if there is none. `seen`: the events of the ledger up to this one are of no interest."""
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # before any content is in it
        with self._transaction() as database:
            if database.execute("select 1 from seen").fetchone() is None:
                database.execute("insert into seen values (?)", (seen,))

    def seen(self) -> int | None:
        """Return up to which event of the ledger its messages are in here; None: the file was left unfinished."""
        with self._transaction() as database:
            row = database.execute("select ledger from seen").fetchone()
        return None if row is None else int(row[0])

    def put(self, messages: Iterable[tuple[str, Message]], now: float, *, seen: int | None = None) -> None:
        """Take messages, each with its receiver; those whose id is known are here already. `seen`: as `seen()` from now on."""
        with self._transaction() as database:
            for receiver, message in messages:
                query = "select max(next_at) from message where receiver = ? and ended_at is null"
                (paused_until,) = database.execute(query, (receiver,)).fetchone()
                row = (message.id, receiver, json.dumps(message.as_json()), now, max(now, paused_until or now))
                into = "insert into message (id, receiver, body, put_at, next_at) values (?, ?, ?, ?, ?)"
                database.execute(f"{into} on conflict (id) do nothing", row)
            if seen is not None:
                database.execute("delete from seen")
                database.execute("insert into seen values (?)", (seen,))

    def waiting(self) -> list[Waiting]:
        """Return what is to be delivered, by receiver."""
        query = (
            "select receiver, body, put_at, next_at, tries from message where ended_at is null order by put_at, rowid"
        )
        found: dict[str, list[tuple[Message, float, float, int]]] = {}
        with self._transaction() as database:
            for receiver, body, put_at, next_at, tries in database.execute(query):
                found.setdefault(receiver, []).append((message_of(json.loads(body)), put_at, next_at, tries))
        return [
            Waiting(
                receiver,
                tuple(message for message, *_ in rows),
                min(put_at for _, put_at, *_ in rows),
                max(put_at for _, put_at, *_ in rows),
                max(next_at for *_, next_at, _ in rows),
                max(tries for *_, tries in rows),
            )
            for receiver, rows in found.items()
        ]

    def delivered(self, ids: Sequence[str], now: float) -> None:
        """Remember that these were delivered, and forget what is long over."""
        with self._transaction() as database:
            database.executemany(
                "update message set ended_at = ?, problem = '' where id = ?", [(now, each) for each in ids]
            )
            database.execute("delete from message where ended_at < ?", (now - REMEMBERED_S,))

    def failed(
        self, ids: Sequence[str], now: float, why: str, *, final: bool = False, again_s: float | None = None
    ) -> None:
        """Remember that these were not delivered. `final`: they never will be. `again_s`: no earlier than the receiver says."""
        with self._transaction() as database:
            for each in ids:
                query = "select put_at, tries from message where id = ?"
                for put_at, tries in database.execute(query, (each,)).fetchall():
                    over = final or now - put_at >= GIVE_UP_S
                    problem = why if final or not over else f"{why}; {GAVE_UP}"
                    pause_s = max(min(AGAIN_S * 2**tries, MOST_AGAIN_S), again_s or 0.0)
                    row = (tries + 1, now + pause_s, now if over else None, problem, each)
                    database.execute(
                        "update message set tries = ?, next_at = ?, ended_at = ?, problem = ? where id = ?", row
                    )

    def hurry(self) -> None:
        """Let everything that waits be tried at once."""
        with self._transaction() as database:
            database.execute("update message set next_at = 0 where ended_at is null")

    def problems(self, since: float) -> list[Problem]:
        """Return what waits after a failed try, and what was given up since then (unix seconds)."""
        query = (
            "select receiver, count(*), problem, ended_at is not null from message where problem != '' "
            "and (ended_at is null or ended_at >= ?) group by receiver, problem, ended_at is not null order by 4, 1"
        )
        with self._transaction() as database:
            rows = database.execute(query, (since,)).fetchall()
        return [Problem(receiver, count, why, bool(final)) for receiver, count, why, final in rows]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)) as database:
            database.executescript(_SCHEMA)
            database.execute("begin immediate")
            try:
                yield database
                database.execute("commit")
            except BaseException:
                if database.in_transaction:
                    database.execute("rollback")
                raise
