"""The vocabulary of the supply: what somebody wants or holds, the tiers, and the globs that say where a rule holds.

Pure. `records` counts nodes in these words; `supply` and `preemption` write their rules in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from orchestrator import catalog

ON_DEMAND, SPOT, RESERVED, FLEX_START, ANY = "on-demand", "spot", "reserved", "flex-start", "any"
TIERS = (ANY, ON_DEMAND, SPOT, RESERVED, FLEX_START)
OURS: Mapping[str, Any] = {"ours": True}  # metadata of fields that people do not write


@dataclass(frozen=True, slots=True)
class Demand:
    """Some equal nodes, that are wanted or that there are."""

    project: str
    zone: str
    accelerator_type: str
    tier: str
    nodes: int = 1
    reservation: str = ""  # its full name, or …/- for any

    def amount(self, unit: str) -> int:
        kind = catalog.lookup(self.accelerator_type)
        assert kind is not None, "what is created has an accelerator type of the catalog"
        return self.nodes * (kind.chips if unit == "chips" else kind.cores)


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Globs. A zone may be a region; a type a family (v5litepod) or a generation (v5e)."""

    zone: str = "*"
    type: str = "*"
    tier: str = field(default=ANY, metadata={"choices": TIERS})

    def meets(self, want: Demand) -> bool:
        return self.tier in (ANY, want.tier) and fits(self.zone, self.type, want.zone, want.accelerator_type)


def region(zone: str) -> str:
    return zone.rpartition("-")[0]


@lru_cache(maxsize=4096)
def fits(zones: str, types: str, zone: str, accelerator_type: str) -> bool:
    kind = catalog.lookup(accelerator_type)
    names = [accelerator_type, *((kind.family, kind.generation) if kind else ())]
    there = fnmatchcase(zone, zones) or fnmatchcase(region(zone), zones)
    return there and any(fnmatchcase(name, types) for name in names)
