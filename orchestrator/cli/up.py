"""`tpujob up`: bring a TPU slice to READY and hold it until `tpujob down`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from orchestrator.cli.options import Cloud, Project


def up(
    name: Annotated[str | None, typer.Argument(help="What to call it; by default your user name.")] = None,
    zone: Annotated[
        str | None, typer.Option(help="A zone, a region (its zones in order, the next on a stockout), or a comma list.")
    ] = None,
    accelerator: Annotated[str | None, typer.Option(help="Accelerator type, such as v5litepod-8.")] = None,
    runtime: Annotated[str | None, typer.Option(help="Runtime version; by default the type's own.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Cheaper, but can be taken away at any time.")] = False,
    max_duration: Annotated[str, typer.Option(help="It is deleted after this time at the latest.")] = "24h",
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
    from orchestrator.cli import slices
    from orchestrator.cli.session import Session, default_handle
    from orchestrator.cli.talk import emit, emit_json
    from orchestrator.core import names
    from orchestrator.core.durations import parse_duration
    from orchestrator.core.lease import Purpose
    from orchestrator.core.plan import Wish, make
    from orchestrator.engine import hold, prepare
    from orchestrator.errors import TpujobError, UserError

    handle = name or default_handle()
    if problem := names.job_name_problem(handle):
        raise UserError(f"{handle!r} {problem}", hint="give another NAME")
    try:
        hold_s = parse_duration(max_duration)
    except ValueError as error:
        raise UserError(f"--max-duration {max_duration}: {error}") from error
    if not 360 <= hold_s <= 7 * 86400:
        raise UserError(f"--max-duration {max_duration}: must be between 6m and 7d")

    session = Session.open(cloud, project)
    session.announce()
    session.alone(f"up {handle}")
    existing = session.held(handle)
    if existing is not None:
        _check_same(existing.accelerator_type, accelerator, existing.handle)
    wish = Wish(
        accelerator=accelerator or (existing.accelerator_type if existing else "v5litepod-8"),
        places=tuple(part.strip() for part in zone.split(",") if part.strip()) if zone else (),
        runtime=runtime,
        spot=spot,
        max_duration_s=hold_s,
    )
    plan = make(wish, default_zone=session.target.zone)
    if existing is not None and zone and existing.name.zone not in {candidate.zone for candidate in plan.candidates}:
        raise UserError(
            f"{handle} is in {existing.name.zone}, not in {zone}", hint=f"`tpujob down {handle}`, or give another NAME"
        )
    if existing is None or dry_run:
        slices.show_plan(session, plan)
    drafts = prepare.drafts(plan, slices.place(session), handle=handle, purpose=Purpose.HOLD)
    if dry_run:
        emit_json(session.preview(drafts[0][1]))
        for draft, _ in drafts:
            session.forget_keys(draft.id)
        raise typer.Exit(session.exit_code())

    session.recover(spare=handle)

    def wanted(recreate: bool) -> hold.Wanted:
        return hold.Wanted(handle, drafts, session.held(handle), hold_s, recreate)

    brought = session.on_cloud(lambda can: hold.up(wanted(yes), can))
    if isinstance(brought.error, hold.NeedsConsent) and sys.stdin.isatty():
        session.talk.quiet()
        if typer.confirm(f"{brought.error.message}. Delete it and make a new one?", err=True):
            brought = session.on_cloud(lambda can: hold.up(wanted(True), can))
    for draft, _ in drafts:
        if brought.lease is None or draft.id != brought.lease.id:
            session.forget_keys(draft.id)
    if brought.tenure.released is not None:
        session.note(brought.tenure.released)
    if brought.error is not None:
        session.talk.fail(brought.error)
        raise typer.Exit(session.exit_code(brought.exit_code))
    lease = brought.lease
    if lease is None:
        raise TpujobError("up ended without a slice and without an error")
    session.talk.say(
        "ready", f"{handle}: {brought.action}; held until `tpujob down {handle}`, {max_duration} at the most"
    )
    emit(f"{lease.name.node}\t{lease.accelerator_type}\t{lease.name.zone}\tREADY")
    raise typer.Exit(session.exit_code())


def _check_same(existing: str, wanted: str | None, handle: str) -> None:
    from orchestrator.errors import UserError

    if wanted is not None and wanted != existing:
        raise UserError(
            f"{handle} is a {existing}, not a {wanted}", hint=f"`tpujob down {handle}` first, or give another NAME"
        )
