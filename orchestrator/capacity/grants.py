"""Free quota that was granted to the user, as the TPU Research Cloud describes it in its e-mails. Pure.

A grant of a type (`v3-8`) counts slices of exactly that type; a grant of a generation (`v4`) counts chips, in slices of any
size that fits. Several small grants never add up to a larger type. The settings file holds the grants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from orchestrator import catalog
from orchestrator.text import names

_LINE = re.compile(
    r"[-*•]?\s*(?P<count>\d{1,6})\s+(?P<model>on-demand|preemptible|spot)\s+(?:cloud\s+)?(?:tpu\s+)?(?P<what>[a-z0-9-]+)"
    r"(?:\s+tpus?)?(?:\s+(?P<unit>chips?|devices?|device\(s\)|chip\(s\)))?\s+in\s+(?:zone\s+)?(?P<zone>[a-z0-9-]+)\.?",
    re.IGNORECASE,
)
_KEYS = ("accelerator", "count", "zone", "spot")
_EXAMPLE = "5 on-demand Cloud TPU v3-8 devices in zone europe-west4-a"


@dataclass(frozen=True, slots=True)
class Grant:
    """One grant of the settings file."""

    accelerator: str  # a type, such as v3-8, or a generation, such as v4
    count: int  # slices of that type, or chips of that generation
    zone: str
    spot: bool = False

    @property
    def in_chips(self) -> bool:
        """Whether `count` counts chips, not slices."""
        return catalog.lookup(self.accelerator) is None

    @property
    def label(self) -> str:
        """For display: `5 on-demand v3-8`."""
        kind = "spot" if self.spot else "on-demand"
        return f"{self.count} {kind} {self.accelerator}{' chips' if self.in_chips else ''}"

    def covers(self, accelerator: str, zone: str, *, spot: bool) -> bool:
        """Return whether one more slice of this type is within the grant."""
        return (self.zone, self.spot) == (zone, spot) and 0 < self._takes(accelerator) <= self.count

    def too_small_for(self, accelerator: str, zone: str, *, spot: bool) -> bool:
        """Return whether the grant is for such slices, but does not suffice for one more."""
        return (self.zone, self.spot) == (zone, spot) and self._takes(accelerator) > self.count

    def _takes(self, accelerator: str) -> int:
        """How much one slice uses of the grant; 0: the grant is for something else."""
        kind = catalog.lookup(accelerator)
        if self.in_chips:
            return kind.chips if kind and kind.generation == self.accelerator else 0
        return int(self.accelerator == accelerator)

    def without(self, accelerator: str) -> Grant:
        """Return the grant less one slice of this type."""
        return replace(self, count=self.count - self._takes(accelerator))


def remaining(grants: Iterable[Grant], used: Iterable[tuple[str, str, bool]]) -> tuple[Grant, ...]:
    """Return the grants less the existing slices, each given as type, zone, and whether it is spot."""
    left = list(grants)
    for accelerator, zone, spot in used:
        for index, grant in enumerate(left):
            if grant.covers(accelerator, zone, spot=spot):
                left[index] = grant.without(accelerator)
                break
    return tuple(left)


def from_text(text: str) -> Grant:
    """Return the grant in a line of such an e-mail. Raises ValueError with the end of a sentence."""
    line = _LINE.fullmatch(text.strip())
    if line is None:
        raise ValueError(f"is not a grant; write for example `{_EXAMPLE}`")
    what, unit = line["what"].lower(), (line["unit"] or "").lower()
    if unit and unit.startswith("chip") != (what in generations()):
        raise ValueError(
            "counts chips of one type, or devices of a whole generation; write `v4 chips` or `v4-8 devices`"
        )
    return _checked(what, int(line["count"]), line["zone"].lower(), spot=line["model"].lower() != "on-demand")


def from_keys(keys: Mapping[str, str]) -> Grant:
    """Return the grant in `{accelerator: v3-8, count: 5, zone: europe-west4-a}`, values as text. Raises ValueError."""
    if unknown := [key for key in keys if key not in _KEYS]:
        raise ValueError(f"{unknown[0]} is not a key of a grant; they are {', '.join(_KEYS)}")
    if missing := [key for key in _KEYS[:3] if not keys.get(key)]:
        raise ValueError(f"lacks {missing[0]}; write for example `{_EXAMPLE}`")
    if not re.fullmatch(r"\d{1,6}", keys["count"], re.ASCII):
        raise ValueError(f"count: {keys['count']!r} is not a whole number")
    if keys.get("spot", "false") not in ("true", "false"):
        raise ValueError(f"spot: {keys['spot']!r} is not `true` or `false`")
    return _checked(keys["accelerator"], int(keys["count"]), keys["zone"], spot=keys.get("spot") == "true")


def generations() -> tuple[str, ...]:
    """Return the generations of the catalog, such as v5e."""
    return tuple(dict.fromkeys(offer.generation for offer in catalog.offers()))


def _checked(accelerator: str, count: int, zone: str, *, spot: bool) -> Grant:
    accelerator = catalog.canonical(accelerator)
    if catalog.lookup(accelerator) is None and accelerator not in generations():
        near = ", ".join(catalog.nearest(accelerator)) or ", ".join(generations())
        what = f"{accelerator!r} is neither an accelerator type nor a generation"
        raise ValueError(f"{what}; nearest: {near}; `tpujob offers` lists them")
    if problem := names.zone_problem(zone):
        raise ValueError(f"zone: {zone!r} {problem}")
    if count < 1:
        raise ValueError("grants nothing; remove it")
    return Grant(accelerator, count, zone, spot)
