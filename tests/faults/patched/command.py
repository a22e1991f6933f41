"""`command.py {"module:NAME": value} WORDS…`: the tpujob command with some of its constants replaced.

For constants that would make a test wait for minutes; of a dataclass, only the named fields. `disk full` in place of a module
and name makes the disk full for statements that contain the given text.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sqlite3
import sys
from typing import Any


def patch_constants(what: dict[str, Any]) -> None:
    for place, value in what.items():
        if place == "disk full":
            fill_disk(str(value))
            continue
        module_name, _, name = place.partition(":")
        module = importlib.import_module(module_name)
        assert hasattr(module, name), f"{module_name} has no {name} any more"
        setattr(module, name, dataclasses.replace(getattr(module, name), **value) if isinstance(value, dict) else value)


def fill_disk(text: str) -> None:
    """Let writes to the ledger fail from the first one on that starts with this text, or has it as a value."""

    class Full(sqlite3.Connection):
        full = False

        def execute(self, sql: str, values: Any = ()) -> sqlite3.Cursor:
            wanted = sql.startswith(text) or text in [str(value) for value in values]
            if sql.split(maxsplit=1)[0] in ("insert", "update") and (wanted or Full.full):
                Full.full = True
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, values)

    connect = sqlite3.connect
    sqlite3.connect = lambda *a, **k: connect(*a, **{**k, "factory": Full})  # type: ignore[assignment,misc]


if __name__ == "__main__":
    patch_constants(json.loads(sys.argv.pop(1)))
    from orchestrator.cli.main import main

    main()
