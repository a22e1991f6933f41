"""`tpujob up|stop|start|extend`: bring a TPU slice to READY and hold it until `tpujob down`."""

import math
import sys
from dataclasses import asdict, replace
from typing import Annotated

import typer

from orchestrator.api.session.arguments import HOLD, LIFE, WAIT, seconds, seconds_if_given
from orchestrator.api.session.session import Session
from orchestrator.api.slices import up as client
from orchestrator.api.slices.up import SliceOptions, UpResult, bring_up, preview_up
from orchestrator.capacity.capacity_request import Provisioning
from orchestrator.cli import completion
from orchestrator.cli.console import console, emit, emit_result, open_session
from orchestrator.cli.options import Argument, Cloud, Json, Name, Option, Project
from orchestrator.errors import NeedsConsent, UserError
from orchestrator.promise.lease.access import Via
from orchestrator.report.rows.layout import request_lines
from orchestrator.text.units import day_clock, format_duration

NEVER, DEFAULT_TTL = "never", "24h"
MADE = ("created", "recreated")  # the actions that make a slice, with the end that --ttl asks for


def up(
    name: Annotated[
        str | None, Argument(help="What to call it; by default your user name.", autocompletion=completion.slices)
    ] = None,
    zone: Annotated[
        str | None,
        Option(
            help="A zone, a region (its zones in order, the next on a stockout), a comma list, or `any`.",
            autocompletion=completion.places,
        ),
    ] = None,
    accelerator: Annotated[
        str | None, Option(help="Accelerator type, such as v5litepod-8 (or v5e-8).", autocompletion=completion.types)
    ] = None,
    runtime: Annotated[str | None, Option(help="Runtime version; by default the type's own.")] = None,
    spot: Annotated[bool, Option("--spot", help="Cheaper, but can be preempted at any time.")] = False,
    provisioning: Annotated[
        Provisioning | None, Option(help="How to get capacity; `queued` and `flex-start` use Google's queue.")
    ] = None,
    wait: Annotated[
        str | None, Option(metavar="DURATION", help="Wait up to this long for capacity, such as 6h: queue or retry.")
    ] = None,
    max_duration: Annotated[
        str | None,
        Option(
            "--ttl",
            "--max-duration",
            metavar="DURATION",
            help=f"The slice is deleted after this time at the latest; by default {DEFAULT_TTL}.",
        ),
    ] = None,
    idle: Annotated[
        str | None,
        Option(
            metavar="DURATION|never",
            help="The slice is deleted after this time without a job on it or a process from an SSH login on worker 0; "
            "by default 1h. It cannot be changed later.",
        ),
    ] = None,
    via: Annotated[
        Via | None,
        Option(
            metavar="external|internal|iap",
            help="How to reach its workers; by default what `access:` in your settings says, else external addresses, "
            "or IAP where a policy forbids them.",
        ),
    ] = None,
    yes: Annotated[
        bool, Option("--yes", "-y", help="Delete and create again a preempted slice without asking.")
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the plan and the API request, then stop; with --json, its exact bytes.")
    ] = False,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Bring a TPU slice to READY and hold it. Running it twice changes nothing."""
    options = SliceOptions(
        name=name,
        zone=zone,
        accelerator=accelerator,
        runtime=runtime,
        max_duration_s=seconds("--ttl", max_duration or DEFAULT_TTL, *LIFE),
        idle_s=_idle_s(idle),
        wait_s=seconds_if_given("--wait", wait, *WAIT) or 0.0,
        provisioning=_provisioning(spot, provisioning),
        recreate=yes,
        via=via,
    )
    session = open_session(cloud, project)
    if dry_run:
        request = preview_up(session, options)
        emit_result(request, request_lines(request), as_json=as_json)
        return
    result = _bring_up(session, options)
    if max_duration is not None and result.action not in MADE:
        end = f"{result.name} existed: its end stays {day_clock(result.ends_at)}"
        session.reporter.notice("note", f"{end}; `tpujob extend {result.name} --by 1h` moves it, not --ttl")
    ends = f"`tpujob down {result.name}`"
    if result.idle_s is not None and result.idle_s < result.ends_at - session.now():
        ends += f" or {format_duration(result.idle_s)} unused"
    session.reporter.notice(
        "ready", f"{result.name}: {result.action}; held until {ends}, {day_clock(result.ends_at)} at the latest"
    )
    line = f"{result.node}\t{result.accelerator}\t{result.zone}\tREADY"
    emit_result(asdict(result), [line], as_json=as_json)


def _bring_up(session: Session, options: SliceOptions) -> UpResult:
    """Ask on a terminal before a slice is deleted and created again."""
    try:
        return bring_up(session, options)
    except NeedsConsent as needed:
        if not sys.stdin.isatty():
            raise
        console().quiet()
        if not typer.confirm(f"{needed.message}. Delete it and create a new one?", err=True):
            raise
    return bring_up(session, replace(options, recreate=True))


def _idle_s(idle: str | None) -> float | None:
    """Return what `SliceOptions.idle_s` says of the option; None: it was not given."""
    return math.inf if idle == NEVER else seconds_if_given("--idle", idle, *HOLD)


def _provisioning(spot: bool, provisioning: Provisioning | None) -> Provisioning | None:
    """None: neither option was given."""
    if spot and provisioning not in (None, Provisioning.SPOT):
        raise UserError(f"--spot and --provisioning {provisioning} contradict each other", hint="leave one of them out")
    return Provisioning.SPOT if spot else provisioning


def start(name: Name = None, cloud: Cloud = None, project: Project = None) -> None:
    """Start a stopped slice again."""
    session = open_session(cloud, project)
    started = client.start(session, name)
    emit(f"{started.name}: {started.state} ({started.node})")


def stop(name: Name = None, cloud: Cloud = None, project: Project = None) -> None:
    """Stop a held slice of one host (Google stops no other): it keeps its disk, its name and its quota. This deletes nothing.

    To stop billing for sure, delete the slice: `tpujob down`. The end of the hold stays. No watchdog runs on it until `tpujob
    start`: at its end the next tpujob command or a gc timer deletes it.
    `tpujob status` counts its full price, as for every slice that is not proven absent; Google documents charges only while a
    TPU is READY, and tpujob cannot check the bill.
    """
    session = open_session(cloud, project)
    stopped = client.stop(session, name)
    emit(f"{stopped.name}: {stopped.state} ({stopped.node}); it holds its quota until `tpujob down {stopped.name}`")
    ends = f"no watchdog runs on it: at {day_clock(stopped.ends_at)} the next tpujob command or a gc timer deletes it"
    session.reporter.notice("note", f"{ends} (`tpujob install-gc`)")
    session.reporter.notice("note", "its full price is counted until it is absent; `tpujob start` starts it again")


def extend(
    name: Annotated[str, Argument(help="The slice's name, or a run's id.", autocompletion=completion.slices)],
    by: Annotated[str, Option(metavar="DURATION", help="How much longer, such as 2h.")],
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Move the end of a slice: its deadline, or the end of its hold. Nothing else ever moves a deadline."""
    by_s = seconds("--by", by, *HOLD)
    session = open_session(cloud, project)
    extended = client.extend(session, name, by_s)
    emit(f"{extended.name} ({extended.node}) ends by {day_clock(extended.ends_at)}")
