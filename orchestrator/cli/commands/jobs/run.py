"""`tpujob run`: run a job file, from its plan to proven absence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from orchestrator.cli.console import console
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Argument, Cloud, EventStream, Option, Project, duration
from orchestrator.cli.session import open_session
from orchestrator.client.jobs.runs import RunOptions, run_file


def run(
    job: Annotated[Path, Argument(metavar="JOB.yaml", help="The job file.")],
    keep: Annotated[
        str | None,
        Option(metavar="DURATION", help="Hold the slice for so long after a successful run, such as 30m."),
    ] = None,
    ttl: Annotated[
        str | None, Option(metavar="DURATION", help="Instead of the file's limits.max_duration, such as 2h.")
    ] = None,
    detach: Annotated[
        bool, Option("--detach", "-d", help="Leave once the job has started; `tpujob attach` follows it.")
    ] = False,
    as_json: EventStream = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Run a job: create a slice (or use a held one), train, collect, delete, prove the deletion."""
    if as_json:
        console().stream_json()
    options = RunOptions(
        keep_s=None if keep is None else duration("--keep", keep, least="1m", most="7d"),
        max_duration_s=None if ttl is None else duration("--ttl", ttl, least="6m", most="7d"),
        detach=detach,
    )
    session = open_session(cloud, project)
    result = run_file(session, job, options)
    raise ExitCode(result.exit_code)
