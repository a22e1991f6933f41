"""`tpujob collect`: collect what a run left on its slice, then release the slice."""

from __future__ import annotations

import math
from typing import Annotated

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Argument, Option
from orchestrator.cli.session import open_session
from orchestrator.client.jobs import ending
from orchestrator.core.text.sizes import parse_size
from orchestrator.errors import UserError


def collect(
    run: Annotated[str, Argument(metavar="RUN", help="A run id (its first letters do) or a job's name.")],
    max_results: Annotated[
        str | None, Option(metavar="SIZE|none", help="Instead of the job's limits.max_results, such as 80GB.")
    ] = None,
) -> None:
    """Collect the results that a run left on its slice, then release the slice, proven. Only missing files are sent.

    Exits with the job's own code once everything is collected, with 65 until then. Ctrl-C leaves the slice held.
    """
    most_bytes = None if max_results is None else _bytes(max_results)
    session = open_session()
    result = ending.collect(session, run, max_results=most_bytes)
    raise ExitCode(result.exit_code)


def _bytes(text: str) -> float:
    try:
        return math.inf if text == "none" else parse_size(text)
    except ValueError as error:
        raise UserError(f"--max-results {text}: {error}, or none") from error
