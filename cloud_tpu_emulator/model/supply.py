"""What the cloud has for which project, as data: capacity in time, quota, reservations, queues, locations, create rate.

Pure. `CloudState` and the queue ask before they create; docs/emulator.md explains the fields. Nodes and queued resources count
as demands, and rules say with selectors where they hold.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.fault import Ranges, in_ranges, parse_ranges, uniform
from cloud_tpu_emulator.faults.plain_data import INTERNAL, BadData, read
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


# Which spot nodes the cloud preempts, and when: on schedule or at a seeded rate, as data.
#
# `provider_events` asks when a node is created and when it becomes READY; docs/emulator.md explains the fields.

SINCE = ("READY", "CREATING")
HOUR_S = 3600.0


@lru_cache(maxsize=64)
def _numbers(text: str) -> Ranges:
    return parse_ranges(text, "nth of a preemption")


@dataclass(slots=True, kw_only=True)
class Preemption:
    """After `after_s` seconds, or on average `per_hour` times an hour. `nth`: which of the nodes that fit, from 1."""

    zone: str = "*"
    type: str = "*"
    node: str = "*"
    nth: str | None = None
    since: str = field(default="READY", metadata={"choices": SINCE})
    after_s: float | None = None
    per_hour: float | None = None
    seed: int = 0
    notice_s: float | None = None  # None: as in the settings
    count: int = field(default=0, metadata=INTERNAL)  # nodes that fitted

    def check(self) -> None:
        """Raise BadData if the fields contradict each other."""
        if (self.after_s is None) == (self.per_hour is None):
            raise BadData("A preemption needs either after_s or per_hour.")
        if self.per_hour == 0:
            raise BadData("per_hour of a preemption must be more than 0.")
        if self.nth is not None:
            _numbers(self.nth)

    def draw(self, node_id: str, demand: Demand, since: str) -> float | None:
        """Count the node, and return in how many seconds it is preempted; None: never. Call once for each node."""
        if since != self.since or demand.tier != SPOT or not fnmatchcase(node_id, self.node):
            return None
        if not matches(self.zone, self.type, demand.zone, demand.accelerator_type):
            return None
        self.count += 1
        if self.nth is not None and not in_ranges(_numbers(self.nth), self.count):
            return None
        if self.after_s is not None:
            return self.after_s
        assert self.per_hour is not None, "`check` has seen it"
        return -math.log(1.0 - uniform(self.seed, self.count)) * HOUR_S / self.per_hour


MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Selector):
    """At most `chips` chips at once, in an interval of seconds after `added_at`. `chips` None: unlimited."""

    chips: int | None = 0
    from_s: float = 0.0
    until_s: float | None = None
    added_at: float = field(default=0.0, metadata=INTERNAL)  # Unix seconds of the cloud's clock

    def open_at(self, now: float) -> bool:
        """Computed as in `changes`, so that at a time that `changes` names the rule has changed."""
        return self.added_at + self.from_s <= now and (self.until_s is None or now < self.added_at + self.until_s)

    def changes(self) -> list[float]:
        """Return the times at which the rule begins and ends to hold."""
        return [self.added_at + edge for edge in (self.from_s, self.until_s) if edge is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota(Selector):
    """What each project may hold at once in each zone, or region."""

    limit: int
    unit: str = field(default="chips", metadata={"choices": ("chips", "cores")})
    per: str = field(default="zone", metadata={"choices": ("zone", "region")})
    project: str = "*"
    name: str = "TPUsPerProjectForTPUAPI"

    def counts(self, held: Demand, demand: Demand) -> bool:
        """Return whether `held` uses the same quota as `demand`."""
        same = held.zone == demand.zone or (self.per == "region" and region(held.zone) == region(demand.zone))
        return same and held.project == demand.project and self.selects(held)

    def covers(self, demand: Demand) -> bool:
        """Return whether the quota limits the demand."""
        return fnmatchcase(demand.project, self.project) and self.selects(demand)

    def selects(self, demand: Demand) -> bool:
        """Flex-start counts as preemptible."""
        return Selector.selects(self, replace(demand, tier=SPOT) if demand.tier == FLEX_START else demand)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Reserved chips of one zone."""

    name: str
    zone: str
    chips: int
    type: str = "*"

    def serves(self, demand: Demand) -> bool:
        """Return whether the demand may use the reservation."""
        name = demand.reservation.rpartition("/")[2]
        return name in ("", "-", self.name) and matches(self.zone, self.type, demand.zone, demand.accelerator_type)


@dataclass(slots=True)
class Supply:
    """Without any data everything is unlimited."""

    capacity: list[Capacity] = field(default_factory=list)
    quotas: list[Quota] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    closed_queues: list[Selector] = field(default_factory=list)  # that refuse the project's requests
    flex_start: list[Selector] = field(default_factory=list)  # where it is offered; empty: as the catalog says
    preemptions: list[Preemption] = field(default_factory=list)
    locations: tuple[str, ...] = ()  # globs of the zones that projects may use; empty: all
    creates_per_minute: int | None = None
    _creates: deque[float] = field(default_factory=deque, init=False, repr=False)

    # --- at once, as an HTTP error ------------------------------------------------------------------------------------

    def may_use(self, zone: str) -> bool:
        """Return whether projects may use the zone."""
        return not self.locations or any(fnmatchcase(zone, place) for place in self.locations)

    def check_place(self, project: str, zone: str, names: Iterable[str]) -> None:
        """Raise ApiError if the project may not use the zone, unless one of its resources (all `names`) is there."""
        prefix = f"projects/{project}/locations/{zone}/"
        if not self.may_use(zone) and not any(name.startswith(prefix) for name in names):
            raise api_errors.location_denied(project, zone)

    def admit(self, demands: Sequence[Demand], held: list[Demand]) -> None:
        """Append all demands to `held`. Raises ApiError if a location or a quota forbids one of them."""
        for demand in demands:
            if not self.may_use(demand.zone):
                raise api_errors.location_denied(demand.project, demand.zone)
            self._check_quota(demand, held)
            held.append(demand)

    def count_create(self, project: str, now: float) -> None:
        """Count a call that creates a node. Raises ApiError for one too many within a minute."""
        if self.creates_per_minute is None:
            return
        while self._creates and self._creates[0] <= now - MINUTE_S:
            self._creates.popleft()
        if len(self._creates) >= self.creates_per_minute:
            raise api_errors.too_many_creates(project)
        self._creates.append(now)

    def _check_quota(self, demand: Demand, held: Iterable[Demand]) -> None:
        for quota in [quota for quota in self.quotas if quota.covers(demand)]:
            used = sum(row.amount(quota.unit) for row in held if quota.counts(row, demand))
            if used + demand.amount(quota.unit) > quota.limit:
                place = demand.zone if quota.per == "zone" else region(demand.zone)
                raise api_errors.quota_exceeded(quota.name, quota.limit, quota.per, place)

    # --- later, as the error of an operation --------------------------------------------------------------------------

    def late_refusal(self, demand: Demand) -> ApiError | None:
        """Return why a queued resource fails after it was accepted; None: it does not."""
        if any(closed.selects(demand) for closed in self.closed_queues):
            return api_errors.queue_closed(demand.accelerator_type, demand.zone)
        if demand.tier == FLEX_START and not self._has_flex_start(demand):
            return api_errors.no_flex_start(demand.accelerator_type, demand.zone)
        if demand.tier == RESERVED and self.reservations and not self._serving(demand):
            return api_errors.no_reservation("FAILED_PRECONDITION")
        return None

    def _has_flex_start(self, demand: Demand) -> bool:
        if self.flex_start:
            return any(place.selects(demand) for place in self.flex_start)
        return demand.zone in catalog.flex_start_zones(demand.accelerator_type)

    def shortage(self, demands: Sequence[Demand], on: Iterable[Demand], now: float) -> ApiError | None:
        """Return why the demands do not fit beside what is `on` already; None: all of them fit."""
        present = list(on)
        for demand in demands:
            reserved = demand.tier == RESERVED
            short = self._no_reservation(demand, present) if reserved else self._no_capacity(demand, present, now)
            if short is not None:
                return short
            present.append(demand)
        return None

    def _no_capacity(self, demand: Demand, on: list[Demand], now: float) -> ApiError | None:
        """The last rule that fits decides."""
        rule = next((rule for rule in reversed(self.capacity) if rule.open_at(now) and rule.selects(demand)), None)
        if rule is None or rule.chips is None:
            return None
        used = chips_used(rule, on) if rule.chips else 0
        return api_errors.no_capacity(demand.zone) if used + demand.amount("chips") > rule.chips else None

    def _no_reservation(self, demand: Demand, on: list[Demand]) -> ApiError | None:
        if not self.reservations:
            return None
        serving = self._serving(demand)
        used = [row for row in on if row.tier == RESERVED and any(one.serves(row) for one in serving)]
        free = sum(one.chips for one in serving) - sum(row.amount("chips") for row in used)
        return None if demand.amount("chips") <= free else api_errors.no_reservation("RESOURCE_EXHAUSTED")

    def _serving(self, demand: Demand) -> list[Reservation]:
        return [one for one in self.reservations if one.serves(demand)]

    def changes(self) -> list[float]:
        """Return the times at which capacity may appear."""
        return [time for rule in self.capacity for time in rule.changes()]

    # --- as plain data ------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """Return what `load` reads; what is empty is left out."""
        rows = asdict(replace(self))  # the copy has counted no creates
        return {name: rows[name] for name in PARTS if rows[name]}


PARTS = tuple(each.name for each in fields(Supply) if each.init)


def chips_used(rule: Capacity, on: Iterable[Demand]) -> int:
    """Return how many chips of what is `on` the rule counts: those of reservations do not count."""
    return sum(demand.amount("chips") for demand in on if demand.tier != RESERVED and rule.selects(demand))


def load(data: Mapping[str, Any], added_at: float | None = None) -> Supply:
    """Return the supply of `dump`, or of a rehearsal that begins at `added_at`. Raises BadData."""
    supply = read(Supply, data, "the supply")
    for rule in supply.capacity:
        if rule.until_s is not None and rule.until_s <= rule.from_s:
            raise BadData(f"until_s ({rule.until_s:g}) of a capacity must be after its from_s ({rule.from_s:g}).")
    for preemption in supply.preemptions:
        preemption.check()
    if added_at is not None:
        supply.capacity = [replace(rule, added_at=added_at) for rule in supply.capacity]
    return supply
