"""The page of `tpujob top --open`: the table of all runs, which renews itself while it is served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.report.page.html import Hide, render_table
from orchestrator.report.page.summary import EMULATED


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A row: its texts, each with the value by which it is sorted (None: the text), and the address of its page, or empty."""

    cells: Sequence[tuple[str, float | None]]
    link: str
    ended: bool


def top_page(
    rows: Sequence[LiveRow],
    *,
    head: Sequence[str],
    right: Sequence[int],
    place: str,
    remarks: Sequence[str],
    problems: Sequence[str],
    emulated: bool,
    hide: Hide,
) -> str:
    """Return the page. `head`: the headings, of which those in `right` are of numbers; `place`: which cloud, and when."""
    page: dict[str, Any] = {
        "title": "What goes on",
        "place": place,
        "head": head,
        "right": right,
        "rows": rows,
        "remarks": remarks,
        "problems": problems,
        "emulated": EMULATED if emulated else "",
    }
    return render_table(page, hide)
