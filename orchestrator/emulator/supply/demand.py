"""The vocabulary of the supply: demands, tiers, and the selectors that say where a rule holds.

Pure. `model` counts nodes and queued resources as demands; `supply` and `preemption` write their rules with selectors.
"""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

from orchestrator import catalog

ON_DEMAND, SPOT, RESERVED, FLEX_START, ANY = "on-demand", "spot", "reserved", "flex-start", "any"
TIERS = (ANY, ON_DEMAND, SPOT, RESERVED, FLEX_START)


@dataclass(frozen=True, slots=True)
class Demand:
    """Equal nodes, requested or existing."""

    project: str
    zone: str
    accelerator_type: str
    tier: str
    nodes: int = 1
    reservation: str = ""  # its full name; …/- or empty: any

    def amount(self, unit: str) -> int:
        """Return how many of these all nodes have together; `unit` is chips or cores."""
        kind = catalog.lookup(self.accelerator_type)
        assert kind is not None, "what is created has an accelerator type of the catalog"
        return self.nodes * (kind.chips if unit == "chips" else kind.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Globs. `zone` may name a region; `type` a family (v5litepod) or a generation (v5e)."""

    zone: str = "*"
    type: str = "*"
    tier: str = field(default=ANY, metadata={"choices": TIERS})

    def selects(self, demand: Demand) -> bool:
        """Return whether the rule concerns the demand."""
        return self.tier in (ANY, demand.tier) and matches(self.zone, self.type, demand.zone, demand.accelerator_type)


def region(zone: str) -> str:
    """Return the region of a zone: us-west4 for us-west4-a."""
    return zone.rpartition("-")[0]


@lru_cache(maxsize=4096)
def matches(zones: str, types: str, zone: str, accelerator_type: str) -> bool:
    """Return whether the globs `zones` and `types` fit this zone and accelerator type."""
    kind = catalog.lookup(accelerator_type)
    names = [accelerator_type, *((kind.family, kind.generation) if kind else ())]
    there = fnmatchcase(zone, zones) or fnmatchcase(region(zone), zones)
    return there and any(fnmatchcase(name, types) for name in names)
