"""`offers`: which TPUs there are, where and for how much, and which of them the API said that the project has.

`tpujob offers --refresh` asks; `offers`, `plan`, `run` and `up` read the kept answer.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import catalog
from orchestrator.api.session import connections
from orchestrator.api.session.session import Session
from orchestrator.capacity import location_rules
from orchestrator.capacity.availability import Availability
from orchestrator.capacity.location_rules import accelerator_problem, places_near, split_places
from orchestrator.catalog import gke
from orchestrator.errors import CloudError, UserError
from orchestrator.places.vms.known import AVAILABILITY, asked_project, known_availability
from orchestrator.report.offers import MANY_HOSTS, Offered, chosen, offered
from orchestrator.system import whole_file
from orchestrator.system.lazy import Later
from orchestrator.text.names import for_display

if TYPE_CHECKING:
    from concurrent import futures

    from orchestrator.api.session.reporter import Reporter
    from orchestrator.places.tpu.api.client import TpuApi
else:  # to ask the API
    futures = Later("concurrent.futures")

is_place = location_rules.is_place  # of the words of a command
AT_ONCE = 8  # zones that are asked at the same time


def ask_again(session: Session) -> Availability:
    """Ask every zone, keep the answer and return it. Raises CloudError when no zone answers."""
    cloud = connections.connect(session.target, session.reporter.secrets)
    zones = cloud.zones(session.target.project).rows
    found = _ask(cloud, session.target.project, zones, asked_project(session), session.reporter)
    whole_file.replace(session.directory / AVAILABILITY, json.dumps(found.to_dict(), indent=1))
    return found


def _ask(cloud: TpuApi, project: str, zones: tuple[str, ...], full_name: str, reporter: Reporter) -> Availability:
    answers: dict[str, tuple[str, ...]] = {}
    errors: dict[str, CloudError] = {}
    with futures.ThreadPoolExecutor(AT_ONCE) as pool:
        asked = {zone: pool.submit(cloud.accelerator_types, project, zone) for zone in zones}
        for number, (zone, answer) in enumerate(asked.items()):
            reporter.progress("project", f"asking the API what {project} has: {number} of {len(zones)} zones answered")
            try:
                answers[zone] = answer.result().rows
            except CloudError as error:
                errors[zone] = error
    if errors and not answers:
        raise next(iter(errors.values()))
    silent = {zone: error.message for zone, error in errors.items()}
    return Availability(full_name, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), answers, silent)


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
    known = ask_again(session) if refresh else known_availability(session)
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
            raise UserError(f"--zone `{for_display(place)}` has no TPUs, by the price table", hint=places_near(place))
        found += meant
    return tuple(dict.fromkeys(found))
