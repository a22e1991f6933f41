"""`tpujob offers`: which TPUs there are, where, and for how much; after `--refresh`, which of them the project has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.exit import ExitCode
from orchestrator.cli.options import Cloud, Json, Project

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.planning.availability import Availability


def offers(
    kind: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", help="An accelerator type such as v6e-8, or a generation such as v6e."),
    ] = None,
    zone: Annotated[str | None, typer.Option(help="A zone, a region, or a comma list of them.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Only what has a spot price, the cheapest first.")] = False,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Ask the API what the project really has, and remember it.")
    ] = False,
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """Show which TPUs there are: types, shapes, zones, and dated prices of a whole slice per hour."""
    from orchestrator import catalog
    from orchestrator.cli.console import emit, emit_json
    from orchestrator.cli.session import open_session
    from orchestrator.client.slices import availability
    from orchestrator.report import offers as table

    session = open_session(cloud, project, light=True)
    session.recover()
    said = availability.refresh(session) if refresh else availability.known(session)
    rows = list(table.offered(said, session.target.grants))
    types, zones = _types(kind, rows_of={row.accelerator for row in rows}), _zones(zone, {row.zone for row in rows})
    found = table.chosen(
        rows, types=types, zones=zones, spot=spot, largest_hosts=None if kind or as_json else table.MANY_HOSTS
    )
    if as_json:
        asked = {"asked_at": said.asked_at, "silent": dict(said.silent)} if said else None
        emit_json({"prices_as_of": catalog.PRICES_AS_OF, "project": asked, "offers": [row.shape() for row in found]})
        raise ExitCode(session.exit_code())
    shown = [row for row in found if row.has is not False]
    for line in table.lines(shown, by_zone=bool(zone) or kind in types) if shown else ():
        emit(line)
    session.reporter.say("prices", f"{catalog.PRICES_AS_OF}, for an hour of the whole slice; empty is unknown")
    if not kind and any(row.kind and row.kind.hosts > table.MANY_HOSTS for row in rows):
        session.reporter.say(
            "larger", f"slices of more than {table.MANY_HOSTS} hosts: `tpujob offers --type v5p`, and so on"
        )
    _say_whose(session, said, left_out=len(found) - len(shown))
    raise ExitCode(session.exit_code())


def _say_whose(session: Session, said: Availability | None, *, left_out: int) -> None:
    """Is this the world's or the project's?"""
    if said is None:
        session.reporter.say("project", "what yours really has: `tpujob offers --refresh`")
        return
    without = f"; {left_out} offers of the price table that it does not have are left out" if left_out else ""
    session.reporter.say("project", f"what {session.target.project} has, {said.asked}{without}")
    for zone, why in said.silent.items():
        session.reporter.say("project", f"{zone} did not answer: {why}")


def _types(text: str | None, rows_of: set[str]) -> tuple[str, ...]:
    from orchestrator import catalog
    from orchestrator.core.planning.location_rules import accelerator_problem
    from orchestrator.errors import UserError

    if text is None:
        return ()
    kinds = [kind for name in catalog.types() if (kind := catalog.lookup(name))]
    meant = tuple(kind.name for kind in kinds if text in (kind.generation, kind.family))
    text = catalog.canonical(text)
    if meant or text in rows_of:
        return meant or (text,)
    generations = ", ".join(dict.fromkeys(kind.generation for kind in kinds))
    raise UserError(f"--type {accelerator_problem(text)}", hint=f"or a generation: {generations}")


def _zones(text: str | None, rows_of: set[str]) -> tuple[str, ...]:
    from orchestrator import catalog
    from orchestrator.core.planning.location_rules import shown, split_places
    from orchestrator.errors import UserError

    found: list[str] = []
    for place in split_places(text or ""):
        meant = [zone for zone in sorted(rows_of) if place in (zone, zone.rpartition("-")[0])]
        if not meant:
            near = ", ".join(catalog.nearest_place(place))
            hint = f"nearest: {near}" if near else "`tpujob offers` without --zone counts the zones of every type"
            raise UserError(f"--zone `{shown(place)}` has no TPUs, by the price table", hint=hint)
        found += meant
    return tuple(dict.fromkeys(found))
