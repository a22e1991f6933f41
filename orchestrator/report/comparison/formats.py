"""The forms of a comparison: Markdown of a table and its notes, CSV of figures, and mean ± σ as people write it. Pure."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from orchestrator.core.text.table import Table
from orchestrator.report.comparison.figures import Measure
from orchestrator.report.files.metrics import short

Plain = Callable[[float], str]

NOTHING = "-"
MOST_PLACES = 6  # decimals; a smaller σ is written as a power of ten
LARGE = 1e9


def markdown_lines(found: Table, notes: Iterable[str]) -> list[str]:
    """Return the lines of the table, and a list of the notes."""
    head, *body = [[_cell(cell) for cell in line] for line in (found.head, *found.rows)]
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return [
        *(f"| {' | '.join(line)} |" for line in (head, rule, *body)),
        "",
        *(f"- {line.replace('<', '&lt;')}" for line in notes),
    ]


def csv_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a header with the columns that any row has, and a line for each row; empty where a row has none."""
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(dict.fromkeys(chain.from_iterable(rows))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def mean_and_std(found: Measure, plain: Plain = short) -> str:
    """Return `0.8194 ± 0.0017`: σ with two digits, the mean with as many decimals. Without σ the mean as `plain` has it."""
    mean, std = found.mean, found.std
    if mean is None:
        return NOTHING
    if not std:
        return plain(mean) + (" ± 0" if std == 0 else "")
    places = max(0, 1 - math.floor(math.log10(std)))
    if places > MOST_PLACES or max(abs(mean), std) >= LARGE:
        return f"{mean:.4g} ± {std:.2g}"
    return f"{mean:,.{places}f} ± {std:,.{places}f}"


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "\\`")
