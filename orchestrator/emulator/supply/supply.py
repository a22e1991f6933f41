"""What the cloud has for whom, as data: capacity in time, quota, reservations, queues, locations, the rate of creates.

Pure. `CloudState` and the queue ask before they create; docs/emulator.md explains the fields, `rehearsal` reads them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from orchestrator import catalog
from orchestrator.emulator import api_errors
from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.plain_data import BadData, read, read_all
from orchestrator.emulator.supply.demand import FLEX_START, OURS, RESERVED, SPOT, Demand, Where, fits, region
from orchestrator.emulator.supply.preemption import Preemption

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Where):
    """So many chips at once, in an interval of seconds after it was set. Without chips: as many as anybody wants."""

    chips: int | None = 0
    from_s: float = 0.0
    until_s: float | None = None
    added_at: float = field(default=0.0, metadata=OURS)

    def open_at(self, now: float) -> bool:
        """Reckoned as `changes` does, so that it has changed at the very moment that was named."""
        return self.added_at + self.from_s <= now and (self.until_s is None or now < self.added_at + self.until_s)

    def changes(self) -> list[float]:
        return [self.added_at + edge for edge in (self.from_s, self.until_s) if edge is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota(Where):
    """What each project may hold in each zone, or region, at once."""

    limit: int
    unit: str = field(default="chips", metadata={"choices": ("chips", "cores")})
    per: str = field(default="zone", metadata={"choices": ("zone", "region")})
    project: str = "*"
    name: str = "TPUsPerProjectForTPUAPI"

    def counts(self, held: Demand, for_whom: Demand) -> bool:
        same = held.zone == for_whom.zone or (self.per == "region" and region(held.zone) == region(for_whom.zone))
        return same and held.project == for_whom.project and self.meets(held)

    def covers(self, want: Demand) -> bool:
        return fnmatchcase(want.project, self.project) and self.meets(want)

    def meets(self, want: Demand) -> bool:
        """Flex-start is counted with what is preemptible."""
        return Where.meets(self, replace(want, tier=SPOT) if want.tier == FLEX_START else want)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    name: str
    zone: str
    chips: int
    type: str = "*"

    def serves(self, want: Demand) -> bool:
        asked = want.reservation.rpartition("/")[2]
        return asked in ("", "-", self.name) and fits(self.zone, self.type, want.zone, want.accelerator_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedQueue(Where):
    """The project may not queue requests here."""


@dataclass(slots=True)
class Supply:
    """Without any data there is enough of everything for everybody."""

    capacity: list[Capacity] = field(default_factory=list)
    quotas: list[Quota] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    closed_queues: list[ClosedQueue] = field(default_factory=list)
    flex_start: list[Where] = field(default_factory=list)  # where there is any; none: as the catalog says
    preemptions: list[Preemption] = field(default_factory=list)
    locations: tuple[str, ...] = ()  # globs of the zones that projects may use; none: all
    creates_per_minute: int | None = None
    _creates: deque[float] = field(default_factory=deque, repr=False)

    # --- at once, as an HTTP error ------------------------------------------------------------------------------------

    @property
    def limits_projects(self) -> bool:
        return bool(self.quotas or self.locations)

    def may_use(self, zone: str) -> bool:
        return not self.locations or any(fnmatchcase(zone, place) for place in self.locations)

    def check_place(self, project: str, zone: str, names: Iterable[str]) -> None:
        """A zone that the project may not use, unless one of what there is (its `names`) is there and its own."""
        prefix = f"projects/{project}/locations/{zone}/"
        if not self.may_use(zone) and not any(name.startswith(prefix) for name in names):
            raise api_errors.location_denied(project, zone)

    def admit(self, wants: Sequence[Demand], held: list[Demand]) -> None:
        """All of this, besides what is held."""
        for want in wants:
            if not self.may_use(want.zone):
                raise api_errors.location_denied(want.project, want.zone)
            self._check_quota(want, held)
            held.append(want)

    def count_create(self, project: str, now: float) -> None:
        """A call that creates a node. Refuses the one too many within a minute."""
        if self.creates_per_minute is None:
            return
        while self._creates and self._creates[0] <= now - MINUTE_S:
            self._creates.popleft()
        if len(self._creates) >= self.creates_per_minute:
            raise api_errors.too_many_creates(project)
        self._creates.append(now)

    def _check_quota(self, want: Demand, held: Iterable[Demand]) -> None:
        for quota in [quota for quota in self.quotas if quota.covers(want)]:
            used = sum(row.amount(quota.unit) for row in held if quota.counts(row, want))
            if used + want.amount(quota.unit) > quota.limit:
                place = want.zone if quota.per == "zone" else region(want.zone)
                raise api_errors.quota_exceeded(quota.name, quota.limit, quota.per, place)

    # --- later, as the error of an operation --------------------------------------------------------------------------

    def late_refusal(self, want: Demand) -> ApiError | None:
        """Why a queued resource fails as soon as somebody has looked at it."""
        if any(closed.meets(want) for closed in self.closed_queues):
            return api_errors.queue_closed(want.accelerator_type, want.zone)
        if want.tier == FLEX_START and not self._has_flex_start(want):
            return api_errors.no_flex_start(want.accelerator_type, want.zone)
        if want.tier == RESERVED and self.reservations and not self._serving(want):
            return api_errors.no_reservation("FAILED_PRECONDITION")
        return None

    def _has_flex_start(self, want: Demand) -> bool:
        if self.flex_start:
            return any(place.meets(want) for place in self.flex_start)
        return want.zone in catalog.flex_start_zones(want.accelerator_type)

    def shortage(self, wants: Sequence[Demand], on: Iterable[Demand], now: float) -> ApiError | None:
        """Why all of this cannot be created now, beside what is on already."""
        present = list(on)
        for want in wants:
            reserved = want.tier == RESERVED
            short = self._no_reservation(want, present) if reserved else self._no_capacity(want, present, now)
            if short is not None:
                return short
            present.append(want)
        return None

    def _no_capacity(self, want: Demand, on: list[Demand], now: float) -> ApiError | None:
        """The last rule that fits decides."""
        rule = next((rule for rule in reversed(self.capacity) if rule.open_at(now) and rule.meets(want)), None)
        if rule is None or rule.chips is None:
            return None
        used = sum(row.amount("chips") for row in on if row.tier != RESERVED and rule.meets(row)) if rule.chips else 0
        return api_errors.no_capacity(want.zone) if used + want.amount("chips") > rule.chips else None

    def _no_reservation(self, want: Demand, on: list[Demand]) -> ApiError | None:
        if not self.reservations:
            return None
        serving = self._serving(want)
        used = [row for row in on if row.tier == RESERVED and any(one.serves(row) for one in serving)]
        free = sum(one.chips for one in serving) - sum(row.amount("chips") for row in used)
        return None if want.amount("chips") <= free else api_errors.no_reservation("RESOURCE_EXHAUSTED")

    def _serving(self, want: Demand) -> list[Reservation]:
        return [one for one in self.reservations if one.serves(want)]

    def changes_after(self, now: float) -> list[float]:
        """When there may be room that there is not now."""
        return [time for rule in self.capacity for time in rule.changes() if time > now]

    # --- as plain data ------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """What `load` reads; without what is as it is by default."""
        lists = {name: [asdict(row) for row in getattr(self, name)] for name in ROWS}
        more = {"locations": list(self.locations), "creates_per_minute": self.creates_per_minute}
        return {name: value for name, value in (lists | more).items() if value}


ROWS: Mapping[str, type[Any]] = {
    "capacity": Capacity,
    "quotas": Quota,
    "reservations": Reservation,
    "closed_queues": ClosedQueue,
    "flex_start": Where,
    "preemptions": Preemption,
}


@dataclass(frozen=True, slots=True)
class _Plain:
    locations: tuple[str, ...] = ()
    creates_per_minute: int | None = None


PARTS = (*ROWS, *(field.name for field in fields(_Plain)))


def load(data: Mapping[str, Any], added_at: float | None = None) -> Supply:
    """BadData says what is wrong. What is new is told since when it holds."""
    for name in data:
        if name not in PARTS:
            raise BadData(f'There is no "{name}" in the supply; there are {", ".join(PARTS)}.')
    plain = read(_Plain, {name: value for name, value in data.items() if name not in ROWS}, "the supply")
    rows = {name: read_all(kind, data.get(name, []), name) for name, kind in ROWS.items()}
    supply = Supply(locations=plain.locations, creates_per_minute=plain.creates_per_minute)
    for name, found in rows.items():
        setattr(supply, name, found)
    for rule in supply.capacity:
        if rule.until_s is not None and rule.until_s <= rule.from_s:
            raise BadData(f"until_s ({rule.until_s:g}) of a capacity is not after its from_s ({rule.from_s:g}).")
    for preemption in supply.preemptions:
        preemption.check()
    if added_at is not None:
        supply.capacity = [Capacity(**{**asdict(rule), "added_at": added_at}) for rule in supply.capacity]
    return supply
