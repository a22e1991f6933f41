"""`tpujob show|compare`: one run with its state, its events, its results and files, or the figures of several side by side."""

from orchestrator.cli.console.comparison import print_comparison
from orchestrator.cli.console.output import emit, emit_result, emit_stages, open_client
from orchestrator.cli.console.tables import on_terminal, print_table
from orchestrator.cli.options import Csv, Json, Markdown, Over, RunOrNewest, Runs
from orchestrator.errors import UserError
from orchestrator.report import results
from orchestrator.report.results import RunReport


def show(run: RunOrNewest = None, as_json: Json = False) -> None:
    """Show one run: its state and events, how long each part took, what it cost, and its files."""
    found = open_client().show(run)
    if as_json or not on_terminal():
        emit_result(found.as_json(), results.lines(found), as_json=as_json)
    else:
        _print_run(found)


def _print_run(found: RunReport) -> None:
    emit_stages([*results.head_lines(found), *results.figure_lines(found)], state=found.state)
    for table in (results.event_table(found), results.file_table(found)):
        if table.rows:
            emit()
            print_table(table.head, table.rows, right=table.right, wraps=(1,))
    emit()
    emit_stages([*results.remark_lines(found), *results.profile_lines(found)])


def compare(
    runs: Runs, over: Over = None, as_json: Json = False, as_markdown: Markdown = False, as_csv: Csv = False
) -> None:
    """Compare runs: seconds in all, per iteration and per epoch with their spread, accuracy, dollars.

    With --over seed, runs that differ only in that parameter are one group: how many there are, the mean of each figure with
    its sample standard deviation, and what they cost together. Only runs that succeeded are averaged.
    """
    if as_json + as_markdown + as_csv > 1:
        raise UserError("--json, --markdown and --csv exclude each other")
    names = [name for text in over or () for name in text.split(",")]
    print_comparison(open_client().figures(runs), names, as_json=as_json, as_markdown=as_markdown, as_csv=as_csv)
