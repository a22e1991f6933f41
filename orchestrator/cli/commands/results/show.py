"""`tpujob show`: one run: its state, its events, its results and files."""

from __future__ import annotations

from typing import Annotated

from orchestrator.cli.console import emit, emit_json
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Argument, Json
from orchestrator.cli.session import open_session
from orchestrator.client import reports
from orchestrator.report.results import lines


def show(
    run: Annotated[str, Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
    as_json: Json = False,
) -> None:
    """Show one run: its state and events, how long each part took, what it cost, and its files."""
    session = open_session()
    found = reports.show(session, run)
    if as_json:
        emit_json(found.as_json())
    else:
        for line in lines(found):
            emit(line)
    raise ExitCode(session.exit_code())
