"""What `tpujob offers` lists: types, topologies, zones and dated prices, and which of them the project or GKE has. Pure.

One row for each type, or with zones one for each type and zone. An unknown price is empty, never zero. Of GKE the table has the
types and the node pools that have them, and no prices: which pools a cluster has is its own matter.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator import catalog
from orchestrator.capacity.availability import Availability
from orchestrator.capacity.grants import Grant
from orchestrator.catalog import AcceleratorType, gke
from orchestrator.catalog.gke import GkeSlice
from orchestrator.errors import UserError
from orchestrator.text.names import for_display

UNPRICED = float("inf")
MANY_HOSTS = 8  # larger slices are listed only for a given type or generation


@dataclass(frozen=True, slots=True)
class Offered:
    """One type in one zone. `kind` None: newer than the shipped table. `has` None: the project was not asked."""

    accelerator: str
    kind: AcceleratorType | None
    zone: str
    usd_per_hour: float | None = None
    spot_usd_per_hour: float | None = None
    has: bool | None = None
    granted: int | None = None  # slices of it, or chips
    granted_spot: int | None = None

    def price(self, *, spot: bool) -> float | None:
        """Return the price to a user with these grants: 0.0 where granted, None where unknown."""
        if self.granted_spot if spot else self.granted:
            return 0.0
        return self.spot_usd_per_hour if spot else self.usd_per_hour

    def rank(self, *, spot: bool) -> float:
        """Return the price for sorting; an unknown one comes last."""
        price = self.price(spot=spot)
        return UNPRICED if price is None else price

    def as_json(self) -> dict[str, Any]:
        of_kind = ("generation", "topology", "chips", "cores", "hosts", "hbm_gib")
        return {
            "accelerator_type": self.accelerator,
            **{key: getattr(self.kind, key, None) for key in of_kind},
            "runtime_version": self.kind.default_runtime if self.kind else None,
            "zone": self.zone,
            "region": self.zone.rpartition("-")[0],
            "usd_per_hour": self.usd_per_hour,
            "spot_usd_per_hour": self.spot_usd_per_hour,
            "granted": self.granted,
            "granted_spot": self.granted_spot,
            "project_has_it": self.has,
        }


def offered(known: Availability | None, grants: Sequence[Grant]) -> Iterator[Offered]:
    """Yield every type and zone of the shipped table, and what the project has beyond it."""
    listed = set()
    for offer in catalog.offers():
        for name in offer.accelerator_types:
            kind = catalog.lookup(name)
            if kind is None or (name, offer.zone) in listed:
                continue
            listed.add((name, offer.zone))
            prices = (offer.ondemand_usd_chip_hour, offer.spot_usd_chip_hour)
            plain, spot = (None if price is None else round(price * kind.chips, 5) for price in prices)
            yield _to_project(Offered(name, kind, offer.zone, plain, spot), known, grants)
    for zone, names in known.zones.items() if known else ():
        for name in names:
            if (name, zone) not in listed:
                yield _to_project(Offered(name, catalog.lookup(name), zone), known, grants)


def _to_project(row: Offered, known: Availability | None, grants: Sequence[Grant]) -> Offered:
    """Return the row with what the project has of it."""

    def count(*, spot: bool) -> int | None:
        own = (grant.count for grant in grants if grant.covers(row.accelerator, row.zone, spot=spot))
        return next(own, None)

    has = known.has(row.accelerator, row.zone) if known else None
    return replace(row, has=has, granted=count(spot=False), granted_spot=count(spot=True))


def chosen(
    rows: Iterable[Offered], *, types: Sequence[str], zones: Sequence[str], spot: bool, largest_hosts: int | None
) -> list[Offered]:
    """Return the rows of these types and zones (empty: all), the cheapest first within a type."""
    kept = [
        row
        for row in rows
        if (not types or row.accelerator in types)
        and (not zones or row.zone in zones)
        and (not spot or row.price(spot=True) is not None)
        and (largest_hosts is None or row.kind is None or row.kind.hosts <= largest_hosts)
    ]
    place = {name: number for number, name in enumerate(catalog.types())}

    def rank(row: Offered) -> tuple[int, str, float]:
        return place.get(row.accelerator, len(place)), row.accelerator, row.rank(spot=spot)

    return sorted(kept, key=rank)


def offered_on_gke(text: str | None = None) -> list[GkeSlice]:
    """Return every form of a type or generation, the default first; None: of all. Raises UserError for an unknown one."""
    forms = [form for name in gke.types() for form in gke.slices(name)]
    if text is None:
        return forms
    name = catalog.canonical(text)
    found = [form for form in forms if name == form.kind.name or form.kind.generation == catalog.generation(text)]
    if not found:
        generations = ", ".join(dict.fromkeys(form.kind.generation for form in forms))
        near = gke.nearest(name)
        advice = f"; nearest: {', '.join(near)}" if near else ""
        raise UserError(
            f"--type `{for_display(text)}` is not a type that GKE has{advice}", hint=f"or a generation: {generations}"
        )
    return found


def gke_as_json(row: GkeSlice) -> dict[str, Any]:
    """Return a form with the labels of its nodes."""
    return {
        "accelerator_type": row.kind.name,
        "generation": row.kind.generation,
        "topology": row.topology,
        "chips": row.kind.chips,
        "hosts": row.hosts,
        "chips_per_host": row.chips_per_host,
        "hbm_gib": row.kind.hbm_gib,
        "machine_type": row.machine_type,
        "node_labels": {gke.ACCELERATOR_LABEL: row.accelerator, gke.TOPOLOGY_LABEL: row.topology},
        "flex_start": row.flex_start,
    }
