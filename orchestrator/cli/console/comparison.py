"""Prints runs side by side: `tpujob compare`, and the end of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.cli.console.output import emit, emit_json, emit_lines, emit_wrapped
from orchestrator.cli.console.tables import print_table

if TYPE_CHECKING:
    from orchestrator.report.comparison.figures import RunFigures


def print_comparison(
    found: Sequence[RunFigures],
    over: Sequence[str] = (),
    *,
    as_json: bool = False,
    as_markdown: bool = False,
    as_csv: bool = False,
) -> None:
    """Print one column for each run, in this order; with `over`, for each group of runs. Raises UserError."""
    from orchestrator.report.comparison import compare, groups  # `run` needs none of it unless its job is a sweep

    shape: Any = compare
    rows: Sequence[Any] = found
    if over:
        rows, shape = groups.grouped(found, over), groups
    if as_csv:
        emit(shape.csv_text(rows).rstrip("\n"))
    elif as_json:
        emit_json(groups.as_json(rows, over) if over else compare.as_json(found))
    elif as_markdown:
        emit_lines(shape.markdown(rows))
    else:
        shown = shape.table(rows)
        print_table(shown.head, shown.rows, optional=shown.optional, wraps=range(len(shown.head)), head_is_data=True)
        emit()
        emit_wrapped(shape.remarks(rows))
