"""`tpujob compare`: the figures of several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cli.console import console, emit, emit_json, emit_lines, emit_wrapped
from orchestrator.cli.options import Csv, Json, Markdown, Over, Runs
from orchestrator.cli.tables import print_table
from orchestrator.client.results import reports
from orchestrator.client.session import Session
from orchestrator.errors import UserError
from orchestrator.report.comparison import compare as tables
from orchestrator.report.comparison import group_tables
from orchestrator.report.comparison.group_remarks import notes
from orchestrator.report.comparison.groups import grouped
from orchestrator.report.comparison.remarks import remarks


def compare(
    runs: Runs,
    over: Over = None,
    as_json: Json = False,
    as_markdown: Markdown = False,
    as_csv: Csv = False,
) -> int:
    """Compare runs: seconds in all, per iteration and per epoch with their spread, accuracy, dollars.

    With --over seed, runs that differ only in that parameter are one group: how many there are, the mean of each figure with
    its sample standard deviation, and what they cost together. Only runs that succeeded are averaged.
    """
    if as_json + as_markdown + as_csv > 1:
        raise UserError("--json, --markdown and --csv exclude each other")
    names = [name for text in over or () for name in text.split(",")]
    session = Session.open(reporter=console().reporter)
    print_comparison(session, runs, names, as_json=as_json, as_markdown=as_markdown, as_csv=as_csv)
    return session.exit_code()


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
    found = reports.compare(session, runs)
    groups = grouped(found, over) if over else ()
    if as_csv:
        emit((group_tables.csv_text(groups) if over else tables.csv_text(found)).rstrip("\n"))
    elif as_json:
        emit_json(group_tables.as_json(groups, over) if over else tables.as_json(found))
    elif as_markdown:
        emit_lines(group_tables.markdown(groups) if over else tables.markdown(found))
    else:
        shown = group_tables.table(groups) if over else tables.table(found)
        print_table(shown.head, shown.rows, optional=shown.optional, wraps=range(len(shown.head)), head_is_data=True)
        emit()
        emit_wrapped(notes(groups) if over else remarks(found))
