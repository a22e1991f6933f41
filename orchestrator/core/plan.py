"""A plan: what will be asked of the cloud, with a reason for each choice, before anything happens. Pure.

`run` and `up` do what their plan printed: candidates in order, the next one only after a stockout and only when the one
before is proven gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.catalog import AcceleratorType
from orchestrator.core import budget
from orchestrator.errors import UserError


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants, from a job's `tpu:` section or from the options of `up`. `places` are zones or regions."""

    accelerator: str
    places: tuple[str, ...] = ()
    runtime: str | None = None
    spot: bool = False
    max_duration_s: float = 24 * 3600.0
    max_cost: float | None = None  # dollars
    absent_s: float = 0.0  # what the cloud needs from a delete to absence: it is paid out of `max_cost` too
    unlisted: bool = False  # allow what the shipped table does not know


@dataclass(frozen=True, slots=True)
class Candidate:
    accelerator_type: str
    zone: str
    runtime_version: str
    spot: bool
    usd_per_hour: float | None  # None: the table has no price
    why: str
    life_s: float = 24 * 3600.0  # from the create call to the delete at the latest: the time limit or the budget's


@dataclass(frozen=True, slots=True)
class Dropped:
    zone: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    candidates: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...]
    workers: int
    cores: int
    cores_per_worker: int
    max_duration_s: float
    max_cost: float | None = None

    @property
    def worst_case_usd(self) -> float | None:
        """The dearest candidate until its deadline. None when a price is unknown."""
        costs = [one.usd_per_hour * one.life_s / 3600 for one in self.candidates if one.usd_per_hour is not None]
        return max(costs) if costs and len(costs) == len(self.candidates) else None


def make(wish: Wish, *, default_zone: str | None = None) -> Plan:
    """Candidates in the order of asking. Raises UserError when nothing that was asked for exists."""
    kind = catalog.lookup(wish.accelerator)
    if kind is None and not wish.unlisted:
        near = ", ".join(catalog.nearest(wish.accelerator)) or "none close"
        raise UserError(f"{wish.accelerator!r} is not a known accelerator type", hint=f"nearest: {near}")
    places = wish.places or ((default_zone,) if default_zone else ())
    candidates: list[Candidate] = []
    dropped: list[Dropped] = []
    too_dear: UserError | None = None
    for zone, why in _zones(wish, kind, places, from_settings=not wish.places):
        if kind is not None and not wish.unlisted and zone not in catalog.zones_with(kind.name):
            dropped.append(Dropped(zone, f"{kind.name} is not offered there"))
        elif zone not in {candidate.zone for candidate in candidates}:
            price = catalog.usd_per_hour(wish.accelerator, zone, spot=wish.spot)
            runtime = wish.runtime or (kind.default_runtime if kind else "")
            try:
                life_s = _life_s(wish, zone, price)
            except UserError as error:
                too_dear = too_dear or error
                dropped.append(Dropped(zone, error.message))
                continue
            candidates.append(Candidate(wish.accelerator, zone, runtime, wish.spot, price, why, life_s))
    if too_dear is not None and not candidates:
        raise too_dear
    if not candidates:
        offered = ", ".join(catalog.zones_with(wish.accelerator)) or "no zone of the table"
        raise UserError(
            f"{wish.accelerator} is not offered in {', '.join(places)}", hint=f"it is offered in: {offered}"
        )
    return Plan(
        candidates=tuple(candidates),
        dropped=tuple(dropped),
        workers=kind.hosts if kind else 1,
        cores=kind.cores if kind else 1,
        cores_per_worker=kind.cores_per_host if kind else 1,
        max_duration_s=max(candidate.life_s for candidate in candidates),
        max_cost=wish.max_cost,
    )


def _life_s(wish: Wish, zone: str, price: float | None) -> float:
    if wish.max_cost is None:
        return wish.max_duration_s
    where = f"{wish.accelerator} in {zone}"
    return min(wish.max_duration_s, budget.life_s(wish.max_cost, price, absent_s=wish.absent_s, where=where))


def _zones(
    wish: Wish, kind: AcceleratorType | None, places: Sequence[str], *, from_settings: bool
) -> list[tuple[str, str]]:
    if not places:
        offering = sorted(catalog.zones_with(wish.accelerator), key=lambda zone: _price(wish, zone))
        return [(zone, "no zone was asked for: cheapest first") for zone in offering]
    found: list[tuple[str, str]] = []
    for place in places:
        in_region = catalog.zones_of(place)
        if in_region:
            offering = [zone for zone in in_region if kind is None or zone in catalog.zones_with(kind.name)]
            found += [(zone, f"in region {place}, which was asked for") for zone in offering or in_region]
        elif place in catalog.zones() or wish.unlisted:
            found.append((place, "from your settings" if from_settings else "asked for"))
        else:
            near = ", ".join(catalog.nearest_place(place)) or "see `tpujob plan --help`"
            raise UserError(f"{place!r} is not a zone or region with TPUs", hint=f"nearest: {near}")
    return found


def _price(wish: Wish, zone: str) -> float:
    """For ordering: a price that nobody knows comes last."""
    price = catalog.usd_per_hour(wish.accelerator, zone, spot=wish.spot)
    return float("inf") if price is None else price
