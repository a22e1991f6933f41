"""`tpujob run|submit`: run a job, from its plan to proven absence; or start it and leave."""

import json
from typing import Annotated

from orchestrator.api.session.shown_logs import choice
from orchestrator.cli.console.comparison import print_comparison
from orchestrator.cli.console.output import console, emit, emit_lines, open_client
from orchestrator.cli.options import Cloud, EventStream, JobArguments, KeepOnFailure, Logs, Option, Project, WatchNodes
from orchestrator.errors import UserError

Check = Annotated[
    bool, Option("--check", help="Run it only if `tpujob check` finds, or has found, that the program fits its chips.")
]
Resume = Annotated[
    str | None,
    Option(
        "--resume",
        metavar="RUN",
        help="Go on with a run that has lost its slice, also one of another machine, from what it saved to `bucket:`.",
    ),
]
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
        bool,
        Option(
            "--again",
            help="With a RUN in place of a file: run its code, versions and arguments again. Of a sweep: run every variant, "
            "also those that succeeded before.",
        ),
    ] = False,
    check: Check = False,
    resume: Resume = None,
    logs: Logs = None,
    watch_nodes: WatchNodes = False,
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
    console().choose_logs(chosen)
    client = open_client(cloud, project, logs=chosen, watch_nodes=watch_nodes)
    request = job.request(keep_on_failure)
    names_run = again and job.file is not None and not job.file.is_file() and job.file.suffix not in (".yaml", ".yml")
    if names_run and resume is not None:
        raise UserError("--again runs a run anew, and --resume goes on with one: give one of them")
    found = client.load_again(str(job.file), request) if names_run else client.load(request)
    if not found.is_sweep:
        if again and not names_run:
            hint = "`tpujob run --again RUN` runs what a run has run; one job file is always run"
            raise UserError("--again is for a run, or for a sweep, which leaves out what succeeded before", hint=hint)
        return client.exit_code(client.begin(found, keep=keep, detach=detach, check=check, resume=resume))
    if check:
        raise UserError("--check is for one job; `tpujob check` takes a job of a sweep by `--set`")
    if resume is not None:
        raise UserError("--resume is for one job; a sweep leaves out what succeeded before")
    if watch_nodes:
        raise UserError("--watch-nodes is for one job: the jobs of a sweep share the nodes of the cluster")
    if keep is not None or detach:
        raise UserError(_ATTACHED, hint="`tmux` or `nohup` keeps the command running")
    console().log_is_data = False  # stdout is for the table
    result = client.sweep(found, again=again)
    ran = [each.run for each in result.variants if each.run is not None]
    if ran and not as_json:
        print_comparison(client.figures(ran))
    return result.exit_code


def submit(
    job: JobArguments,
    check: Check = False,
    resume: Resume = None,
    as_json: EventStream = False,
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Start a job and leave: the same as `run --detach`. The slice deletes itself when the job has ended.

    A job with `on_preemption: restart`, one that may wait for a slice for more than an hour, and a sweep go into the queue:
    `tpujob queue` shows them.
    """
    if resume is None and not check:
        client = open_client(cloud, project)
        found = client.load(job.request(None))
        if (why := client.submits_to_queue(found)) is not None:
            if as_json:
                console().streams_json = True
            console().log_is_data = False
            added = client.enqueue(found, why)
            if as_json:
                emit(json.dumps({"event": "queued", "jobs": [each.as_json() for each in added]}))
            else:
                emit_lines(each.id for each in added)
            client.first_pass()  # from here on the job is in the queue, whatever the exit code says of a slice
            return 0
    return run(job, keep=None, detach=True, check=check, resume=resume, as_json=as_json, cloud=cloud, project=project)
