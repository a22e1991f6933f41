"""What the API said that a project really has, and when: it narrows what the shipped table says. Pure.

`tpujob offers --refresh` asks; the planner and `offers` read the answer from then on. A zone that did not answer is
unknown, not empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Availability:
    project: str
    asked_at: str  # 2026-11-21T17:46:09Z
    zones: Mapping[str, tuple[str, ...]]  # the types of each zone that answered
    silent: Mapping[str, str] = field(default_factory=dict)  # zones of the project that did not answer, and why

    def has(self, accelerator: str, zone: str) -> bool | None:
        """None: nobody knows."""
        if zone in self.silent:
            return None
        return accelerator in self.zones.get(zone, ())

    def zones_with(self, accelerator: str) -> tuple[str, ...]:
        return tuple(zone for zone, types in self.zones.items() if accelerator in types)

    @property
    def asked(self) -> str:
        """The end of a sentence about it."""
        return f"asked on {self.asked_at[:10]}; `tpujob offers --refresh` asks again"

    def shape(self) -> dict[str, Any]:
        zones = {zone: list(types) for zone, types in self.zones.items()}
        return {
            "schema": SCHEMA,
            "project": self.project,
            "asked_at": self.asked_at,
            "zones": zones,
            "silent": {**self.silent},
        }


def from_dict(said: Any, project: str) -> Availability | None:
    """None for what is not ours to read: another project's, a newer shape, or nothing that makes sense."""
    try:
        if said["schema"] != SCHEMA or said["project"] != project:
            return None
        zones = {str(zone): tuple(map(str, types)) for zone, types in said["zones"].items()}
        return Availability(project, str(said["asked_at"]), zones, dict(said["silent"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
