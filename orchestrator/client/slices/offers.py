"""`offers`: which TPUs there are, where and for how much, and after `refresh` which of them the project has."""

from dataclasses import dataclass
from typing import Any

from orchestrator import catalog
from orchestrator.catalog import gke
from orchestrator.client.session import Session
from orchestrator.client.slices import availability
from orchestrator.core.planning.availability import Availability
from orchestrator.core.planning.location_rules import accelerator_problem, places_near, split_places
from orchestrator.core.text.names import shown
from orchestrator.errors import UserError
from orchestrator.places.vms.plans import known_availability
from orchestrator.report.offers import MANY_HOSTS, Offered, chosen, offered


@dataclass(frozen=True, slots=True)
class Offers:
    """Types in zones, with dated prices of a whole slice per hour. `availability` None: the project was never asked."""

    prices_as_of: str
    rows: tuple[Offered, ...]  #: those of the types and zones that were asked for, the cheapest first within a type
    availability: Availability | None
    by_zone: bool  #: were zones, or one type, asked for?
    larger_left_out: bool  #: are there slices of more than MANY_HOSTS hosts that are not in `rows`?

    @property
    def in_project(self) -> list[Offered]:
        """The rows without those that the project does not have."""
        return [row for row in self.rows if row.has is not False]

    def as_json(self) -> dict[str, Any]:
        known = self.availability
        asked = {"asked_at": known.asked_at, "silent": dict(known.unreachable)} if known else None
        rows = [row.as_json() for row in self.rows]
        return {"prices_as_of": self.prices_as_of, "project": asked, "offers": rows}


def offers(
    session: Session,
    *,
    accelerator: str | None = None,
    zone: str | None = None,
    spot: bool = False,
    refresh: bool = False,
    all_sizes: bool = False,
) -> Offers:
    """Return the offers of an accelerator type or generation, in a comma list of zones and regions; None: of all.

    `refresh` asks the API which of them the project has, and remembers the answer. Without an accelerator and without
    `all_sizes`, slices of more than MANY_HOSTS hosts are left out. Raises UserError for an unknown type or zone, CloudError
    when no zone answers.
    """
    session.recover()
    known = availability.refresh(session) if refresh else known_availability(session)
    rows = list(offered(known, session.target.grants))
    types = _types(accelerator, rows_of={row.accelerator for row in rows})
    zones = _zones(zone, rows_of={row.zone for row in rows})
    largest = None if accelerator or all_sizes else MANY_HOSTS
    return Offers(
        prices_as_of=catalog.PRICES_AS_OF,
        rows=tuple(chosen(rows, types=types, zones=zones, spot=spot, largest_hosts=largest)),
        availability=known,
        by_zone=bool(zone) or accelerator in types,
        larger_left_out=largest is not None and any(row.kind and row.kind.hosts > largest for row in rows),
    )


def _types(text: str | None, rows_of: set[str]) -> tuple[str, ...]:
    if text is None:
        return ()
    kinds = [kind for name in catalog.types() if (kind := catalog.lookup(name))]
    meant = tuple(kind.name for kind in kinds if kind.generation == catalog.generation(text))
    text = catalog.canonical(text)
    asked = meant or (text,)
    if not any(name in rows_of for name in asked) and any(gke.slices(name) for name in asked):
        raise UserError(
            f"--type {accelerator_problem(asked[0])}", hint=f"`tpujob offers {text} --on gke` lists what GKE has"
        )
    if meant or text in rows_of:
        return meant or (text,)
    generations = ", ".join(dict.fromkeys(kind.generation for kind in kinds))
    raise UserError(f"--type {accelerator_problem(text)}", hint=f"or a generation: {generations}")


def _zones(text: str | None, rows_of: set[str]) -> tuple[str, ...]:
    found: list[str] = []
    for place in split_places(text or ""):
        meant = [zone for zone in sorted(rows_of) if place in (zone, zone.rpartition("-")[0])]
        if not meant:
            raise UserError(f"--zone `{shown(place)}` has no TPUs, by the price table", hint=places_near(place))
        found += meant
    return tuple(dict.fromkeys(found))
