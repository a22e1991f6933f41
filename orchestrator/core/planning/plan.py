"""A plan: what will be asked of the cloud, with a reason for each choice, before anything happens. Pure.

`run` and `up` do what their plan printed: candidates in order, the next one only after a stockout and only when the one
before is proven gone; or, in a race, all queued ones at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator import catalog
from orchestrator.core.planning import budget
from orchestrator.core.planning.capacity_request import (
    UNPRICED,
    CapacityRequest,
    PlanInputs,
    grant_for,
    grants_of,
    list_usd_per_hour,
    listed_zones,
    zones,
)
from orchestrator.core.planning.grants import Grant
from orchestrator.core.planning.provisioning import Provisioning
from orchestrator.errors import UserError


class CandidateOrder(StrEnum):
    """In which order candidates are asked. Equals keep the order in which they were listed."""

    AS_LISTED = "as-listed"
    CHEAPEST = "cheapest"  # what is granted first, what has no known price last
    FASTEST = "fastest"  # least expected waiting: on-demand, reserved and granted, then spot, then whatever is queued


@dataclass(frozen=True, slots=True)
class Candidate:
    """One request that may be sent. `granted`: it costs this person nothing, by their own settings."""

    accelerator_type: str
    zone: str
    runtime_version: str
    provisioning: Provisioning
    usd_per_hour: float | None  # to this person: 0 if granted; None: the table has no price
    why: str
    queued: bool = False
    granted: bool = False
    list_usd_per_hour: float | None = None  # what the table says
    life_s: float = 24 * 3600.0  # from the create call to the delete at the latest: the time limit or the budget's
    workers: int = 1
    cores: int = 1

    @property
    def spot(self) -> bool:
        return self.provisioning.spot

    @property
    def cores_per_worker(self) -> int:
        return self.cores // self.workers

    @property
    def worst_case_usd(self) -> float | None:
        """What it costs from the create call to its deadline."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.life_s / 3600


@dataclass(frozen=True, slots=True)
class Dropped:
    accelerator: str
    zone: str
    provisioning: Provisioning
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    candidates: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...]
    max_duration_s: float
    max_cost: float | None = None
    order: CandidateOrder = CandidateOrder.AS_LISTED
    race: bool = False  # the queued candidates at once; the first that is there wins
    wait_s: float = 0.0  # how long to wait for capacity altogether; 0: every candidate is asked once
    asked: str | None = None  # when the API was asked what the project has, if it was

    @property
    def worst_case_usd(self) -> float | None:
        """The dearest candidate until its deadline. None when a price is unknown."""
        costs = [cost for one in self.candidates if (cost := one.worst_case_usd) is not None]
        return max(costs) if costs and len(costs) == len(self.candidates) else None

    @property
    def racing(self) -> tuple[Candidate, ...]:
        """Those that are asked for at once."""
        return tuple(one for one in self.candidates if one.queued) if self.race else ()

    def overlap_usd(self, overlap_s: float) -> float | None:
        """What the losers of a race cost at most, if all come alive with the winner and take so long to be gone."""
        prices = [one.usd_per_hour for one in self.racing]
        known = [price for price in prices if price is not None]
        if len(known) < len(prices):
            return None
        return (sum(known) - min(known, default=0.0)) * overlap_s / 3600


_NOTHING_MORE = PlanInputs()
_FLEX = " with flex-start, as far as Google lists it"


def make(
    wishes: Sequence[CapacityRequest],
    *,
    default_zone: str | None = None,
    order: CandidateOrder = CandidateOrder.AS_LISTED,
    max_price_per_hour: float | None = None,
    race: bool = False,
    wait_s: float = 0.0,
    known: PlanInputs = _NOTHING_MORE,
) -> Plan:
    """Candidates in the order of asking. Raises UserError when nothing that was asked for exists or may be had."""
    candidates: dict[tuple[object, ...], Candidate] = {}
    dropped: dict[tuple[str, str, Provisioning], Dropped] = {}
    refusals: list[UserError] = []
    for wish in wishes:
        for zone, why in zones(wish, default_zone, known):
            try:
                one = _candidate(wish, zone, why, max_price_per_hour, known)
            except UserError as error:
                refusals.append(error)
                no = Dropped(wish.accelerator, zone, wish.way, error.message)
                dropped.setdefault((no.accelerator, no.zone, no.provisioning), no)
            else:
                same = (one.accelerator_type, one.zone, one.provisioning, one.queued, one.runtime_version)
                candidates.setdefault(same, one)
    if not candidates:
        raise _nothing_left(wishes, refusals)
    kept = tuple(sorted(candidates.values(), key=lambda one: _rank(one, order)))
    return Plan(
        candidates=kept,
        dropped=tuple(dropped.values()),
        max_duration_s=max(candidate.life_s for candidate in kept),
        max_cost=wishes[0].max_cost,
        order=order,
        race=race,
        wait_s=wait_s,
        asked=known.offering.asked if known.offering else None,
    )


def _candidate(
    wish: CapacityRequest, zone: str, why: str, max_price_per_hour: float | None, known: PlanInputs
) -> Candidate:
    """Raises UserError with the reason why this is none."""
    kind = catalog.lookup(wish.accelerator)
    has = known.offering.has(wish.accelerator, zone) if known.offering else None
    if has is False and known.offering:
        raise _NotOffered(f"your project has no {wish.accelerator} there ({known.offering.asked})")
    flex = wish.way is Provisioning.FLEX_START
    if kind is not None and not wish.unlisted and zone not in listed_zones(wish) and (flex or not has):
        raise _NotOffered(f"{kind.name} is not offered there{_FLEX if flex else ''}")
    if known.bucket is not None and (problem := known.bucket.problem(zone)):
        raise UserError(problem, hint="`allow_egress: true` in the job accepts that")
    listed = list_usd_per_hour(wish, zone)
    grant = grant_for(wish, zone, known)
    price = 0.0 if grant is not None else listed
    if max_price_per_hour is not None:
        _check_price(wish, zone, price, max_price_per_hour)
    return Candidate(
        accelerator_type=wish.accelerator,
        zone=zone,
        runtime_version=wish.runtime or (kind.default_runtime if kind else ""),
        provisioning=wish.way,
        usd_per_hour=price,
        why=_with_grant(wish, zone, why, grant, known),
        queued=wish.queue or wish.way.queued,
        granted=grant is not None,
        list_usd_per_hour=listed,
        life_s=_life_s(wish, zone, price),
        workers=kind.hosts if kind else 1,
        cores=kind.cores if kind else 1,
    )


def _with_grant(wish: CapacityRequest, zone: str, why: str, grant: Grant | None, known: PlanInputs) -> str:
    if grant is not None:
        return f"{why}; your settings say that it is granted ({grant.words})"
    short = [one for one in grants_of(wish, known) if one.too_small_for(wish.accelerator, zone, spot=wish.way.spot)]
    return f"{why}; it is more than what is left of your grant ({short[0].words})" if short else why


class _NotOffered(UserError):
    """There is no such thing in that zone, at any price."""


def _nothing_left(wishes: Sequence[CapacityRequest], refusals: Sequence[UserError]) -> UserError:
    forbidden = [error for error in refusals if not isinstance(error, _NotOffered)]
    if forbidden:
        return forbidden[0]
    if not refusals and not any(wish.places for wish in wishes):
        kinds = " or ".join(dict.fromkeys(wish.accelerator for wish in wishes))
        return UserError(f"no zone is known to offer {kinds}", hint="name one")
    each = [
        f"{wish.accelerator} is not offered in {', '.join(wish.places) or 'the zone of your settings'}"
        f"{_FLEX if wish.way is Provisioning.FLEX_START else ''}"
        for wish in wishes
    ]
    offered = ", ".join(listed_zones(wishes[0])) or "no zone of the table"
    return UserError("; ".join(dict.fromkeys(each)), hint=f"{wishes[0].accelerator} is offered in: {offered}")


def _check_price(wish: CapacityRequest, zone: str, price: float | None, most: float) -> None:
    what = f"{wish.accelerator} ({wish.way}) in {zone}"
    hint = f"prices: `tpujob offers --type {wish.accelerator}`"
    if price is None:
        raise UserError(f"max_price_per_hour: the price table has no price for {what}", hint=hint)
    if price > most:
        raise UserError(f"max_price_per_hour: {what} costs about ${price:,.2f}/h, more than ${most:,.2f}", hint=hint)


def _life_s(wish: CapacityRequest, zone: str, price: float | None) -> float:
    if wish.max_cost is None or price == 0:
        return wish.max_duration_s
    where = f"{wish.accelerator} in {zone}"
    return min(wish.max_duration_s, budget.life_s(wish.max_cost, price, absent_s=wish.absent_s, where=where))


def _rank(one: Candidate, order: CandidateOrder) -> float:
    if order is CandidateOrder.CHEAPEST:
        return UNPRICED if one.usd_per_hour is None else one.usd_per_hour
    if order is CandidateOrder.FASTEST:
        return 2 if one.queued else 1 if one.spot and not one.granted else 0
    return 0
