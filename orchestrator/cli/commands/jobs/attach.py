"""`tpujob attach`: follow a detached run to its end."""

from orchestrator.api.jobs import runs as attaching
from orchestrator.api.jobs.results import command_exit_code
from orchestrator.api.session.shown_logs import choice
from orchestrator.cli.console import console, open_session
from orchestrator.cli.options import Logs, RunName


def attach(run: RunName, logs: Logs = None) -> int:
    """Follow a detached run to its end: log, artifacts, proof. Ctrl-C leaves it running."""
    chosen = choice("--logs", logs)
    console().choose_logs("--logs", chosen)
    session = open_session()
    return command_exit_code(session, attaching.attach(session, run, logs=chosen))
