"""A request for capacity, the planner's other inputs, and the zones and prices that follow from them. Pure.

`capacity.plan` builds candidates from these.
"""

from dataclasses import dataclass

from orchestrator import catalog
from orchestrator.capacity.availability import Availability
from orchestrator.capacity.egress import Bucket
from orchestrator.capacity.grants import Grant
from orchestrator.capacity.location_rules import ANY, accelerator_problem, places_near
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.errors import UserError

UNPRICED = float("inf")  # in an order by price, a candidate without a known price comes last


@dataclass(frozen=True, slots=True)
class CapacityRequest:
    """One acceptable alternative, from a job's `tpu:` section or from the options of `up`.

    `places` are zones, regions, or `any`. The limits are the same in all alternatives of a job.
    """

    accelerator: str
    places: tuple[str, ...] = ()
    runtime: str | None = None
    provisioning: Provisioning = Provisioning.ON_DEMAND
    queue: bool = False  # use a queued resource even where a plain request is possible
    max_duration_s: float = 24 * 3600.0
    max_cost: float | None = None  # dollars
    absent_s: float = 0.0  # from a delete to absence; billed, so it is paid out of `max_cost` too
    unlisted: bool = False  # allow what the shipped table does not list

    @property
    def effective_provisioning(self) -> Provisioning:
        """`provisioning`, or QUEUED for on-demand capacity with `queue`."""
        on_demand = self.provisioning is Provisioning.ON_DEMAND
        return Provisioning.QUEUED if self.queue and on_demand else self.provisioning

    def listed_zones(self) -> tuple[str, ...]:
        """Return the zones that offer the request by the shipped table, in its order."""
        every = catalog.zones_with(self.accelerator)
        if self.effective_provisioning is not Provisioning.FLEX_START:
            return every
        flex = catalog.flex_start_zones(self.accelerator)
        return tuple(zone for zone in every if zone in flex)

    def list_usd_per_hour(self, zone: str) -> float | None:
        """Return dollars an hour by the shipped table; None if unknown, as for flex-start. Reserved: the on-demand price."""
        if self.effective_provisioning is Provisioning.FLEX_START:
            return None
        return catalog.usd_per_hour(self.accelerator, zone, spot=self.effective_provisioning.spot)


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What a plan depends on besides the shipped table and the requests."""

    grants: tuple[Grant, ...] = ()  # the user's quota grants, less what existing slices use
    availability: Availability | None = None  # what the API lists for the project, if it was asked
    buckets: tuple[Bucket, ...] = ()  # the job's buckets, unless it allows egress from them

    def grants_for(self, request: CapacityRequest) -> tuple[Grant, ...]:
        """Return the grants that can apply: they cover on-demand and spot capacity, plain or queued."""
        excluded = (Provisioning.RESERVED, Provisioning.FLEX_START)
        return () if request.effective_provisioning in excluded else self.grants

    def grant_for(self, request: CapacityRequest, zone: str) -> Grant | None:
        """Return the grant that covers one more slice in this zone; None without one."""
        spot = request.effective_provisioning.spot
        covering = (each for each in self.grants_for(request) if each.covers(request.accelerator, zone, spot=spot))
        return next(covering, None)


def zones(request: CapacityRequest, default_zone: str | None, inputs: PlanInputs) -> list[tuple[str, str]]:
    """Return each zone of a request with the reason for it. Raises UserError for an unknown type or place."""
    kind = catalog.lookup(request.accelerator)
    if not request.unlisted and (problem := accelerator_problem(request.accelerator)):
        what, _, hint = problem.partition("; ")
        raise UserError(what, hint=hint)
    from_settings = not request.places and default_zone is not None
    places = (default_zone,) if from_settings and default_zone else request.places or (ANY,)
    found: list[tuple[str, str]] = []
    for place in places:
        in_region = catalog.zones_of(place)
        if place == ANY:
            reason = "any zone will do" if request.places else "no zone was asked for"
            found += [(zone, f"{reason}: cheapest first") for zone in _everywhere(request, inputs)]
        elif in_region:
            listed = [zone for zone in in_region if kind is None or zone in request.listed_zones()]
            found += [(zone, f"in region {place}, which was asked for") for zone in listed or in_region]
        elif place in catalog.zones() or request.unlisted:
            found.append((place, "from your settings" if from_settings else "asked for"))
        else:
            hint = places_near(place, request.accelerator)
            raise UserError(f"{place!r} is not a zone or region with TPUs", hint=hint)
    return found


def _everywhere(request: CapacityRequest, inputs: PlanInputs) -> list[str]:
    """Every zone that offers it: granted zones first, then the cheapest."""

    def price(zone: str) -> float:
        listed = request.list_usd_per_hour(zone)
        return 0.0 if inputs.grant_for(request, zone) else UNPRICED if listed is None else listed

    flex = request.effective_provisioning is Provisioning.FLEX_START  # the API lists nothing about it
    available = inputs.availability.zones_with(request.accelerator) if inputs.availability and not flex else ()
    return sorted(dict.fromkeys((*request.listed_zones(), *available)), key=price)
