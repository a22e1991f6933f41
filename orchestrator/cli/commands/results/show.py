"""`tpujob show`: one run: its state, its events, its results and files."""

from __future__ import annotations

from orchestrator.cli.console import console, emit_result
from orchestrator.cli.options import Json, RunName
from orchestrator.client import reports
from orchestrator.client.session import Session
from orchestrator.report.results import lines


def show(run: RunName, as_json: Json = False) -> int:
    """Show one run: its state and events, how long each part took, what it cost, and its files."""
    session = Session.open(reporter=console().reporter)
    found = reports.show(session, run)
    emit_result(found.as_json(), lines(found), as_json=as_json)
    return session.exit_code()
