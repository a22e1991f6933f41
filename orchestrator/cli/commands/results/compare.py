"""`tpujob compare`: the figures of several runs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cli.console import console, emit, emit_json, emit_lines, emit_wrapped
from orchestrator.cli.options import Csv, Json, Markdown, Runs
from orchestrator.cli.tables import print_table
from orchestrator.client.results import reports
from orchestrator.client.session import Session
from orchestrator.errors import UserError
from orchestrator.report.comparison import compare as tables
from orchestrator.report.comparison.remarks import remarks


def compare(
    runs: Runs,
    as_json: Json = False,
    as_markdown: Markdown = False,
    as_csv: Csv = False,
) -> int:
    """Compare runs: seconds in all, per iteration and per epoch with their spread, accuracy, dollars."""
    if as_json + as_markdown + as_csv > 1:
        raise UserError("--json, --markdown and --csv exclude each other")
    session = Session.open(reporter=console().reporter)
    print_comparison(session, runs, as_json=as_json, as_markdown=as_markdown, as_csv=as_csv)
    return session.exit_code()


def print_comparison(
    session: Session, runs: Sequence[str], *, as_json: bool = False, as_markdown: bool = False, as_csv: bool = False
) -> None:
    """Print one column for each run, in this order. Raises UnknownRun."""
    found = reports.compare(session, runs)
    if as_csv:
        emit(tables.csv_text(found).rstrip("\n"))
    elif as_json:
        emit_json(tables.as_json(found))
    elif as_markdown:
        emit_lines(tables.markdown(found))
    else:
        shown = tables.table(found)
        print_table(shown.head, shown.rows, optional=shown.optional, wraps=range(len(shown.head)), head_is_data=True)
        emit()
        emit_wrapped(remarks(found))
