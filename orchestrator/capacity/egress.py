"""Whether a job's bucket lies in the region of its TPU: data between regions is billed by the byte. Pure.

The prices are a range, not a table of pairs: Google's list prices from general knowledge, not looked up, and only there to
warn. A multi-region that contains the TPU's region costs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PRICES_AS_OF = "list prices, roughly, as of 2026-11"
_ONE_CONTINENT, _TWO_CONTINENTS = "about $20 to $80 per TB", "about $50 to $140 per TB"
ANYWHERE = f"about $20 to $140 per TB ({PRICES_AS_OF})"

_CONTINENTS = {"us": "us-", "eu": "europe-", "asia": "asia-"}  # multi-regions, and how names of regions in them begin
_PAIRS = {
    "nam4": ("us-central1", "us-east1"),
    "eur4": ("europe-north1", "europe-west4"),
    "asia1": ("asia-northeast1", "asia-northeast2"),
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """`location` as Cloud Storage gives it, in lower case; `regions` of a dual-region bucket."""

    name: str
    location: str
    regions: tuple[str, ...] = ()

    def contains(self, region: str) -> bool:
        """Return whether the bucket has its data in this region."""
        if self.regions:
            return region in self.regions
        beginning = _CONTINENTS.get(self.location)
        return region == self.location or (beginning is not None and region.startswith(beginning))

    def problem(self, zone: str) -> str | None:
        """Return why a slice in this zone would be billed for egress; None if no data leaves its region."""
        return self.problem_in(zone.rpartition("-")[0])

    def problem_in(self, region: str) -> str | None:
        """Return why data from this region would be billed for egress; None if it does not leave the region."""
        if self.contains(region):
            return None
        continent = _CONTINENTS.get(self.location, "").rstrip("-")
        near = {continent, *(name.partition("-")[0] for name in (self.location, *self.regions))}
        price = _ONE_CONTINENT if region.partition("-")[0] in near else _TWO_CONTINENTS
        return f"gs://{self.name} is in {self.location}, not in {region}: copying between them costs {price} ({PRICES_AS_OF})"


def from_reply(name: str, reply: Mapping[str, Any]) -> Bucket | None:
    """Return the bucket from a reply of the storage API; None if the reply has no location."""
    location = reply.get("location")
    if not isinstance(location, str) or not location:
        return None
    placed = reply.get("customPlacementConfig")
    own = placed.get("dataLocations", []) if isinstance(placed, Mapping) else []
    regions = tuple(str(region).lower() for region in own) or _PAIRS.get(location.lower(), ())
    return Bucket(name, location.lower(), regions)
