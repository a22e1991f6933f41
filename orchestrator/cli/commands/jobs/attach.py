"""`tpujob attach`: follow a detached run to its end."""

from __future__ import annotations

from typing import Annotated

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Argument
from orchestrator.cli.session import open_session
from orchestrator.client.jobs import attach as attaching


def attach(
    run: Annotated[str, Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
) -> None:
    """Follow a detached run to its end: log, artifacts, proof. Ctrl-C leaves it running."""
    session = open_session()
    result = attaching.attach(session, run)
    raise ExitCode(result.exit_code)
