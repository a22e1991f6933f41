"""`tpujob doctor`: which layers of the guarantee are live here, which slices are open, and their worst-case cost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from orchestrator.api.guarantee.doctor import Diagnosis
from orchestrator.api.guarantee.health_checks import SliceHealth
from orchestrator.api.session.arguments import Via
from orchestrator.cli import completion
from orchestrator.cli.console.output import emit_json, emit_wrapped, open_client
from orchestrator.cli.options import Argument, Cloud, Json, Option, Project
from orchestrator.report.rows.layout import format_cost
from orchestrator.text.units import day_clock, format_usd

TEXT = 28  # columns before what a check says
MARKS = {True: "live", False: "NOT", None: "-"}


def doctor(
    job: Annotated[
        Path | None,
        Argument(
            metavar="JOB.yaml",
            help="A job file: how the workers of this job would be reached, where its `access:` is not that of your settings.",
            autocompletion=completion.job_files,
        ),
    ] = None,
    via: Annotated[
        Via | None, Option(metavar="external|internal|iap", help="Look at this way to the workers of new slices.")
    ] = None,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> int:
    """Show which layers of the guarantee are live for this machine and project, the open slices, and their worst case.

    It also tries the way to the workers: that of your settings, of a job file, or of --via.
    Exits with 0 if tpujob is usable here, whatever else could be better.
    """
    diagnosis = open_client(cloud, project).diagnose(job, via)
    emit_json(diagnosis.as_json()) if as_json else emit_wrapped(lines(diagnosis), TEXT)
    return diagnosis.exit_code


def lines(diagnosis: Diagnosis) -> Iterator[str]:
    """Yield the lines of the checks, of the slices, and of what they cost at worst."""
    for check in diagnosis.checks:
        yield f"{MARKS[check.live]:<5}{check.name:<{TEXT - 5}}{check.text}"
        if check.fix:
            yield f"{'':<{TEXT}}→ {check.fix}"
    for each in diagnosis.slices or ():
        yield _slice_line(each)
    if diagnosis.slices:
        total = format_usd(diagnosis.worst_usd)
        yield f"worst case, if nothing acts before the deadlines: {total} more on Google Cloud"
        if not diagnosis.is_bounded:
            yield "and nothing bounds it if this machine is gone by then: neither watchdog nor gc is known to be live"


def _slice_line(each: SliceHealth) -> str:
    lease = each.lease
    armed = sum(watchdog.armed for watchdog in each.watchdogs)
    return "\t".join(
        (
            lease.handle,
            lease.name.node,
            each.state,
            str(lease.mode),
            f"claimed until {day_clock(each.claimed_until)}",
            f"deadline {day_clock(lease.deadline)}",
            f"watchdog armed on {armed} of {len(each.watchdogs)}",
            f"worst case {format_cost(each.worst_usd, lease.cloud)}",
        )
    )
