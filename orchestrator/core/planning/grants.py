"""Quota that somebody has been granted and pays nothing for, as the TPU Research Cloud writes it in its e-mails. Pure.

A grant of a type (`v3-8`) counts slices of exactly that type; a grant of a generation (`v4`) counts chips, in slices of any
size that fits. It makes no larger type out of many small ones. The settings file holds them; the planner calls me.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from orchestrator import catalog
from orchestrator.core.text import names

_LINE = re.compile(
    r"[-*•]?\s*(?P<count>\d{1,6})\s+(?P<way>on-demand|preemptible|spot)\s+(?:cloud\s+)?(?:tpu\s+)?(?P<what>[a-z0-9-]+)"
    r"(?:\s+tpus?)?(?:\s+(?P<unit>chips?|devices?|device\(s\)|chip\(s\)))?\s+in\s+(?:zone\s+)?(?P<zone>[a-z0-9-]+)\.?",
    re.IGNORECASE,
)
_KEYS = ("accelerator", "count", "zone", "spot")
_EXAMPLE = "5 on-demand Cloud TPU v3-8 devices in zone europe-west4-a"


@dataclass(frozen=True, slots=True)
class Grant:
    accelerator: str  # a type, such as v3-8, or a generation, such as v4
    count: int  # slices of that type, or chips of that generation
    zone: str
    spot: bool = False

    @property
    def in_chips(self) -> bool:
        return catalog.lookup(self.accelerator) is None

    @property
    def words(self) -> str:
        kind = "spot" if self.spot else "on-demand"
        return f"{self.count} {kind} {self.accelerator}{' chips' if self.in_chips else ''}"

    def covers(self, accelerator: str, zone: str, *, spot: bool) -> bool:
        """Is one more slice of this type within it?"""
        return (self.zone, self.spot) == (zone, spot) and 0 < self._takes(accelerator) <= self.count

    def too_small_for(self, accelerator: str, zone: str, *, spot: bool) -> bool:
        """Is it for such slices, but not enough of it (left) for one?"""
        return (self.zone, self.spot) == (zone, spot) and self._takes(accelerator) > self.count

    def _takes(self, accelerator: str) -> int:
        """How much of it one slice uses up; 0: it is not of this kind."""
        kind = catalog.lookup(accelerator)
        if self.in_chips:
            return kind.chips if kind and kind.generation == self.accelerator else 0
        return int(self.accelerator == accelerator)

    def without(self, accelerator: str) -> Grant:
        return replace(self, count=self.count - self._takes(accelerator))


def remaining(grants: Iterable[Grant], used: Iterable[tuple[str, str, bool]]) -> tuple[Grant, ...]:
    """What remains beside the slices that exist, each given as its type, its zone, and whether it is spot."""
    remaining = list(grants)
    for accelerator, zone, spot in used:
        for index, grant in enumerate(remaining):
            if grant.covers(accelerator, zone, spot=spot):
                remaining[index] = grant.without(accelerator)
                break
    return tuple(remaining)


def from_text(text: str) -> Grant:
    """A line of such an e-mail. Raises ValueError with the rest of a sentence."""
    said = _LINE.fullmatch(text.strip())
    if said is None:
        raise ValueError(f"is not a grant; write for example `{_EXAMPLE}`")
    what, unit = said["what"].lower(), (said["unit"] or "").lower()
    if unit and unit.startswith("chip") != (what in generations()):
        raise ValueError(
            "counts chips of one type, or devices of a whole generation; write `v4 chips` or `v4-8 devices`"
        )
    return _checked(what, int(said["count"]), said["zone"].lower(), spot=said["way"].lower() != "on-demand")


def from_keys(said: Mapping[str, str]) -> Grant:
    """`{accelerator: v3-8, count: 5, zone: europe-west4-a}`, values as written. Raises ValueError."""
    if unknown := [key for key in said if key not in _KEYS]:
        raise ValueError(f"{unknown[0]} is not a key of a grant; they are {', '.join(_KEYS)}")
    if missing := [key for key in _KEYS[:3] if not said.get(key)]:
        raise ValueError(f"says nothing about {missing[0]}; write for example `{_EXAMPLE}`")
    if not re.fullmatch(r"\d{1,6}", said["count"], re.ASCII):
        raise ValueError(f"count: {said['count']!r} is not a whole number")
    if said.get("spot", "false") not in ("true", "false"):
        raise ValueError(f"spot: {said['spot']!r} is not `true` or `false`")
    return _checked(said["accelerator"], int(said["count"]), said["zone"], spot=said.get("spot") == "true")


def generations() -> tuple[str, ...]:
    return tuple(dict.fromkeys(offer.generation for offer in catalog.offers()))


def _checked(accelerator: str, count: int, zone: str, *, spot: bool) -> Grant:
    accelerator = catalog.canonical(accelerator)
    if catalog.lookup(accelerator) is None and accelerator not in generations():
        near = ", ".join(catalog.nearest(accelerator)) or ", ".join(generations())
        raise ValueError(f"{accelerator!r} is neither an accelerator type nor a generation; nearest: {near}")
    if problem := names.zone_problem(zone):
        raise ValueError(f"zone: {zone!r} {problem}")
    if count < 1:
        raise ValueError("grants nothing; remove it")
    return Grant(accelerator, count, zone, spot)
