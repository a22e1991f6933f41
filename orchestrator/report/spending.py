"""Where the dollars of a period went: bills, cut by use, as rows by run, job, project or accelerator. Pure.

Each moment of a slice counts once, for one run or for none, and for one use (`Use`); so the parts of a row add up to its
cost, and the rows to their total. A cost of which one price is unknown is None, never a sum without it. The clouds are never
added up: of emulated and local ones nothing is money.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any, Literal

from orchestrator import traits as place_traits
from orchestrator.promise.lease.lease import LeaseState
from orchestrator.report.rows import costs


class Use(StrEnum):
    """What a slice was paid for."""

    JOB = "job"  # an attempt that succeeded or goes on, or a slice that `api.slice()` lends
    FAILED = "failed"  # an attempt that ended without success, also by the loss of its slice
    IDLE = "idle"  # held, and no run on it
    LOST = "lost"  # no job reached it: it lost a race, or was given up while it was created
    OVERHEAD = "overhead"  # it was being created or deleted


@dataclass(frozen=True, slots=True)
class Period:
    """From `since` to before `until`, in unix seconds. None: without an end, so that no wrong clock hides anything."""

    since: float
    until: float | None = None


@dataclass(frozen=True, slots=True)
class BilledInterval:
    """The time of a slice that a run pays for. `job`: its name, or that of its sweep."""

    run: str
    job: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Work:
    """The time in which an attempt was on a slice. `failed`: it ended without success."""

    since: float
    until: float
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A slice that existed, or an attempt on this machine. Times are unix seconds of the ledger.

    `until` is None while nothing says that it is gone; then it is billed to `now`. Where it was not held, `held_at` is None.
    `on_demand_usd_per_hour`: of the same type and zone, for spot capacity. `lent`: used by the process that created it, READY
    to deletion.
    """

    id: str
    cloud: str
    project: str
    zone: str = ""
    name: str
    node: str = ""
    accelerator_type: str
    chips: int | None = None
    state: str
    since: float
    until: float | None
    now: float
    usd_per_hour: float | None = None
    spot: bool = False
    on_demand_usd_per_hour: float | None = None
    ready_at: float | None = None
    held_at: float | None = None
    down_at: float | None = None
    lent: bool = False
    paid: tuple[BilledInterval, ...] = ()
    work: tuple[Work, ...] = ()

    @property
    def end(self) -> float:
        """When it ends, or now; never before it began."""
        return max(self.now if self.until is None else self.until, self.since)


@dataclass(frozen=True, slots=True)
class BillPart:
    """A part of a bill with one payer (None: no run) and one use."""

    bill: Bill
    payer: BilledInterval | None
    use: Use
    since: float
    until: float

    @property
    def hours(self) -> float:
        return (self.until - self.since) / 3600

    @property
    def usd(self) -> float | None:
        """Dollars; None without a known price."""
        return costs.between(self.bill.usd_per_hour, self.since, self.until)


def parts_of(bill: Bill) -> list[BillPart]:
    """Cut a bill wherever its payer or its use changes. Times outside of it are left out; an overlap counts for the first."""
    cuts = [bill.ready_at, bill.held_at, bill.down_at]
    cuts += [at for paid in bill.paid for at in (paid.since, paid.until)]
    cuts += [at for work in bill.work for at in (work.since, work.until)]
    points = sorted({bill.since, bill.end, *(at for at in cuts if at is not None and bill.since < at < bill.end)})
    found: list[BillPart] = []
    for since, until in pairwise(points):
        payer = next((each for each in bill.paid if each.since <= since < each.until), None)
        part = BillPart(bill, payer, _use(bill, since), since, until)
        if found and (found[-1].payer, found[-1].use) == (payer, part.use):
            found[-1] = replace(found[-1], until=until)
        else:
            found.append(part)
    return found


def _use(bill: Bill, at: float) -> Use:
    work = next((each for each in bill.work if each.since <= at < each.until), None)
    ready = bill.ready_at is not None and at >= bill.ready_at
    down = bill.down_at is not None and at >= bill.down_at
    if ready and work is not None:
        return Use.FAILED if work.failed else Use.JOB
    if ready and not down and bill.held_at is not None and at >= bill.held_at:
        return Use.IDLE
    if ready and not down and bill.lent:
        return Use.JOB
    used = bill.ready_at is not None and (bill.work or bill.lent or bill.held_at is not None)
    return Use.OVERHEAD if used or bill.down_at is None else Use.LOST


def clipped(part: BillPart, period: Period) -> BillPart | None:
    """Return the part of the part in the period; None if there is none."""
    since = max(part.since, period.since)
    until = part.until if period.until is None else min(part.until, period.until)
    return replace(part, since=since, until=until) if since < until else None


By = Literal["run", "job", "project", "accelerator"]
HERE = "this machine"  # project and accelerator of a local run
FORGOTTEN = str(LeaseState.FORGOTTEN)


@dataclass(frozen=True, slots=True)
class CostRow:
    """One run, job, project or accelerator type, or a total. Every dollar is None if one price in it is unknown.

    `job_usd`, `failed_usd`, `idle_usd`, `lost_usd` and `overhead_usd` add up to `cost_usd` (`Use` says what each is).
    `known_usd` is the part of it with a known price, None if none has one; `unpriced_hours` is the rest. `spot_saved_usd` is
    against the on-demand price of the same type and zone. On this machine there is no price, and `hours` are those of the
    runs. `job`: of a run. `chip_hours`: None if a type is unknown.
    """

    name: str
    job: str | None
    runs: int
    slices: int
    hours: float
    chip_hours: float | None
    cost_usd: float | None
    known_usd: float | None
    unpriced_hours: float
    job_usd: float | None
    failed_usd: float | None
    idle_usd: float | None
    lost_usd: float | None
    overhead_usd: float | None
    spot_saved_usd: float | None


@dataclass(frozen=True, slots=True)
class OpenSlice:
    """A slice whose absence is not proven: billed until now, or (`forgotten`) until the user gave up asking after it."""

    node: str
    name: str
    accelerator_type: str
    zone: str
    project: str
    state: str
    since: float
    counted_until: float
    forgotten: bool
    usd_per_hour: float | None
    cost_usd: float | None  #: in this period


@dataclass(frozen=True, slots=True)
class CloudCost:
    """What one cloud cost: `google`, `emulated` (nothing of it is billed) or `local` (no price)."""

    cloud: str
    total: CostRow
    rows: tuple[CostRow, ...]  #: the most expensive first
    open_slices: tuple[OpenSlice, ...]

    @property
    def billed(self) -> bool:
        """Whether its slices have prices."""
        return place_traits.traits_of(self.cloud).billed

    @property
    def dollars(self) -> str:
        """What its dollars are; empty: there are none."""
        if place_traits.is_emulated(self.cloud):
            return "the prices of Google Cloud, and nothing of it is billed"
        return place_traits.traits_of(self.cloud).dollars


def clouds(bills: Iterable[Bill], period: Period, by: By) -> tuple[CloudCost, ...]:
    """Return each cloud on which something was billed in the period."""
    found: dict[str, list[BillPart]] = defaultdict(list)
    for bill in bills:
        for part in parts_of(bill):
            if (inside := clipped(part, period)) is not None:
                found[bill.cloud].append(inside)
    return tuple(_cloud(cloud, found[cloud], by) for cloud in sorted(found, key=_order))


def _order(cloud: str) -> tuple[bool, bool, int]:
    """What is money comes first."""
    traits = place_traits.traits_of(cloud)
    return not traits.billed, place_traits.is_emulated(cloud), (*place_traits.NAMES, "").index(traits.name)


def _cloud(cloud: str, found: Sequence[BillPart], by: By) -> CloudCost:
    groups: dict[tuple[str, str | None], list[BillPart]] = defaultdict(list)
    for part in found:
        groups[_key(part, by)].append(part)
    rows = [_row(name, job, inside) for (name, job), inside in groups.items()]
    rows.sort(key=lambda row: (-(row.known_usd or 0.0), -row.hours, row.name))
    return CloudCost(cloud, _row("total", None, found), tuple(rows), _open_slices(found))


def _row(name: str, job: str | None, found: Sequence[BillPart]) -> CostRow:
    def dollars(*uses: Use) -> float | None:
        return costs.total(each.usd for each in found if each.use in uses) if billed else None

    billed = all(place_traits.traits_of(each.bill.cloud).billed for each in found)
    known = [each.usd for each in found if each.usd is not None]
    chips = [None if each.bill.chips is None else each.bill.chips * each.hours for each in found]
    return CostRow(
        name=name,
        job=job,
        runs=len({each.payer.run for each in found if each.payer is not None}),
        slices=len({each.bill.id for each in found}) if billed else 0,
        hours=sum(each.hours for each in found),
        chip_hours=costs.total(chips),
        cost_usd=dollars(*Use),
        known_usd=sum(known) if known else None,
        unpriced_hours=sum((each.hours for each in found if each.usd is None), 0.0),
        **{f"{use}_usd": dollars(use) for use in Use},
        spot_saved_usd=costs.total(_saved(each) for each in found if each.bill.spot) if billed else None,
    )


def _saved(part: BillPart) -> float | None:
    """Return what spot capacity saved; nothing on granted capacity, which is free without it."""
    price, on_demand = part.bill.usd_per_hour, part.bill.on_demand_usd_per_hour
    if price == 0:
        return 0.0
    return None if price is None or on_demand is None else (on_demand - price) * part.hours


def _open_slices(found: Sequence[BillPart]) -> tuple[OpenSlice, ...]:
    parts: dict[str, list[BillPart]] = defaultdict(list)
    for part in found:
        bill = part.bill
        if place_traits.traits_of(bill.cloud).billed and (bill.until is None or bill.state == FORGOTTEN):
            parts[bill.id].append(part)
    return tuple(
        OpenSlice(
            node=bill.node,
            name=bill.name,
            accelerator_type=bill.accelerator_type,
            zone=bill.zone,
            project=bill.project,
            state=bill.state,
            since=bill.since,
            counted_until=max(each.until for each in inside),
            forgotten=bill.state == FORGOTTEN,
            usd_per_hour=bill.usd_per_hour,
            cost_usd=costs.total(each.usd for each in inside),
        )
        for inside in parts.values()
        for bill in (inside[0].bill,)
    )


def _key(part: BillPart, by: By) -> tuple[str, str | None]:
    """Return the name of the row that has this part, and the job of a run."""
    bill, payer = part.bill, part.payer
    if by in ("project", "accelerator"):
        return bill.project if by == "project" else bill.accelerator_type, None
    if payer is None:
        return f"slice {bill.name}", None
    return (payer.run, payer.job) if by == "run" else (payer.job, None)


@dataclass(frozen=True, slots=True)
class CostReport:
    """What this machine's slices and runs cost in a period, by `by`. An estimate by a dated price table, no invoice.

    `since` and `until` are unix seconds; `until` is None for a period without an end. `asked_at`: until when a slice counts
    that is still billed.
    """

    since: float
    until: float | None
    asked_at: float
    by: By
    prices_as_of: str
    note: str
    clouds: tuple[CloudCost, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
