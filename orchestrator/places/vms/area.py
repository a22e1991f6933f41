"""The zones in which what is left of slices is looked for."""

from collections.abc import Sequence

from orchestrator import catalog
from orchestrator.capacity.location_rules import places_near
from orchestrator.errors import UserError
from orchestrator.text import names


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
