"""Which accelerator types the API lists for a project, zone by zone, and when it was asked. Narrows the shipped table. Pure.

`tpujob offers --refresh` asks and stores the reply; the planner and `offers` read it from then on. A zone that did not
reply is unknown, not empty.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Availability:
    """The reply of one refresh."""

    project: str
    asked_at: str  # 2026-11-21T17:46:09Z
    zones: Mapping[str, tuple[str, ...]]  # the types of each zone that replied
    unreachable: Mapping[str, str] = field(default_factory=dict)  # zones of the project that did not reply, and why

    def has(self, accelerator: str, zone: str) -> bool | None:
        """Return whether the zone has this type; None if unknown."""
        if zone in self.unreachable:
            return None
        return accelerator in self.zones.get(zone, ())

    def zones_with(self, accelerator: str) -> tuple[str, ...]:
        """Return the zones that have this type."""
        return tuple(zone for zone, types in self.zones.items() if accelerator in types)

    @property
    def age_note(self) -> str:
        """The end of a sentence: when it was asked, and how to ask again."""
        return f"asked on {self.asked_at[:10]}; `tpujob offers --refresh` asks again"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, which `from_dict` reads."""
        return {"schema": SCHEMA, **asdict(self)}


def from_dict(data: Any, project: str) -> Availability | None:
    """Return what `to_dict` wrote; None for another project, another schema, or malformed data."""
    try:
        if data["schema"] != SCHEMA or data["project"] != project:
            return None
        zones = {str(zone): tuple(map(str, types)) for zone, types in data["zones"].items()}
        return Availability(project, str(data["asked_at"]), zones, dict(data["unreachable"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
