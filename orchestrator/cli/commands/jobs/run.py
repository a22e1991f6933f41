"""`tpujob run|submit`: run a job, from its plan to proven absence; or start it and leave."""

from typing import Annotated

from orchestrator.api.jobs.planning import parted, read
from orchestrator.api.jobs.results import command_exit_code
from orchestrator.api.jobs.runs import RunOptions, start_run
from orchestrator.api.session.arguments import HOLD, seconds_if_given
from orchestrator.api.session.shown_logs import choice
from orchestrator.api.sweeps.sweeps import run_sweep
from orchestrator.cli.comparison import print_comparison
from orchestrator.cli.console import console, open_session
from orchestrator.cli.options import Cloud, EventStream, JobArguments, KeepOnFailure, Logs, Option, Project
from orchestrator.errors import UserError

_ATTACHED = (
    "a sweep stays with its command, which gives each slice to the next variant; it can be neither kept nor detached"
)


def run(
    job: JobArguments,
    keep: Annotated[
        str | None, Option(metavar="DURATION", help="Hold the slice for so long after a successful run, such as 30m.")
    ] = None,
    keep_on_failure: KeepOnFailure = None,
    detach: Annotated[
        bool, Option("--detach", "-d", help="Leave once the job has started; `tpujob attach` follows it.")
    ] = False,
    again: Annotated[
        bool, Option("--again", help="Of a sweep, run every variant, also those that succeeded before.")
    ] = False,
    logs: Logs = None,
    as_json: EventStream = False,
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Run a job: create a slice (or use a held one), train, collect, delete, prove the deletion.

    The job is that of a file, or a command after `--` that runs in a copy of the working directory. Options change the job for
    this run only. A file with `matrix:` or `variants:` is a sweep: each of its jobs is run, and a table compares them.
    """
    if as_json:
        console().streams_json = True
    if detach:
        console().log_is_data = False
    chosen = choice("--logs", logs)
    console().choose_logs("--logs", chosen)
    keep_s = seconds_if_given("--keep", keep, *HOLD)
    session = open_session(cloud, project)
    found, path = read(job.request(keep_on_failure))
    spec, sweep = parted(found)
    if spec is not None:
        if again:
            raise UserError("--again is for a sweep, which leaves out what succeeded before; one job is always run")
        options = RunOptions(keep_s=keep_s, detach=detach, logs=chosen, cloud_is_named=session.cloud_is_named)
        return command_exit_code(session, start_run(session, spec, path, options))
    assert sweep is not None
    if keep_s is not None or detach:
        raise UserError(_ATTACHED, hint="`tmux` or `nohup` keeps the command running")
    console().log_is_data = False  # stdout is for the table
    result = run_sweep(session, sweep, path, again=again, logs=chosen)
    ran = [each.run for each in result.variants if each.run is not None]
    if ran and not as_json:
        print_comparison(session, ran)
    return result.exit_code


def submit(job: JobArguments, as_json: EventStream = False, cloud: Cloud = None, project: Project = None) -> int:
    """Start a job and leave: the same as `run --detach`. The slice deletes itself when the job has ended."""
    return run(job, keep=None, detach=True, as_json=as_json, cloud=cloud, project=project)
