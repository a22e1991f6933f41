"""`tpujob cancel`: end a run, delete its slice, prove it."""

from __future__ import annotations

from typing import Annotated

from orchestrator.cli.console import emit
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Argument
from orchestrator.cli.session import open_session
from orchestrator.client.jobs import ending


def cancel(
    run: Annotated[str, Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
) -> None:
    """End a run, detached or in another terminal: delete its slice and prove it. Artifacts are not collected.

    A job with `on: local` is stopped as by Ctrl-C, and keeps its artifacts.
    """
    session = open_session(quiet=True, ends=True)
    cancelled = ending.cancel(session, run)
    if cancelled.line:
        emit(cancelled.line)
    raise ExitCode(cancelled.exit_code)
