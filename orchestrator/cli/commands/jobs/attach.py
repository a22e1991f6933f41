"""`tpujob attach`: follow a detached run to its end."""

from __future__ import annotations

from orchestrator.cli.console import console
from orchestrator.cli.options import RunName
from orchestrator.client.jobs import attach as attaching
from orchestrator.client.jobs.results import command_exit_code
from orchestrator.client.session import Session


def attach(run: RunName) -> int:
    """Follow a detached run to its end: log, artifacts, proof. Ctrl-C leaves it running."""
    session = Session.open(reporter=console().reporter)
    result = attaching.attach(session, run)
    return command_exit_code(session, result)
