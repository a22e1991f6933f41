"""The archive: done operations and closed bills in a file that only grows, so that a save costs only what has changed.

The state file names the archive and how many of its lines count, so that both are replaced in one step.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from orchestrator.emulator.model import meter
from orchestrator.emulator.model.cloud_state import CloudState
from orchestrator.emulator.model.records import dump_operation
from orchestrator.emulator.model.transitions import KEEP_OPERATIONS

MOST_LINES = 4 * (KEEP_OPERATIONS + meter.KEEP)  # then a new archive begins, without what the cloud has dropped
Key = str | tuple[str, float]


class Archive:
    """The archive of one daemon. A daemon always begins a new one."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[str] | None = None
        self._name, self._lines = "", 0
        self._known: set[Key] = set()
        self._old: list[Path] = []

    def append(self, state: CloudState) -> dict[str, Any]:
        """Append what has ended since the last call. Return where it is, for the state file.

        Raises OSError. The next call begins anew: this archive may end with half a line, which no state file counts.
        """
        new = list(_ended(state, self._known))
        if begins := self._file is None or self._lines + len(new) > MOST_LINES:
            self._begin()
            new = list(_ended(state, self._known))
        assert self._file is not None, "`_begin` opened it"
        try:
            self._file.write("".join(f"{json.dumps(row, separators=(',', ':'))}\n" for _, row in new))
            self._file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                self._file.close()  # tries to write again what is left
            self._file = None
            if begins:  # no state file names it
                (self._directory / self._name).unlink()
            raise
        self._known.update(key for key, _ in new)
        self._lines += len(new)
        return {"file": self._name, "lines": self._lines}

    def drop_old(self) -> None:
        """Remove older archives. Call it once the state file names the present one."""
        while self._old:
            self._old.pop().unlink(missing_ok=True)

    def _begin(self) -> None:
        old = list(self._directory.glob("archive-*.jsonl"))
        number = max((int(path.stem.rpartition("-")[2]) for path in old), default=0) + 1
        name, flags = f"archive-{number}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        opened = os.fdopen(os.open(self._directory / name, flags, 0o600), "w", encoding="utf-8")
        if self._file is not None:  # on a full disk the present one goes on
            self._file.close()
        self._old, self._file, self._name, self._lines, self._known = old, opened, name, 0, set()


def _ended(state: CloudState, known: set[Key]) -> Iterator[tuple[Key, dict[str, Any]]]:
    for operation in state.operations.values():
        if operation.ended_at is not None and operation.name not in known:
            yield operation.name, {"operation": dump_operation(operation)}
    for bill in state.meter.bills:
        if bill.until is not None and (bill.uid, bill.since) not in known:
            yield (bill.uid, bill.since), {"bill": asdict(bill)}


def live_state(state: CloudState) -> dict[str, Any]:
    """Return all that may still change, for the state file and `json.dumps(default=as_fields)`."""
    operations = [dump_operation(operation) for operation in state.operations.values() if operation.ended_at is None]
    bills = [bill for bill in state.meter.bills if bill.until is None]
    return state.dump_rest() | {"operations": operations, "bills": bills}


def restored(data: dict[str, Any], directory: Path) -> dict[str, Any]:
    """Return what `CloudState.load` reads: the state file's `data` with the rows of its archive.

    Raises ValueError, KeyError, TypeError or FileNotFoundError if they are damaged or of another version.
    """
    where = data.pop("archive")
    with (directory / where["file"]).open(encoding="utf-8") as file:
        rows = [json.loads(line) for _, line in zip(range(where["lines"]), file, strict=False)]
    if len(rows) < where["lines"]:
        raise ValueError(f"{where['file']} is too short")
    operations = [row["operation"] for row in rows if "operation" in row][-KEEP_OPERATIONS:]
    bills = [row["bill"] for row in rows if "bill" in row][-meter.KEEP :]
    data["operations"] = _in_order(operations + data["operations"], "created_at")
    data["bills"] = _in_order(bills + data["bills"], "since")
    return data


def _in_order(rows: Iterable[dict[str, Any]], when: str) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: float(row[when]))
