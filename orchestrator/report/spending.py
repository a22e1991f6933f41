"""Where the dollars of a period went: bills, cut by use, as rows by run, job, project or accelerator. Pure.

Each moment of a slice counts once, for one run or for none, for one use (`Use`) and one cause (`Cause`); so the parts of a
row add up to its cost, and the rows to their total. A cost of which one price is unknown is None, never a sum without it. The
clouds are never added up: of emulated and local ones nothing is money.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from orchestrator import traits as place_traits
from orchestrator.capacity import egress
from orchestrator.promise.lease.lease import LeaseState
from orchestrator.report.bill_parts import Bill, BillPart, Period, Use, clipped, parts_of
from orchestrator.report.causes import Cause, Wait
from orchestrator.report.rows import costs

By = Literal["run", "job", "project", "accelerator", "owner", "cause"]
HERE = "this machine"  # project and accelerator of a local run
FORGOTTEN = str(LeaseState.FORGOTTEN)


@dataclass(frozen=True, slots=True)
class CauseCost:
    """What went to one cause (`report.causes.Cause`). `chip_hours`, `cost_usd`: None if a type or a price is unknown."""

    cause: str
    hours: float
    chip_hours: float | None
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class CostRow:
    """One run, job, project, accelerator type, owner or cause, or a total. Every dollar is None if one price in it is unknown.

    `job_usd`, `failed_usd`, `idle_usd`, `lost_usd` and `overhead_usd` add up to `cost_usd` (`Use` says what each is).
    `known_usd` is the part of it with a known price, None if none has one; `unpriced_hours` is the rest. `spot_saved_usd` is
    against the on-demand price of the same type and zone. On this machine there is no price, and `hours` are those of the
    runs. `job`: of a run. `chip_hours`: None if a type is unknown.

    `causes` add up to `hours`, `chip_hours` and `cost_usd`. `waited_hours` are of runs for which no slice was billed meanwhile.
    `granted_usd` is what granted capacity, which is free, would have cost.
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
    granted_usd: float | None = 0.0
    waited_hours: float = 0.0
    causes: tuple[CauseCost, ...] = ()  #: the greatest first

    @property
    def shown_causes(self) -> tuple[CauseCost, ...]:
        """Those that take a tenth of a second at least."""
        return tuple(each for each in self.causes if each.hours * 3600 >= 0.1)


@dataclass(frozen=True, slots=True)
class PersonCost:
    """What the slices of one owner and one accelerator type cost: `CostRow` says what the figures are."""

    owner: str
    accelerator_type: str
    cost: CostRow


@dataclass(frozen=True, slots=True)
class NotCounted:
    """What is not in any dollar here, and may be billed beside the chips. `quantity`: None where tpujob does not measure it."""

    what: str
    quantity: float | None
    unit: str
    note: str


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
    people: tuple[PersonCost, ...] = ()
    not_counted: tuple[NotCounted, ...] = ()

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


def clouds(
    bills: Iterable[Bill], period: Period, by: By, waits: Iterable[Wait] = (), runs: Collection[str] | None = None
) -> tuple[CloudCost, ...]:
    """Return each cloud on which something was billed, or waited for, in the period. `runs`: only what these pay for."""
    found: dict[str, list[BillPart]] = defaultdict(list)
    waited: dict[str, list[Wait]] = defaultdict(list)
    for bill in bills:
        for part in parts_of(bill):
            is_theirs = runs is None or (part.payer is not None and part.payer.run in runs)
            if is_theirs and (inside := clipped(part, period)) is not None:
                found[bill.cloud].append(inside)
    for wait in waits:
        within = clipped(wait, period) if runs is None or wait.run in runs else None
        if within is not None:
            waited[wait.cloud].append(within)
    return tuple(_cloud(cloud, found[cloud], waited[cloud], by) for cloud in sorted({*found, *waited}, key=_order))


def _order(cloud: str) -> tuple[bool, bool, int]:
    """What is money comes first."""
    traits = place_traits.traits_of(cloud)
    return not traits.billed, place_traits.is_emulated(cloud), (*place_traits.NAMES, "").index(traits.name)


def _cloud(cloud: str, found: Sequence[BillPart], waited: Sequence[Wait], by: By) -> CloudCost:
    rows = _rows(found, waited, lambda each: _key(each, by))
    types = _rows(found, waited, _whose)
    people = tuple(PersonCost(row.name, row.job or "", replace(row, job=None)) for row in types)
    total = _row("total", None, found, waited)
    return CloudCost(cloud, total, tuple(rows), _open_slices(found), people, tuple(_not_counted(found)))


def _rows(
    found: Sequence[BillPart], waited: Sequence[Wait], key: Callable[[BillPart | Wait], tuple[str, str | None]]
) -> list[CostRow]:
    """Return a row for each key, which is its name and its second name, the most expensive first."""
    groups: dict[tuple[str, str | None], tuple[list[BillPart], list[Wait]]] = defaultdict(lambda: ([], []))
    for part in found:
        groups[key(part)][0].append(part)
    for wait in waited:
        groups[key(wait)][1].append(wait)
    rows = [_row(name, job, *inside) for (name, job), inside in groups.items()]
    return sorted(rows, key=lambda row: (-(row.known_usd or 0.0), -row.hours, row.name, row.job or ""))


def _row(name: str, job: str | None, found: Sequence[BillPart], waited: Sequence[Wait]) -> CostRow:
    def dollars(*uses: Use) -> float | None:
        return costs.total(each.usd for each in found if each.use in uses) if billed else None

    clouds = {*(each.bill.cloud for each in found), *(each.cloud for each in waited)}
    billed = all(place_traits.traits_of(each).billed for each in clouds)
    known = [each.usd for each in found if each.usd is not None]
    return CostRow(
        name=name, job=job,
        runs=len({each.payer.run for each in found if each.payer is not None} | {each.run for each in waited}),
        slices=len({each.bill.id for each in found}) if billed else 0, hours=sum((each.hours for each in found), 0.0),
        chip_hours=costs.total(each.chip_hours for each in found), cost_usd=dollars(*Use),
        known_usd=sum(known) if known else None,
        unpriced_hours=sum((each.hours for each in found if each.usd is None), 0.0),
        **{f"{use}_usd": dollars(use) for use in Use},
        spot_saved_usd=costs.total(_saved(each) for each in found if each.bill.spot) if billed else None,
        granted_usd=costs.total(_granted(each) for each in found) if billed else None,
        waited_hours=sum((each.until - each.since for each in waited), 0.0) / 3600,
        causes=_causes(found, billed=billed),
    )  # fmt: skip


def _causes(found: Sequence[BillPart], *, billed: bool) -> tuple[CauseCost, ...]:
    parts: dict[Cause, list[BillPart]] = defaultdict(list)
    for part in found:
        parts[part.cause].append(part)
    made = [
        CauseCost(
            cause=str(cause),
            hours=sum(each.hours for each in inside),
            chip_hours=costs.total(each.chip_hours for each in inside),
            cost_usd=costs.total(each.usd for each in inside) if billed else None,
        )
        for cause, inside in parts.items()
    ]
    return tuple(sorted(made, key=lambda each: -each.hours))


def _granted(part: BillPart) -> float | None:
    return 0.0 if part.bill.usd_per_hour != 0 else costs.between(part.bill.list_usd_per_hour, part.since, part.until)


DISK_GB = 100  # of the boot disk of a TPU VM (docs/troubleshooting.md)


def _not_counted(found: Sequence[BillPart]) -> Iterator[NotCounted]:
    """Yield what a grant of chips leaves to the project: quantities that follow from the slices, and what is not measured."""
    if not any(each.bill.vms for each in found):
        return
    vm_hours = sum(each.bill.vms * each.hours for each in found)
    address_hours = sum(each.bill.addresses * each.hours for each in found)
    unknown = "the price is not known here"
    yield NotCounted("boot disks", DISK_GB * vm_hours, "GB hours", f"{DISK_GB} GB for each TPU VM; {unknown}")
    yield NotCounted(
        "external addresses", address_hours, "address hours", f"one for each TPU VM that has one; {unknown}"
    )
    yield NotCounted("Cloud Storage", None, "GB hours and requests", f"tpujob does not measure it; {unknown}")
    yield NotCounted(
        "egress", None, "GB", f"tpujob does not measure it; from a bucket in another region {egress.ANYWHERE}"
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


def _key(part: BillPart | Wait, by: By) -> tuple[str, str | None]:
    """Return the name of the row that has this part, and the job of a run."""
    where = part.bill if isinstance(part, BillPart) else part
    payer = part.payer if isinstance(part, BillPart) else part
    match by:
        case "project":
            return where.project, None
        case "accelerator":
            return where.accelerator_type, None
        case "owner":
            return _whose(part)[0], None
        case "cause":
            return (str(part.cause) if isinstance(part, BillPart) else str(Cause.WAITING)), None
    if payer is None:
        return f"slice {part.bill.name}" if isinstance(part, BillPart) else "", None
    return (payer.run, payer.job) if by == "run" else (payer.job, None)


def _whose(part: BillPart | Wait) -> tuple[str, str]:
    """Return the person and the accelerator type."""
    where = part.bill if isinstance(part, BillPart) else part
    payer = part.payer if isinstance(part, BillPart) else part
    return (payer.owner if payer is not None else "") or where.owner, where.accelerator_type


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
