"""`tpujob offers`: which TPUs there are, where, and for how much; after `--refresh`, which of them the project has."""

from typing import Annotated, Literal

from orchestrator.api.slices.offers import Offers, is_place
from orchestrator.cli import completion
from orchestrator.cli.console.offer_tables import gke_table, table
from orchestrator.cli.console.output import console, emit_json, open_client
from orchestrator.cli.console.tables import print_table
from orchestrator.cli.options import Argument, Cloud, Json, Option, Project
from orchestrator.errors import UserError
from orchestrator.report.offers import MANY_HOSTS, gke_as_json, offered_on_gke


def offers(
    what: Annotated[
        list[str] | None,
        Argument(
            metavar="[TYPE|ZONE]...",
            help="The same without the option: v5e, v6e-8, us-east5, us-central1-a.",
            autocompletion=completion.types_and_places,
        ),
    ] = None,
    kind: Annotated[
        str | None,
        Option(
            "--type",
            metavar="TYPE",
            help="An accelerator type such as v6e-8, or a generation such as v6e.",
            autocompletion=completion.types,
        ),
    ] = None,
    zone: Annotated[
        str | None, Option(help="A zone, a region, or a comma list of them.", autocompletion=completion.places)
    ] = None,
    spot: Annotated[bool, Option("--spot", help="Only offers with a spot price, the cheapest first.")] = False,
    refresh: Annotated[
        bool, Option("--refresh", help="Ask the API what the project has, and remember the answer.")
    ] = False,
    on: Annotated[
        Literal["tpu", "gke"],
        Option(
            "--on", help="`gke`: the types of GKE and the machine types of their node pools, without zones and prices."
        ),
    ] = "tpu",
    as_json: Json = False,
    cloud: Cloud = None,
    project: Project = None,
) -> None:
    """List the TPUs there are: types, topologies, zones, and dated prices of a whole slice per hour."""
    if on == "gke":
        kind, zone = _chosen(what or [], kind, zone)
        if zone or spot or refresh or cloud or project:
            raise UserError("--on gke goes with a type and --json only: which node pools a cluster has is not asked")
        _print_gke(kind, as_json=as_json)
        return
    client = open_client(cloud, project)
    kind, zone = _chosen(what or [], kind, zone)
    found = client.shown_offers(accelerator=kind, zone=zone, spot=spot, refresh=refresh, all_sizes=as_json)
    if as_json:
        emit_json(found.as_json())
        return
    rows = found.in_project
    if rows:
        shown = table(rows, by_zone=found.by_zone)
        print_table(shown.head, shown.rows, right=shown.right, optional=(4, 3))
    for stage, text in _notes(found, client.session.target.project):
        console().notice(stage, text)


def _print_gke(kind: str | None, *, as_json: bool) -> None:
    found = offered_on_gke(kind)
    if as_json:
        emit_json({"offers": [gke_as_json(row) for row in found]})
        return
    rows = [row for row in found if kind or row.hosts <= MANY_HOSTS]
    shown = gke_table(rows)
    print_table(shown.head, shown.rows, right=shown.right, optional=(4,))
    if len(rows) < len(found):
        text = f"slices of more than {MANY_HOSTS} hosts: `tpujob offers tpu7x --on gke`, and so on"
        console().reporter.notice("larger", text)
    console().reporter.notice(
        "gke", "what GKE has, by the shipped table; a cluster has the types of its own node pools"
    )


def _chosen(words: list[str], kind: str | None, zone: str | None) -> tuple[str | None, str | None]:
    """Return the type and the places that words and options name together. Raises UserError for two types."""
    places = [word for word in words if is_place(word)]
    kinds = [word for word in words if word not in places] + ([kind] if kind else [])
    if len(kinds) > 1:
        raise UserError(f"one type at a time, not {' and '.join(kinds)}", hint="or a generation, such as v5e")
    return (kinds[0] if kinds else None), ",".join([*places, *([zone] if zone else [])]) or None


def _notes(found: Offers, project: str) -> list[tuple[str, str]]:
    notes = [("prices", f"{found.prices_as_of}, for an hour of the whole slice; empty is unknown")]
    if found.larger_left_out:
        notes.append(("larger", f"slices of more than {MANY_HOSTS} hosts: `tpujob offers v5p`, and so on"))
    known = found.availability
    if known is None:
        return [*notes, ("project", "what yours really has: `tpujob offers --refresh`")]
    left_out = len(found.rows) - len(found.in_project)
    without = f"; {left_out} offers of the price table that it does not have are left out" if left_out else ""
    notes.append(("project", f"what {project} has, {known.age_note}{without}"))
    return [*notes, *(("project", f"{zone} did not answer: {why}") for zone, why in known.unreachable.items())]
