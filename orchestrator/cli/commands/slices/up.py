"""`tpujob up|stop|start|extend`: bring a TPU slice to READY and hold it until `tpujob down`."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer

from orchestrator.api.client import DEFAULT_IDLE
from orchestrator.api.session.arguments import Provisioning, Via
from orchestrator.api.slices.up import UpResult
from orchestrator.cli import completion
from orchestrator.cli.console.output import console, emit, emit_result, open_client
from orchestrator.cli.console.tables import request_lines
from orchestrator.cli.options import Argument, Cloud, Json, Name, Option, Owner, Project
from orchestrator.errors import NeedsConsent, UserError
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
    client = open_client(cloud, project)
    life = max_duration or DEFAULT_TTL
    unused = DEFAULT_IDLE if idle is None else None if idle == NEVER else idle
    way = _provisioning(spot, provisioning)
    if dry_run:
        request = client.plan_up(name, accelerator, zone, runtime, way, wait, life, via, idle=unused)
        emit_result(request, request_lines(request), as_json=as_json)
        return
    where: dict[str, Any] = {
        "accelerator": accelerator,
        "zone": zone,
        "runtime": runtime,
        "provisioning": way,
        "via": via,
    }
    bring_up = partial(client.up, name, wait=wait, max_duration=life, idle=unused, **where)
    result = _asking(bring_up, recreate=yes)
    if max_duration is not None and result.action not in MADE:
        end = f"{result.name} existed: its end stays {day_clock(result.ends_at)}"
        console().notice("note", f"{end}; `tpujob extend {result.name} --by 1h` moves it, not --ttl")
    ends = f"`tpujob down {result.name}`"
    if result.idle_s is not None and result.idle_s < result.ends_at - client.session.now():
        ends += f" or {format_duration(result.idle_s)} unused"
    console().notice(
        "ready", f"{result.name}: {result.action}; held until {ends}, {day_clock(result.ends_at)} at the latest"
    )
    line = f"{result.node}\t{result.accelerator}\t{result.zone}\tREADY"
    emit_result(asdict(result), [line], as_json=as_json)


def _asking(bring_up: Callable[..., UpResult], *, recreate: bool) -> UpResult:
    """Ask on a terminal before a slice is deleted and created again."""
    try:
        return bring_up(recreate=recreate)
    except NeedsConsent as needed:
        if not sys.stdin.isatty():
            raise
        console().quiet()
        if not typer.confirm(f"{needed.message}. Delete it and create a new one?", err=True):
            raise
    return bring_up(recreate=True)


def _provisioning(spot: bool, provisioning: Provisioning | None) -> Provisioning | None:
    """None: neither option was given."""
    if spot and provisioning not in (None, Provisioning.SPOT):
        raise UserError(f"--spot and --provisioning {provisioning} contradict each other", hint="leave one of them out")
    return Provisioning.SPOT if spot else provisioning


def start(name: Name = None, cloud: Cloud = None, project: Project = None) -> None:
    """Start a stopped slice again."""
    started = open_client(cloud, project).start(name)
    emit(f"{started.name}: {started.state} ({started.node})")


def stop(name: Name = None, cloud: Cloud = None, project: Project = None) -> None:
    """Stop a held slice of one host (Google stops no other): it keeps its disk, its name and its quota. This deletes nothing.

    To stop billing for sure, delete the slice: `tpujob down`. The end of the hold stays. No watchdog runs on it until `tpujob
    start`: at its end the next tpujob command or a gc timer deletes it.
    `tpujob status` counts its full price, as for every slice that is not proven absent; Google documents charges only while a
    TPU is READY, and tpujob cannot check the bill.
    """
    stopped = open_client(cloud, project).stop(name)
    emit(f"{stopped.name}: {stopped.state} ({stopped.node}); it holds its quota until `tpujob down {stopped.name}`")
    ends = f"no watchdog runs on it: at {day_clock(stopped.ends_at)} the next tpujob command or a gc timer deletes it"
    console().notice("note", f"{ends} (`tpujob install-gc`)")
    console().notice("note", "its full price is counted until it is absent; `tpujob start` starts it again")


def extend(
    name: Annotated[str, Argument(help="The slice's name, or a run's id.", autocompletion=completion.slices)],
    by: Annotated[str, Option(metavar="DURATION", help="How much longer, such as 2h.")],
    owner: Owner = None,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Move the end of a slice: its deadline, or the end of its hold. Nothing else ever moves a deadline."""
    extended = open_client(cloud, project).extend(name, by, owner=owner)
    emit(f"{extended.name} ({extended.node}) ends by {day_clock(extended.ends_at)}")
