"""Where the Cloud TPU API is asked for slices that no ledger here need know: in a project, and its zones."""

from collections.abc import Sequence
from typing import Any

from orchestrator import catalog
from orchestrator.capacity.location_rules import places_near
from orchestrator.errors import UserError
from orchestrator.places.area import Area
from orchestrator.settings import Target
from orchestrator.text import names


def named(target: Target) -> Area:
    return Area(target.kind, target.project, target.why)


def asked(target: Target, parts: Sequence[str], **_: Any) -> Area:
    """Return the project, in these zones and regions; empty means every zone. Raises UserError for an unknown place."""
    return Area(target.kind, target.project, target.why, zones_of(parts))


def zones_of(places: Sequence[str]) -> list[str] | None:
    """Return the zones of these zones and regions; None, which is every zone, for none. Raises UserError for an unknown place.

    A zone that is not in the shipped table may exist all the same.
    """
    found: list[str] = []
    for place in places:
        if names.zone_problem(place) is None:
            found.append(place)
        elif in_region := catalog.zones_of(place):
            found += in_region
        else:
            raise UserError(f"{place!r} is not a zone or region with TPUs", hint=places_near(place))
    return list(dict.fromkeys(found)) or None
