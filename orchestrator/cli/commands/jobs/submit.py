"""`tpujob submit`: run a job and leave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from orchestrator.cli.commands.jobs.run import run
from orchestrator.cli.options import Argument, Cloud, EventStream, Option, Project


def submit(
    job: Annotated[Path, Argument(metavar="JOB.yaml", help="The job file.")],
    ttl: Annotated[
        str | None, Option(metavar="DURATION", help="Instead of the file's limits.max_duration, such as 2h.")
    ] = None,
    as_json: EventStream = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Start a job and leave: the same as `run --detach`. The slice deletes itself when the job has ended."""
    run(job, keep=None, ttl=ttl, detach=True, as_json=as_json, cloud=cloud, project=project)
