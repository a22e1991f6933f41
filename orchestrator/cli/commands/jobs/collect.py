"""`tpujob collect`: collect what a run left on its slice, then release the slice."""

from typing import Annotated

from orchestrator.cli.console import console
from orchestrator.cli.options import Option, RunName
from orchestrator.client.arguments import size
from orchestrator.client.jobs import ending
from orchestrator.client.jobs.results import command_exit_code
from orchestrator.client.session import Session


def collect(
    run: RunName,
    max_results: Annotated[
        str | None, Option(metavar="SIZE|none", help="Instead of the job's limits.max_results, such as 80GB.")
    ] = None,
) -> int:
    """Collect the results that a run left on its slice, then release the slice, proven. Only missing files are sent.

    Exits with the job's own code once everything is collected, with 65 until then. Ctrl-C leaves the slice held.
    """
    most_bytes = None if max_results is None else size("--max-results", max_results)
    session = Session.open(reporter=console().reporter)
    result = ending.collect(session, run, max_results=most_bytes)
    return command_exit_code(session, result)
