"""Writes the table of bounds in docs/guarantee.md from `orchestrator/promises.py`, where bounds are changed."""

from __future__ import annotations

import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "guarantee.md"
sys.path.insert(0, str(PAGE.parents[1]))

from orchestrator.promises import PROMISES  # noqa: E402

BEGIN, END = "<!-- bounds: written by docs/guarantee/bounds.py -->", "<!-- end of bounds -->"


def table() -> str:
    lines = ["| class | event | deleted by | Google Cloud | emulated |", "|---|---|---|---|---|"]
    for promise in PROMISES.values():
        cells = (promise.class_, promise.event, promise.deleted_by, promise.google, promise.emulated)
        lines.append("".join(f"| {cell} " if cell else "| " for cell in cells) + "|")
    return "\n".join(lines)


def page_text(page: str) -> str:
    """Return the page with a current table, and everything else as it was."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
