"""`tpujob run`: run a job, from its plan to proven absence."""

from __future__ import annotations

from typing import Annotated

from orchestrator.cli.console import console
from orchestrator.cli.options import Cloud, EventStream, JobArguments, Option, Project
from orchestrator.client.arguments import seconds
from orchestrator.client.jobs.results import command_exit_code
from orchestrator.client.jobs.runs import RunOptions, run_request
from orchestrator.client.session import Session


def run(
    job: JobArguments,
    keep: Annotated[
        str | None,
        Option(metavar="DURATION", help="Hold the slice for so long after a successful run, such as 30m."),
    ] = None,
    detach: Annotated[
        bool, Option("--detach", "-d", help="Leave once the job has started; `tpujob attach` follows it.")
    ] = False,
    as_json: EventStream = False,
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Run a job: create a slice (or use a held one), train, collect, delete, prove the deletion.

    The job is that of a file, or a command after `--` that runs in a copy of the working directory. Options change the job for
    this run only.
    """
    if as_json:
        console().stream_json()
    if detach:
        console().print_only_ids()
    options = RunOptions(keep_s=None if keep is None else seconds("--keep", keep, "1m", "7d"), detach=detach)
    session = Session.open(cloud, project, reporter=console().reporter)
    result = run_request(session, job.request(), options)
    return command_exit_code(session, result)
