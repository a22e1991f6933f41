"""A plan: the candidates of a run in order, with a reason for each, before anything is sent. Pure.

`run` and `up` follow the plan that they printed. They send one candidate at a time: the next one follows when the cloud has
no capacity for the one before, preempts it, does not answer, or refuses it for quota or permission
(`promise.obtain.refusals`), and only when the one before is proven gone. In a race all queued candidates are sent at
once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orchestrator import catalog
from orchestrator.capacity.capacity_request import UNPRICED, CapacityRequest, PlanInputs, zones
from orchestrator.capacity.grants import Grant
from orchestrator.capacity.location_rules import offered_near
from orchestrator.capacity.provisioning import Provisioning
from orchestrator.errors import UserError
from orchestrator.text.units import format_duration, format_usd


class CandidateOrder(StrEnum):
    """In which order candidates are sent. Equal ones keep the order in which they were listed."""

    AS_LISTED = "as-listed"
    CHEAPEST = "cheapest"  # granted candidates first, those without a known price last
    FASTEST = "fastest"  # least expected waiting: on-demand, reserved and granted, then spot, then queued


_SHAPE = (
    *("accelerator_type", "zone", "runtime_version", "provisioning", "queued", "spot", "workers", "cores"),
    *("usd_per_hour", "list_usd_per_hour", "granted", "life_s", "worst_case_usd", "why"),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One request that may be sent. `granted`: free of charge, by the user's settings."""

    accelerator_type: str
    zone: str
    runtime_version: str
    provisioning: Provisioning
    usd_per_hour: float | None  # 0 if granted; None: the table has no price
    why: str
    queued: bool = False
    granted: bool = False
    list_usd_per_hour: float | None = None  # by the table, granted or not
    life_s: float = 24 * 3600.0  # from the create call to the delete at the latest: by the time limit or the budget
    workers: int = 1
    cores: int = 1
    offered_in: str | None = None  # where the table has it, in words, if it does not have it in this zone

    @property
    def spot(self) -> bool:
        return self.provisioning.spot

    @property
    def cores_per_worker(self) -> int:
        return self.cores // self.workers

    @property
    def worst_case_usd(self) -> float | None:
        """Dollars from the create call to the deadline; None if the price is unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.life_s / 3600

    def shape(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {key: getattr(self, key) for key in _SHAPE}


@dataclass(frozen=True, slots=True)
class Dropped:
    """What is left out of the plan, and why."""

    accelerator: str
    zone: str
    provisioning: Provisioning
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Candidates in the order of sending, and what applies to all of them."""

    candidates: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...]
    max_duration_s: float
    max_cost: float | None = None
    order: CandidateOrder = CandidateOrder.AS_LISTED
    race: bool = False  # send all queued candidates at once; the first READY one wins
    wait_s: float = 0.0  # how long to wait for capacity altogether; 0: every candidate is sent once
    availability_note: str | None = None  # when the API was asked what the project has, if it was

    @property
    def worst_case_usd(self) -> float | None:
        """Dollars for the most expensive candidate until its deadline; None if a price is unknown."""
        costs = [cost for each in self.candidates if (cost := each.worst_case_usd) is not None]
        return max(costs) if costs and len(costs) == len(self.candidates) else None

    @property
    def racing(self) -> tuple[Candidate, ...]:
        """The candidates that are sent at once."""
        return tuple(each for each in self.candidates if each.queued) if self.race else ()

    def overlap_usd(self, overlap_s: float) -> float | None:
        """Return the most that the losers of a race cost, if all become READY with the winner and exist `overlap_s` longer.

        In dollars; None if a price is unknown.
        """
        prices = [each.usd_per_hour for each in self.racing]
        known = [price for price in prices if price is not None]
        if len(known) < len(prices):
            return None
        return (sum(known) - min(known, default=0.0)) * overlap_s / 3600


_NO_INPUTS = PlanInputs()
SHORTEST_LIFE_S = 60.0
_FLEX = " with flex-start, as far as Google lists it"


def make(
    requests: Sequence[CapacityRequest],
    *,
    default_zone: str | None = None,
    order: CandidateOrder = CandidateOrder.AS_LISTED,
    max_price_per_hour: float | None = None,
    race: bool = False,
    wait_s: float = 0.0,
    inputs: PlanInputs = _NO_INPUTS,
) -> Plan:
    """Return the plan for these alternatives. Raises UserError if none of them exists or is allowed."""
    candidates: dict[tuple[object, ...], Candidate] = {}
    dropped: dict[tuple[str, str, Provisioning], Dropped] = {}
    refusals: list[UserError] = []
    for request in requests:
        for zone, why in zones(request, default_zone, inputs):
            try:
                candidate = _candidate(request, zone, why, order, max_price_per_hour, inputs)
            except UserError as error:
                refusals.append(error)
                place = (request.accelerator, zone, request.effective_provisioning)
                dropped.setdefault(place, Dropped(*place, error.message))
            else:
                key = (request.accelerator, zone, candidate.provisioning, candidate.queued, candidate.runtime_version)
                candidates.setdefault(key, candidate)
    if not candidates:
        raise _nothing_left(requests, refusals)
    kept = tuple(sorted(candidates.values(), key=lambda each: _rank(each, order)))
    return Plan(
        candidates=kept,
        dropped=tuple(dropped.values()),
        max_duration_s=max(candidate.life_s for candidate in kept),
        max_cost=requests[0].max_cost,
        order=order,
        race=race,
        wait_s=wait_s,
        availability_note=inputs.availability.age_note if inputs.availability else None,
    )


def _candidate(
    request: CapacityRequest, zone: str, why: str, order: CandidateOrder, limit: float | None, inputs: PlanInputs
) -> Candidate:
    """Raises UserError with the reason if the zone yields no candidate.

    A zone that the table lacks was named by the user: Google is asked, unless the table is to choose.
    """
    kind = catalog.lookup(request.accelerator)
    provisioning = request.effective_provisioning
    has = inputs.availability.has(request.accelerator, zone) if inputs.availability else None
    if has is False and inputs.availability:
        raise _NotOffered(f"your project has no {request.accelerator} there ({inputs.availability.age_note})")
    flex = provisioning is Provisioning.FLEX_START
    listed_zones = request.listed_zones()
    unlisted = kind is not None and not request.unlisted and zone not in listed_zones and (flex or not has)
    if unlisted and order is CandidateOrder.CHEAPEST:
        raise _NotOffered(f"{request.accelerator} is not offered there{_FLEX if flex else ''}")
    if problem := next(filter(None, (each.problem(zone) for each in inputs.buckets)), None):
        raise UserError(problem, hint="`allow_egress: true` in the job accepts that")
    listed = request.list_usd_per_hour(zone)
    grant = inputs.grant_for(request, zone)
    price = 0.0 if grant is not None else listed
    if limit is not None:
        _check_price(request, zone, price, limit)
    return Candidate(
        accelerator_type=request.accelerator,
        zone=zone,
        runtime_version=request.runtime or (kind.default_runtime if kind else ""),
        provisioning=provisioning,
        usd_per_hour=price,
        why=_with_grant(request, zone, why, grant, inputs),
        queued=request.queue or provisioning.queued,
        granted=grant is not None,
        list_usd_per_hour=listed,
        life_s=_life_s(request, zone, price),
        workers=kind.hosts if kind else 1,
        cores=kind.cores if kind else 1,
        offered_in=offered_near(zone, listed_zones) if unlisted else None,
    )


def _with_grant(request: CapacityRequest, zone: str, why: str, grant: Grant | None, inputs: PlanInputs) -> str:
    if grant is not None:
        return f"{why}; your settings say that it is granted ({grant.label})"
    spot = request.effective_provisioning.spot
    for each in inputs.grants_for(request):
        if each.too_small_for(request.accelerator, zone, spot=spot):
            return f"{why}; it is more than what is left of your grant ({each.label})"
    return why


class _NotOffered(UserError):
    """The zone does not have it, at any price."""


def _nothing_left(requests: Sequence[CapacityRequest], refusals: Sequence[UserError]) -> UserError:
    forbidden = [error for error in refusals if not isinstance(error, _NotOffered)]
    if forbidden:
        return forbidden[0]
    if not refusals and not any(request.places for request in requests):
        kinds = " or ".join(dict.fromkeys(request.accelerator for request in requests))
        return UserError(f"no zone is known to offer {kinds}", hint="name a zone: `zone:` in the job file, or --zone")
    each = [
        f"{request.accelerator} is not offered in {', '.join(request.places) or 'the zone of your settings'}"
        f"{_FLEX if request.effective_provisioning is Provisioning.FLEX_START else ''}"
        for request in requests
    ]
    offered = ", ".join(requests[0].listed_zones()) or "no zone of the table"
    return UserError("; ".join(dict.fromkeys(each)), hint=f"{requests[0].accelerator} is offered in: {offered}")


def _check_price(request: CapacityRequest, zone: str, price: float | None, limit: float) -> None:
    what = f"{request.accelerator} ({request.effective_provisioning}) in {zone}"
    hint = f"prices: `tpujob offers --type {request.accelerator}`"
    if price is None:
        raise UserError(f"max_price_per_hour: the price table has no price for {what}", hint=hint)
    if price > limit:
        raise UserError(f"max_price_per_hour: {what} costs about ${price:,.2f}/h, more than ${limit:,.2f}", hint=hint)


def _life_s(request: CapacityRequest, zone: str, price: float | None) -> float:
    if request.max_cost is None or price == 0:
        return request.max_duration_s
    where = f"{request.accelerator} in {zone}"
    return min(request.max_duration_s, affordable_s(request.max_cost, price, absent_s=request.absent_s, where=where))


def affordable_s(max_cost: float, usd_per_hour: float | None, *, absent_s: float, where: str) -> float:
    """Return the seconds from the create call to the delete for which the whole bill stays within `max_cost` dollars.

    `absent_s` is the time from a delete to absence, which is billed too. The price is that of the shipped table. Raises
    UserError if it is unknown, or so high that less than a minute is left.
    """
    if usd_per_hour is None:
        raise UserError(
            f"limits.max_cost: the price table has no price for {where}, so the budget could not be kept",
            hint="use limits.max_duration, or a type and zone with a known price",
        )
    seconds = max_cost / usd_per_hour * 3600 - absent_s
    if seconds < SHORTEST_LIFE_S:
        least = usd_per_hour * (SHORTEST_LIFE_S + absent_s) / 3600
        raise UserError(
            f"limits.max_cost: {where} uses up {format_usd(max_cost)} within {format_duration(seconds + absent_s)}",
            hint=f"it takes ${least:,.2f} at least: {SHORTEST_LIFE_S:.0f} s, and {absent_s:.0f} s for the deletion, at about "
            f"${usd_per_hour:,.2f}/h",
        )
    return seconds


def _rank(candidate: Candidate, order: CandidateOrder) -> float:
    if order is CandidateOrder.CHEAPEST:
        return UNPRICED if candidate.usd_per_hour is None else candidate.usd_per_hour
    if order is CandidateOrder.FASTEST:
        return 2 if candidate.queued else 1 if candidate.spot and not candidate.granted else 0
    return 0
