"""`tpujob show`: one run: its state, its events, its results and files."""

from orchestrator.cli.console import emit, emit_result, emit_stages, open_session
from orchestrator.cli.options import Json, RunOrNewest
from orchestrator.cli.tables import on_terminal, print_table
from orchestrator.client.results import reports
from orchestrator.report import results
from orchestrator.report.results import RunReport


def show(run: RunOrNewest = None, as_json: Json = False) -> None:
    """Show one run: its state and events, how long each part took, what it cost, and its files."""
    session = open_session()
    found = reports.show(session, run)
    if as_json or not on_terminal():
        emit_result(found.as_json(), results.lines(found), as_json=as_json)
    else:
        _print(found)


def _print(found: RunReport) -> None:
    emit_stages([*results.head_lines(found), *results.figure_lines(found)], state=found.state)
    for table in (results.event_table(found), results.file_table(found)):
        if table.rows:
            emit()
            print_table(table.head, table.rows, right=table.right, wraps=(1,))
    emit()
    emit_stages([*results.remark_lines(found), *results.profile_lines(found), f"in       {found.directory}"])
