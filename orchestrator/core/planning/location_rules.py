"""Which accelerator types and places a person may ask for, checked against the catalog. Pure.

A place is a zone or a region (its zones). The job file and the options of `up` are read by me, so that both take the same
words and give the same advice. The `..._problem` functions return None when all is well, else a sentence.
"""

from __future__ import annotations

import re

from orchestrator import catalog
from orchestrator.core.text import names

ANY = "any"  # as a place: every zone that offers the type
_ACCELERATOR = re.compile(r"[a-z][a-z0-9]{0,30}-[1-9][0-9]{0,6}")
_EXAMPLES = "v5litepod-8, v5p-8 or v6e-8"
_SHOWN_ZONES = 4


def split_places(text: str) -> tuple[str, ...]:
    """`us-central1, europe-west4-a` → both. Nothing between two commas is nothing."""
    return tuple(place for place in (part.strip() for part in text.split(",")) if place)


def accelerator_problem(accelerator: str, *, unlisted: bool = False) -> str | None:
    """`unlisted`: the person says that the type is newer than our table, so only its form is checked."""
    if unlisted:
        well_formed = _ACCELERATOR.fullmatch(accelerator)
        return None if well_formed else f"`{shown(accelerator)}` is not an accelerator type; they look like {_EXAMPLES}"
    if catalog.lookup(accelerator):
        return None
    advice = f"nearest: {', '.join(near)}" if (near := catalog.nearest(accelerator)) else f"they look like {_EXAMPLES}"
    return f"`{shown(accelerator)}` is not a known accelerator type; {advice}"


def place_problem(place: str, accelerator: str, *, unlisted: bool = False) -> str | None:
    """One zone or region (or `any`), for an accelerator type that `accelerator_problem` has nothing against."""
    if place == ANY:
        return None
    in_region = catalog.zones_of(place)
    if not in_region and names.zone_problem(place):
        return f"`{shown(place)}` is not a zone or a known region; {_places_near(place)}"
    if unlisted:
        return None
    if not in_region and place not in catalog.zones():
        return f"`{place}` is not a zone with TPUs; {_places_near(place)}"
    offering = catalog.zones_with(accelerator)
    if not offering or set(offering) & set(in_region or (place,)):
        return None
    return f"`{place}` does not offer {accelerator}; offered in: {_some(_by_distance(offering, place))}"


def shown(text: str) -> str:
    """A value from outside, safe and short enough for a line on a terminal."""
    plain = "".join(char if char.isprintable() else "?" for char in text)
    return plain if len(plain) <= 40 else f"{plain[:39]}…"


def _places_near(place: str) -> str:
    near = catalog.nearest_place(place)
    return f"nearest: {', '.join(near)}" if near else "zones look like us-central1-a, regions like us-central1"


def _by_distance(zones: tuple[str, ...], place: str) -> list[str]:
    """The same region first, then the same continent, else the catalog's order."""
    continent, _, _ = place.partition("-")
    region = place.rpartition("-")[0] if place in catalog.zones() else place
    return sorted(zones, key=lambda zone: (not zone.startswith(region), not zone.startswith(f"{continent}-")))


def _some(zones: list[str]) -> str:
    more = len(zones) - _SHOWN_ZONES
    return ", ".join(zones[:_SHOWN_ZONES]) + (f" and {more} more" if more > 0 else "")
