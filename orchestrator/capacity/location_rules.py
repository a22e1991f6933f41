"""Accelerator types and places checked against the catalog, for the job file and the options of `up` alike. Pure.

A place is a zone, a region (all its zones), or `any`. The `..._problem` functions return None if the value is valid, else a
sentence that says what to write.
"""

import re

from orchestrator import catalog
from orchestrator.text import names
from orchestrator.text.names import for_display

ANY = "any"  # as a place: every zone that offers the type
_ACCELERATOR = re.compile(r"[a-z][a-z0-9]{0,30}-[1-9][0-9]{0,6}")
_PLACE = re.compile(r"[a-z]+-[a-z]+[0-9]+(-[a-z])?")
_EXAMPLES = "v5litepod-8, v5p-8 or v6e-8"
_SHOWN_ZONES = 4


def split_places(text: str) -> tuple[str, ...]:
    """Split `us-central1, europe-west4-a` at the commas; empty parts are dropped."""
    return tuple(place for place in (part.strip() for part in text.split(",")) if place)


def accelerator_problem(accelerator: str, *, unlisted: bool = False) -> str | None:
    """Return what is wrong with an accelerator type. `unlisted`: check only its form, as of a type newer than the table."""
    if unlisted:
        well_formed = _ACCELERATOR.fullmatch(accelerator)
        return (
            None
            if well_formed
            else f"`{for_display(accelerator)}` is not an accelerator type; they look like {_EXAMPLES}"
        )
    if found := catalog.lookup(accelerator):
        if found.in_cloud_tpu_api:
            return None
        where = "not in the Cloud TPU API, as far as Google says: Compute Engine and GKE have it"
        return f"`{accelerator}` is {where}; run it on a cluster, with `on: gke`"
    advice = f"nearest: {', '.join(near)}" if (near := catalog.nearest(accelerator)) else f"they look like {_EXAMPLES}"
    return f"`{for_display(accelerator)}` is not a known accelerator type; {advice}; `tpujob offers` lists them"


def runtime_doubt(accelerator: str, runtime: str | None) -> str | None:
    """Return why the runtime version hardly fits the type: it is the usual one of other generations only."""
    kind = catalog.lookup(accelerator)
    known = filter(None, map(catalog.lookup, catalog.types()))
    of = {each.generation for each in known if each.default_runtime == runtime}
    if kind is None or not of or kind.generation in of:
        return None
    fitting = " or ".join(catalog.runtimes(kind.generation))
    why = f"`{runtime}` is for {', '.join(sorted(of))}, and {accelerator} is {kind.generation}"
    return f"{why}; write {fitting}, or leave it out"


def place_problem(place: str, accelerator: str, *, unlisted: bool = False) -> str | None:
    """Return what is wrong with a zone or region, given a type without an `accelerator_problem`."""
    if place == ANY:
        return None
    in_region = catalog.zones_of(place)
    if not in_region and names.zone_problem(place):
        return f"`{for_display(place)}` is not a zone or a known region; {places_near(place, accelerator)}"
    if unlisted or in_region or place in catalog.zones():
        return None  # whether it offers the type, Google knows better than the table
    return f"`{place}` is not a zone with TPUs; {places_near(place, accelerator)}"


def is_place(text: str) -> bool:
    """Whether the text is a comma list of zones and regions, known or not, and no type."""
    parts = split_places(text)
    return bool(parts) and all(_PLACE.fullmatch(part) for part in parts)


def places_near(place: str, accelerator: str | None = None) -> str:
    """Return what may be meant by a mistyped place; if nothing is close, the zones there are, or those with the type."""
    if near := catalog.nearest_place(place):
        return f"nearest: {', '.join(near)}"
    offering = catalog.zones_with(accelerator) if accelerator else ()
    which = f"zones with {accelerator}" if offering else "zones with TPUs"
    return f"{which}: {_by_region(offering or catalog.zones())}"


def _by_region(zones: tuple[str, ...]) -> str:
    """Return `us-central1-a/b/f, us-east1-d`."""
    letters: dict[str, list[str]] = {}
    for zone in sorted(zones):
        region, _, letter = zone.rpartition("-")
        letters.setdefault(region, []).append(letter)
    return ", ".join(f"{region}-{'/'.join(each)}" for region, each in letters.items())


def offered_near(zone: str, offered: tuple[str, ...]) -> str:
    """Return some of the zones that offer a type: those of the same region first, then of the same continent."""
    region, continent = zone.rpartition("-")[0], zone.partition("-")[0]
    zones = sorted(offered, key=lambda each: (not each.startswith(region), not each.startswith(f"{continent}-")))
    more = len(zones) - _SHOWN_ZONES
    return ", ".join(zones[:_SHOWN_ZONES]) + (f" and {more} more" if more > 0 else "") or "no zone of the table"
