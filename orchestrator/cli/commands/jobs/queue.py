"""`tpujob queue`: list the jobs that wait and run, add and change some, and carry the queue on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from orchestrator.api.jobs.planning import JobRequest
from orchestrator.api.queue.queue import QueueEntry, QueueReport, nothing_goes_on
from orchestrator.api.queue.shown import HEAD, cells, lines
from orchestrator.api.queue.shown import added as added_line
from orchestrator.cli import completion
from orchestrator.cli.console.output import console, emit, emit_json, emit_lines, open_client
from orchestrator.cli.console.tables import print_table
from orchestrator.cli.options import Argument, Cloud, Json, Option, Project
from orchestrator.errors import UserError

MOST_ENDED = 10  # of those that ended, the newest, in the table
Jobs = Annotated[
    list[str], Argument(metavar="JOB...", help="Ids (their first letters do), or names of jobs or sweeps.")
]


def listing(as_json: Json = False, cloud: Cloud = None, project: Project = None) -> None:
    """Jobs that wait, and start by themselves: list them, and carry the queue on."""
    _show(open_client(cloud, project).queue.report(), as_json=as_json)


def _show(report: QueueReport, *, as_json: bool) -> None:
    if as_json:
        emit_json(report.as_json())
        return
    if report.jobs:
        ended = [each for each in report.jobs if each.ended_at is not None]
        jobs = [each for each in report.jobs if each not in ended[MOST_ENDED:]]
        print_table(HEAD, map(cells, jobs), states=(2,), optional=(3, 4), shortens=(1,), wraps=(6,))
        if len(jobs) < len(report.jobs):
            console().notice("note", f"{len(report.jobs) - len(jobs)} more have ended; --json has them")
    else:
        emit("the queue is empty; `tpujob queue add JOB.yaml` adds a job")
    for stage, text in lines(report):
        console().notice(stage, text)


def add(
    files: Annotated[
        list[Path], Argument(metavar="JOB.yaml...", help="Job files.", autocompletion=completion.job_files)
    ],
    name: Annotated[str | None, Option("--name", metavar="SWEEP", help="What the list calls them together.")] = None,
    priority: Annotated[int, Option("--priority", metavar="N", help="Those with a higher one begin first.")] = 0,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="KEY=VALUE", help="Any key of the job files, such as tpu.zone=any.")
    ] = None,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Add jobs to the queue, or all jobs of a sweep, with their code as it is now.

    All are added, or, after a mistake in one, none.
    """
    client = open_client(cloud, project)
    try:
        added = client.queue.add(
            *(client.load(JobRequest(file=each, settings=settings)) for each in files), name=name, priority=priority
        )
    except UserError as error:
        error.message += "; nothing was added" if len(files) > 1 else ""
        raise
    _tell(added, as_json=as_json)
    if not as_json:
        console().notice("queue", added_line(client.queue.report(), len(added)))
        if (alone := nothing_goes_on()) is not None:
            console().notice("note", alone)


def _tell(entries: Sequence[QueueEntry], *, as_json: bool) -> None:
    if as_json:
        emit_json([each.as_json() for each in entries])
    else:
        emit_lines("\t".join((each.id, each.name, each.state, each.why)).rstrip() for each in entries)


def run_queue(
    forever: Annotated[bool, Option("--forever", help="Stay, and make a pass every so often, until Ctrl-C.")] = False,
    every: Annotated[str, Option("--every", metavar="DURATION", help="With --forever: how often.")] = "1m",
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Make a pass: look after what runs, collect what ended, start what can start.

    Any number of these may run at once, on any machine that has the same `queue:` in its settings.
    """
    console().log_is_data = False
    _show(open_client(cloud, project).queue.run(forever=forever, every=every), as_json=as_json)


def hold(names: Jobs, as_json: Json = False, cloud: Cloud = None, project: Project = None) -> None:
    """Keep jobs that wait from starting."""
    _tell(open_client(cloud, project).queue.hold(*names), as_json=as_json)


def release(names: Jobs, as_json: Json = False, cloud: Cloud = None, project: Project = None) -> None:
    """Let jobs that are held start."""
    _tell(open_client(cloud, project).queue.release(*names), as_json=as_json)


def remove(names: Jobs, as_json: Json = False, cloud: Cloud = None, project: Project = None) -> None:
    """Take jobs out of the queue; one that has a slice is canceled."""
    client = open_client(cloud, project)
    found = client.queue.remove(*names)
    if any(each.ended_at is None for each in found):
        found_ids = {each.id for each in found}
        found = tuple(each for each in client.queue.run().jobs if each.id in found_ids)
    _tell(found, as_json=as_json)


def move(
    names: Annotated[str, Argument(metavar="JOB", help="An id, or the name of a job or sweep.")],
    first: Annotated[bool, Option("--first", help="Before all others.")] = False,
    priority: Annotated[int | None, Option("--priority", metavar="N", help="To this priority.")] = None,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Move a job before the others, or to another priority."""
    if first == (priority is not None):
        raise UserError("give --first or --priority")
    _tell(open_client(cloud, project).queue.move(names, first=first, priority=priority), as_json=as_json)
