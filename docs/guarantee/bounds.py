"""Writes the tables of bounds in docs/bounds.md (all) and docs/guarantee.md (the main ones) from `drill/bounds.py`."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parents[1]
sys.path.insert(0, str(DOCS.parent))

from orchestrator.drill.bounds import PROMISES, Part, PromisedBound, PromiseWorld, bound  # noqa: E402
from orchestrator.text.units import format_duration  # noqa: E402

BEGIN, END = "<!-- bounds: written by docs/guarantee/bounds.py -->", "<!-- end of bounds -->"
MAIN = (
    "command",
    "guardian",
    "guardian of a create",
    "watchdog",
    "watchdog of a detached run",
    "watchdog of a held slice",
    "watchdog of a create",
    "outage",
    "gc",
    "gc of a detached run",
    "stuck",
    "frozen",
)


def formula(promise: PromisedBound) -> str:
    """Return the terms of a bound with their lengths on Google Cloud; empty if it has no formula of its own."""

    def term(part: Part) -> str:
        return part.letter or f"{part.label} {format_duration(part.seconds)}"

    return " + ".join(term(part) for part in bound(promise, PromiseWorld()).parts) if promise.formula else ""


def table(header: str, rows: list[tuple[str, ...]]) -> str:
    lines = [header, "|" + "---|" * (header.count("|") - 1)]
    lines += ["".join(f"| {cell} " if cell else "| " for cell in cells) + "|" for cells in rows]
    return "\n".join(lines)


def full_table() -> str:
    rows = [(p.class_, p.event, p.deleted_by, p.google, p.emulated, formula(p)) for p in PROMISES.values()]
    return table(
        "| class | event | deleted by | Google Cloud | emulated | formula, with the terms of Google Cloud |", rows
    )


def main_table() -> str:
    rows = [(p.class_, p.event, p.deleted_by, p.google) for p in (PROMISES[name] for name in MAIN)]
    return table("| class | event | deleted by | bound on Google Cloud |", rows)


TABLES = {"bounds.md": full_table, "guarantee.md": main_table}


def page_text(name: str, page: str) -> str:
    """Return the page with a current table, and everything else as it was."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{TABLES[name]()}\n{END}{after}"


if __name__ == "__main__":
    for name in TABLES:
        path = DOCS / name
        path.write_text(page_text(name, path.read_text(encoding="utf-8")), encoding="utf-8")
