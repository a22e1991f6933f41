"""Prints runs side by side: `tpujob compare`, and the end of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.cli.console import emit, emit_json, emit_lines, emit_wrapped
from orchestrator.cli.tables import print_table

if TYPE_CHECKING:
    from orchestrator.api.session.session import Session


def print_comparison(
    session: Session,
    runs: Sequence[str],
    over: Sequence[str] = (),
    *,
    as_json: bool = False,
    as_markdown: bool = False,
    as_csv: bool = False,
) -> None:
    """Print one column for each run, in this order; with `over`, for each group of runs. Raises UnknownRun, UserError."""
    # Only here: `tpujob run` needs none of it unless its job is a sweep.
    from orchestrator.api.results import reports
    from orchestrator.report.comparison import compare as tables
    from orchestrator.report.comparison import groups
    from orchestrator.report.comparison.compare import remarks
    from orchestrator.report.comparison.groups import grouped, notes

    found = reports.compare(session, runs)
    groups_ = grouped(found, over) if over else ()
    if as_csv:
        emit((groups.csv_text(groups_) if over else tables.csv_text(found)).rstrip("\n"))
    elif as_json:
        emit_json(groups.as_json(groups_, over) if over else tables.as_json(found))
    elif as_markdown:
        emit_lines(groups.markdown(groups_) if over else tables.markdown(found))
    else:
        shown = groups.table(groups_) if over else tables.table(found)
        print_table(shown.head, shown.rows, optional=shown.optional, wraps=range(len(shown.head)), head_is_data=True)
        emit()
        emit_wrapped(notes(groups_) if over else remarks(found))
