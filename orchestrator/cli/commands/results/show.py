"""`tpujob show`: one run: its state, its story, its results and files."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Json


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
    as_json: Json = False,
) -> None:
    """One run: what became of it, how long each part took, what it cost, and its files."""
    from orchestrator.cli.console import emit, emit_json
    from orchestrator.cli.session import open_session
    from orchestrator.report.results import report, report_lines

    session = open_session()
    session.recover()
    found, attempt = session.ledger.find_run(run)
    shape = report(session.ledger, found, attempt, session.now(found.cloud))
    if as_json:
        emit_json(shape)
    else:
        for line in report_lines(shape):
            emit(line)
    raise ExitCode(session.exit_code())
