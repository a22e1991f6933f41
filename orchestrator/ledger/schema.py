"""Which tables the ledger has: made in a new file, and added to a file that an older tpujob wrote, in one transaction.

`schema.sql` says all that there is. A step that adds more than tables, indexes and columns has its line in `bring_forward`.
"""

import sqlite3
from contextlib import closing

from orchestrator import __version__

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
    from importlib import resources

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
