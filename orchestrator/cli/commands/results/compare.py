"""`tpujob compare`: the figures of several runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Csv, Json, Markdown

if TYPE_CHECKING:
    from orchestrator.client.session import Session


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run ids (their first letters do) or names of jobs.")
    ],
    as_json: Json = False,
    as_markdown: Markdown = False,
    as_csv: Csv = False,
) -> None:
    """Runs side by side: seconds in all, per iteration and per epoch with their spread, accuracy, dollars."""
    from orchestrator.errors import UserError

    if as_json + as_markdown + as_csv > 1:
        raise UserError("--json, --markdown and --csv exclude each other")
    from orchestrator.cli.session import open_session

    session = open_session()
    session.recover()
    print_table(session, runs, as_json=as_json, as_markdown=as_markdown, as_csv=as_csv)
    raise ExitCode(session.exit_code())


def print_table(
    session: Session, runs: list[str], *, as_json: bool = False, as_markdown: bool = False, as_csv: bool = False
) -> None:
    """One column for each run, in this order; a run that is named twice gets one."""
    from orchestrator.cli.console import emit, emit_json
    from orchestrator.report import compare as tables
    from orchestrator.report import costs
    from orchestrator.report.figures import figures

    ledger = session.ledger
    found = {run.id: (run, attempt) for run, attempt in map(ledger.find_run, runs)}
    columns = []
    for run, last in found.values():
        usd = costs.of_run(ledger, run, session.now(run.cloud))
        columns.append(figures(run, last, ledger.lease(last.lease_id) if last.lease_id else None, usd))
    if as_json:
        emit_json(tables.shape(columns))
    elif as_csv:
        emit(tables.csv_text(columns).rstrip("\n"))
    else:
        for line in (tables.markdown if as_markdown else tables.text)(columns):
            emit(line)
