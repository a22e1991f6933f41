"""What somebody wants, what is known beside the shipped table, and the zones and prices where the two meet. Pure.

`core.planning.plan` turns wishes into candidates with me.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.core.planning.availability import Availability
from orchestrator.core.planning.egress import Bucket
from orchestrator.core.planning.grants import Grant
from orchestrator.core.planning.location_rules import ANY
from orchestrator.core.planning.provisioning import Provisioning
from orchestrator.errors import UserError

UNPRICED = float("inf")  # for ordering: a price that nobody knows comes last


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """One alternative that somebody can live with, from a job's `tpu:` section or from the options of `up`.

    `places` are zones, regions, or `any`. The limits are the same in all alternatives of a job.
    """

    accelerator: str
    places: tuple[str, ...] = ()
    runtime: str | None = None
    provisioning: Provisioning = Provisioning.ON_DEMAND
    queue: bool = False  # through a queued resource even where a plain request is possible
    max_duration_s: float = 24 * 3600.0
    max_cost: float | None = None  # dollars
    absent_s: float = 0.0  # what the cloud needs from a delete to absence: it is paid out of `max_cost` too
    unlisted: bool = False  # allow what the shipped table does not know

    @property
    def way(self) -> Provisioning:
        """`queue` with on-demand has a word of its own."""
        on_demand = self.provisioning is Provisioning.ON_DEMAND
        return Provisioning.QUEUED if self.queue and on_demand else self.provisioning


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What bears on a plan beside the shipped table and the wishes."""

    grants: tuple[Grant, ...] = ()  # what the person has been granted and does not use up yet
    offering: Availability | None = None  # what the project was said to have, when somebody asked
    bucket: Bucket | None = None  # from which nothing may be copied across regions


def zones(wish: CapacityRequest, default_zone: str | None, known: PlanInputs) -> list[tuple[str, str]]:
    """Each zone of a wish with the reason for it. Raises UserError for what is neither a type nor a place."""
    kind = catalog.lookup(wish.accelerator)
    if kind is None and not wish.unlisted:
        near = ", ".join(catalog.nearest(wish.accelerator)) or "none close"
        raise UserError(f"{wish.accelerator!r} is not a known accelerator type", hint=f"nearest: {near}")
    from_settings = not wish.places and default_zone is not None
    places = (default_zone,) if from_settings and default_zone else wish.places or (ANY,)
    found: list[tuple[str, str]] = []
    for place in places:
        in_region = catalog.zones_of(place)
        if place == ANY:
            asked = "any zone will do" if wish.places else "no zone was asked for"
            found += [(zone, f"{asked}: cheapest first") for zone in _everywhere(wish, known)]
        elif in_region:
            offering = [zone for zone in in_region if kind is None or zone in listed_zones(wish)]
            found += [(zone, f"in region {place}, which was asked for") for zone in offering or in_region]
        elif place in catalog.zones() or wish.unlisted:
            found.append((place, "from your settings" if from_settings else "asked for"))
        else:
            near = ", ".join(catalog.nearest_place(place)) or "`tpujob offers` names them all"
            raise UserError(f"{place!r} is not a zone or region with TPUs", hint=f"nearest: {near}")
    return found


def listed_zones(wish: CapacityRequest) -> tuple[str, ...]:
    """The zones that are known to offer it, in the order of the table."""
    every = catalog.zones_with(wish.accelerator)
    if wish.way is not Provisioning.FLEX_START:
        return every
    flex = catalog.flex_start_zones(wish.accelerator)
    return tuple(zone for zone in every if zone in flex)


def _everywhere(wish: CapacityRequest, known: PlanInputs) -> list[str]:
    """Every zone that offers it, the cheapest first, and what is granted before that."""

    def price(zone: str) -> float:
        listed = list_usd_per_hour(wish, zone)
        return 0.0 if grant_for(wish, zone, known) else UNPRICED if listed is None else listed

    flex = wish.way is Provisioning.FLEX_START  # about which the API says nothing before it is asked for
    said = known.offering.zones_with(wish.accelerator) if known.offering and not flex else ()
    return sorted(dict.fromkeys((*listed_zones(wish), *said)), key=price)


def list_usd_per_hour(wish: CapacityRequest, zone: str) -> float | None:
    """By the shipped table, which knows no price of flex-start. A reservation is shown at the on-demand price."""
    if wish.way is Provisioning.FLEX_START:
        return None
    return catalog.usd_per_hour(wish.accelerator, zone, spot=wish.way.spot)


def grants_of(wish: CapacityRequest, known: PlanInputs) -> tuple[Grant, ...]:
    """Grants are quota for plain and for spot capacity, asked for at once or through the queue."""
    return () if wish.way in (Provisioning.RESERVED, Provisioning.FLEX_START) else known.grants


def grant_for(wish: CapacityRequest, zone: str, known: PlanInputs) -> Grant | None:
    covering = (one for one in grants_of(wish, known) if one.covers(wish.accelerator, zone, spot=wish.way.spot))
    return next(covering, None)
