"""`tpujob up`: bring a TPU slice to READY and hold it until `tpujob down`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Project
from orchestrator.core.planning.provisioning import Provisioning

if TYPE_CHECKING:
    from orchestrator.core.lease.lease import Lease
    from orchestrator.engine.leases.obligations import Draft

IDLE, NEVER = "1h", "never"


def up(
    name: Annotated[str | None, typer.Argument(help="What to call it; by default your user name.")] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="A zone, a region (its zones in order, the next on a stockout), a comma list, or `any`."),
    ] = None,
    accelerator: Annotated[str | None, typer.Option(help="Accelerator type, such as v5litepod-8 (or v5e-8).")] = None,
    runtime: Annotated[str | None, typer.Option(help="Runtime version; by default the type's own.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Cheaper, but can be taken away at any time.")] = False,
    provisioning: Annotated[
        Provisioning | None, typer.Option(help="How to get it; `queued` and `flex-start` stand in Google's queue.")
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Wait so long for capacity, such as 6h: in the queue, or asking again."),
    ] = None,
    max_duration: Annotated[
        str, typer.Option("--ttl", "--max-duration", help="It is deleted after this time at the latest.")
    ] = "24h",
    idle: Annotated[
        str,
        typer.Option(
            metavar="DURATION|never",
            help="It is deleted when no job ran on it and nothing that was started over SSH lived on its worker 0 for so long.",
        ),
    ] = IDLE,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete and make again what was preempted, unasked.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and the exact API request, then stop.")
    ] = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Bring a TPU slice to READY and hold it. Doing it twice is harmless."""
    from orchestrator import catalog
    from orchestrator.cli.console import console, emit, emit_json
    from orchestrator.cli.options import duration
    from orchestrator.cli.session import open_session
    from orchestrator.client import plan_report
    from orchestrator.client.plan_inputs import known_to
    from orchestrator.client.session import default_handle
    from orchestrator.core.lease.lease import LeaseState, Purpose
    from orchestrator.core.planning.capacity_request import CapacityRequest
    from orchestrator.core.planning.plan import make
    from orchestrator.core.text import names
    from orchestrator.core.text.durations import format_duration
    from orchestrator.engine.jobs import prepare
    from orchestrator.engine.slices import held
    from orchestrator.errors import TpujobError, UserError
    from orchestrator.report.times import day_clock

    accelerator = catalog.canonical(accelerator) if accelerator else None
    handle = name or default_handle()
    if problem := names.job_name_problem(handle):
        raise UserError(f"{handle!r} {problem}", hint="give another NAME")
    hold_s = duration("--ttl", max_duration, least="6m", most="7d")
    idle_s = None if idle == NEVER else duration("--idle", idle, least="1m", most="7d")
    wait_s = duration("--wait", wait, least="1s", most="7d") if wait is not None else 0.0
    way = _way(spot, provisioning)

    places = tuple(part.strip() for part in zone.split(",")) if zone is not None else ()
    if "" in places:
        raise UserError(f"--zone {zone!r}: a part of it is empty", hint="such as us-central1 or us-central1-a,us-west4")

    session = open_session(cloud, project)
    session.announce()
    session.alone(f"up {handle}")
    for ending in [lease for lease in session.named(handle) if lease.state is LeaseState.DOWN]:
        (released,) = session.on_cloud(
            lambda capabilities, one=ending: held.down((one,), capabilities, reason="tpujob up")  # type: ignore[misc]
        )
        session.note(released)
        if not released.gone:
            raise ExitCode(session.exit_code())  # no second slice while the first may be alive
    existing = session.held(handle)
    if existing is not None:
        _check_same(existing, accelerator, runtime, way)
    wish = CapacityRequest(
        accelerator=accelerator or (existing.accelerator_type if existing else "v5litepod-8"),
        places=places,
        runtime=runtime,
        provisioning=way or Provisioning.ON_DEMAND,
        max_duration_s=hold_s,
    )
    plan = make([wish], default_zone=session.target.zone, wait_s=wait_s, known=known_to(session))
    if existing is not None and zone and existing.name.zone not in {candidate.zone for candidate in plan.candidates}:
        raise UserError(
            f"{handle} is in {existing.name.zone}, not in {zone}", hint=f"`tpujob down {handle}`, or give another NAME"
        )
    if existing is None or dry_run:
        plan_report.show_plan(session, plan)
        if idle_s is not None and idle_s < hold_s:
            ends = f"it is deleted after {format_duration(idle_s)} without a job or a login"
            session.reporter.say("plan", f"{ends} (`--idle` says otherwise, `--idle {NEVER}` switches it off)")
    drafted: list[str] = []

    def draft() -> tuple[Draft, ...]:
        made = prepare.drafts(plan, plan_report.place(session), handle=handle, purpose=Purpose.HOLD, idle_s=idle_s)
        drafted.extend(lease.id for lease, _ in made)
        return made

    session.recover(spare=handle)
    drafts = draft()
    if dry_run:
        emit_json(session.preview(drafts[0][1]))
        for lease_id in drafted:
            session.forget_keys(lease_id)
        raise ExitCode(session.exit_code())

    def wanted(recreate: bool) -> held.UpRequest:
        return held.UpRequest(handle, drafts, session.held(handle), hold_s, recreate, wait_s=wait_s, redraft=draft)

    brought = session.on_cloud(lambda capabilities: held.up(wanted(yes), capabilities))
    if isinstance(brought.error, held.NeedsConsent) and sys.stdin.isatty():
        console().quiet()
        if typer.confirm(f"{brought.error.message}. Delete it and make a new one?", err=True):
            brought = session.on_cloud(lambda capabilities: held.up(wanted(True), capabilities))
    if brought.owed.released is not None:
        session.note(brought.owed.released)
    for lease_id in drafted:
        if (brought.lease is None or lease_id != brought.lease.id) and lease_id not in session.unproven:
            session.forget_keys(lease_id)
    if brought.error is not None:
        session.reporter.fail(brought.error)
        raise ExitCode(session.exit_code(brought.exit_code))
    lease = brought.lease
    if lease is None:
        raise TpujobError("up ended without a slice and without an error")
    until = day_clock(lease.ends_at)  # of one that was there already, `--ttl` moves nothing
    session.reporter.say(
        "ready", f"{handle}: {brought.action}; held until `tpujob down {handle}`, {until} at the latest"
    )
    emit(f"{lease.name.node}\t{lease.accelerator_type}\t{lease.name.zone}\tREADY")
    raise ExitCode(session.exit_code())


def _way(spot: bool, provisioning: Provisioning | None) -> Provisioning | None:
    """None: nothing was said about it."""
    from orchestrator.errors import UserError

    if spot and provisioning not in (None, Provisioning.SPOT):
        raise UserError(f"--spot and --provisioning {provisioning} contradict each other", hint="leave one of them out")
    return Provisioning.SPOT if spot else provisioning


def _check_same(existing: Lease, accelerator: str | None, runtime: str | None, way: Provisioning | None) -> None:
    """What exists is not turned into something else; say so instead of passing over an option."""
    from orchestrator.core.lease.lease import Purpose
    from orchestrator.errors import UserError

    if existing.purpose is not Purpose.HOLD:
        raise UserError(f"{existing.handle} is the slice of a running job", hint="give another NAME")
    wanted = {
        "accelerator": (accelerator, existing.accelerator_type),
        "runtime": (runtime, existing.runtime_version),
        "provisioning": (way, existing.provisioning),
    }
    for what, (asked, there) in wanted.items():
        if asked is not None and asked != there:
            raise UserError(
                f"{existing.handle} exists with {what} {there}, not {asked}",
                hint=f"`tpujob down {existing.handle}` first, or give another NAME",
            )
