"""`tpujob gc`: delete what nobody claims any more, from any machine; or, with --local, finish what this one owes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from orchestrator import boot_clock
from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Json, Project

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.clouds.tpu.light_client import LightApi
    from orchestrator.engine.effects.base import Report, World
    from orchestrator.engine.leases.gc import Collected, Expired
    from orchestrator.settings import Target

LOCAL_S = 240.0  # for each teardown; below the timer's period, so that one that cannot be proven does not pile up
UNPROVEN = 75


def gc(
    zone: Annotated[
        list[str] | None, typer.Option("--zone", help="Only this zone or region; may be given several times.")
    ] = None,
    all_zones: Annotated[
        bool, typer.Option("--all-zones", help="Every zone of the project, which is the default.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Only finish what this machine's ledger owes: what a timer runs.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say something only when there is something to do.")] = False,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Delete every slice of tpujob in the project whose claim is over, whoever made it. Needs no state of this machine.

    Exits with 75 unless every zone was seen whole and everything unclaimed is proven absent.
    """
    from orchestrator.errors import UserError

    if local:
        if zone or all_zones or dry_run or as_json:
            raise UserError("--local goes with --quiet, --cloud and --project only")
        raise ExitCode(_finish_own(cloud, project, quiet=quiet))
    if zone and all_zones:
        raise UserError("give --zone or --all-zones, not both")
    raise ExitCode(_collect(zone or [], cloud, project, dry_run=dry_run, quiet=quiet, as_json=as_json))


def _finish_own(cloud: str | None, project: str | None, *, quiet: bool) -> int:
    from orchestrator.cli.console import emit
    from orchestrator.cli.session import open_session
    from orchestrator.ledger.ledger import GcRun

    session = open_session(cloud, project, quiet=quiet, light=True)
    before = {lease.id for lease in session.ledger.open_leases()}
    session.recover(budget_s=LOCAL_S, look=True)
    still_open = {lease.id for lease in session.ledger.open_leases()}
    target, done = session.target, len(before - still_open)
    code = session.exit_code()
    ran = GcRun(session.now(), target.kind, target.project, "local", code == 0, len(before), done)
    session.ledger.record_gc(ran)
    if not quiet:
        emit(f"{done} released, {len(session.unproven)} not proven, {len(still_open - set(session.unproven))} claimed")
    return code


def _collect(
    places: list[str], cloud: str | None, project: str | None, *, dry_run: bool, quiet: bool, as_json: bool
) -> int:
    from orchestrator import settings
    from orchestrator.cli.console import console, emit, emit_json
    from orchestrator.client.guarantee.teardown_client import connect
    from orchestrator.engine.leases.gc import collect_garbage as program
    from orchestrator.engine.runtime.interpreter import Interpreter

    target = settings.resolve(cloud, project, os.environ)
    zones = _zones(places)
    if not quiet:
        console().say("cloud", target.why)
    world = _World(connect(target, console().secrets), console().reporter.report)
    collection = program(target.project, zones, world.cloud.capabilities, dry_run=dry_run)
    collected = Interpreter(cast("World", world)).run(collection)
    code = 0 if collected.done else UNPROVEN
    if not dry_run:
        scope = "all" if zones is None else ",".join(zones)
        code = _tell_the_ledger(collected, scope, cloud, project, quiet=quiet) or code
    if as_json:
        emit_json(_shape(target, collected))
    elif not quiet or collected.ended or not collected.done:
        for line in _lines(collected):
            emit(line)
    for each in collected.ended.values():
        if not (each.gone or dry_run):
            console().loud(_banner(each, target))
    return code


@dataclass(frozen=True, slots=True)
class _World:
    """All that a gc run needs of this machine: a way to the cloud, and a clock to wait by."""

    cloud: LightApi
    report: Callable[[Report], None]

    def now(self, cloud: str | None = None) -> float:
        return boot_clock.boot_s()


def _zones(places: list[str]) -> list[str] | None:
    """A region means its zones. A zone that the shipped table does not know may exist all the same."""
    from orchestrator import catalog
    from orchestrator.core.text import names
    from orchestrator.errors import UserError

    found: list[str] = []
    for place in places:
        if names.zone_problem(place) is None:
            found.append(place)
        elif in_region := catalog.zones_of(place):
            found += in_region
        else:
            near = ", ".join(catalog.nearest_place(place)) or "us-central1-a"
            raise UserError(f"{place!r} is not a zone or region with TPUs", hint=f"nearest: {near}")
    return list(dict.fromkeys(found)) or None


def _tell_the_ledger(collected: Collected, scope: str, cloud: str | None, project: str | None, *, quiet: bool) -> int:
    """So that `doctor` knows, and so that what was deleted is no longer owed here. Without a ledger nothing is missing."""
    from orchestrator.cli.console import console
    from orchestrator.cli.session import open_session
    from orchestrator.errors import ConfigError
    from orchestrator.ledger.ledger import GcRun, LedgerUnavailable

    try:
        session = open_session(cloud, project, quiet=True, light=True)
        target = session.target
        ran = GcRun(session.now(), target.kind, target.project, scope, collected.done, collected.found, collected.deleted)
        session.ledger.record_gc(ran)
        session.recover(look=True)
        return session.exit_code()
    except (LedgerUnavailable, ConfigError) as error:
        if not quiet:
            console().say("warning", f"{error.message}; gc went on without it")
        return 0


# -- what it says ----------------------------------------------------------------------------------------------------


def _lines(collected: Collected) -> list[str]:
    from orchestrator.report.layout import day_clock

    verdicts = {True: "deleted", False: "would delete" if collected.dry_run else "NOT PROVEN ABSENT"}
    lines = []
    for name, ended in collected.ended.items():
        why = f"{ended.why}; {ended.problem}" if ended.problem else ended.why
        lines.append(_row(verdicts[ended.gone], name.node, name.zone, ended.view.accelerator_type, ended.price, why))
    for name, claimed in collected.claimed.items():
        kind = claimed.view.accelerator_type
        lines.append(_row("claimed", name.node, name.zone, kind, f"until {day_clock(claimed.until)}"))
    for name, odd in collected.doubtful.items():
        lines.append(_row("odd", name.node, name.zone, odd.view.accelerator_type, odd.why))
    lines += [_row("incomplete", zone, why) for zone, why in collected.incomplete.items()]
    counts = f"{len(collected.ended)} unclaimed, {len(collected.claimed)} claimed, {len(collected.doubtful)} odd"
    seen = f"{len(set(collected.zones) - set(collected.incomplete))} of {len(collected.zones)} zones seen whole"
    return [*lines, f"{counts}; {seen}"]


def _row(*words: str) -> str:
    return "\t".join(words)


def _banner(ended: Expired, target: Target) -> str:
    from orchestrator.clouds.google import gcloud_text
    from orchestrator.core.text.durations import format_usd_per_hour

    name, price = ended.view.name, format_usd_per_hour(ended.usd_per_hour)
    bill = "emulated, nobody pays for it" if target.kind == "emulated" else f"may be billing {price}"
    head = f"!! NOT VERIFIED GONE: {name.node} ({name.zone}, project {name.project}; {bill}): {ended.problem}"
    return head if target.kind == "emulated" else f"{head}\n   do now      {gcloud_text.delete_node(name)}"


def _shape(target: Target, collected: Collected) -> dict[str, Any]:
    return {
        "cloud": target.kind,
        "project": collected.project,
        "why": target.why,
        "dry_run": collected.dry_run,
        "done": collected.done,
        "zones": collected.zones,
        "ended": [
            _slice(ended) | {"why": ended.why, "gone": ended.gone, "problem": ended.problem}
            for ended in collected.ended.values()
        ],
        "claimed": [_slice(each) | {"until": each.until} for each in collected.claimed.values()],
        "odd": [_slice(each) | {"why": each.why} for each in collected.doubtful.values()],
        "incomplete": [{"zone": zone, "why": why} for zone, why in collected.incomplete.items()],
    }


def _slice(found: Any) -> dict[str, Any]:
    from orchestrator import catalog

    view = found.view
    price = catalog.usd_per_hour(view.accelerator_type, view.name.zone, spot=view.spot)
    return {
        "node": view.name.node,
        "zone": view.name.zone,
        "run": view.labels.get("tpujob-lease-id"),
        "owner": view.labels.get("tpujob-owner"),
        "accelerator_type": view.accelerator_type,
        "state": view.native_state,
        "usd_per_hour": price,
    }
