"""What a failed test leaves to read: the requests that the emulator got, the daemon's and the guardian's logs, the ledger."""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cloud_tpu_emulator.daemon import control

LINES = 60
LOGS = ("daemon.log", "guardian.log", "cluster.log")
ROWS = {
    "lease": "select * from lease order by created_at",
    "attempt": "select * from attempt",
    "event": "select * from event",
}


def of_test(fixtures: Mapping[str, Any]) -> str:
    """Of every directory that a test's fixtures name. Empty if nothing of the kind is there."""
    own = [value.left_to_read() for value in fixtures.values() if hasattr(value, "left_to_read")]
    return "\n".join([*own, of(*_directories(fixtures.values()))])


def of(*directories: Path) -> str:
    """The last lines of what lies below these directories, with a heading each."""
    found: dict[Path, list[str]] = {}
    for directory in directories:
        for place, _, names in os.walk(directory):  # unlike rglob it goes on where a deleted VM's files just went
            for path in (Path(place, name) for name in names):
                if path.name in LOGS or path.name == "ledger.sqlite3":
                    found.setdefault(path, _ledger(path) if path.suffix == ".sqlite3" else _tail(path))
                if path.name == "daemon.log":
                    found.setdefault(path.parent / "requests", _requests(path.parent))
    return "\n".join(f"--- {path}\n{_joined(lines)}" for path, lines in found.items() if lines)


def _joined(lines: list[str]) -> str:
    return "\n".join(lines[-LINES:])


def _directories(values: Iterable[Any]) -> Iterator[Path]:
    for value in values:
        for place in (value, getattr(value, "directory", None), getattr(value, "state_dir", None)):
            if isinstance(place, Path):
                yield place


def _tail(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()


def _requests(state_dir: Path) -> list[str]:
    endpoint = control.running(state_dir)
    if endpoint is None:
        return ["the daemon does not run"]
    try:
        rows = control.request(endpoint, "GET", "/_emulator/requests")["requests"]
    except (OSError, RuntimeError) as error:
        return [f"the daemon does not answer: {error}"]
    return [json.dumps(row) for row in rows]


def _ledger(path: Path) -> list[str]:
    lines: list[str] = []
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        for table, query in ROWS.items():
            with contextlib.suppress(sqlite3.Error):
                lines += [f"{table} {dict(row)}" for row in db.execute(query)]
    return lines
