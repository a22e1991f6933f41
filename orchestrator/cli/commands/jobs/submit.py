"""`tpujob submit`: run a job and leave."""

from orchestrator.cli.commands.jobs.run import run
from orchestrator.cli.options import Cloud, EventStream, JobArguments, Project


def submit(job: JobArguments, as_json: EventStream = False, cloud: Cloud = None, project: Project = None) -> int:
    """Start a job and leave: the same as `run --detach`. The slice deletes itself when the job has ended."""
    return run(job, keep=None, detach=True, as_json=as_json, cloud=cloud, project=project)
