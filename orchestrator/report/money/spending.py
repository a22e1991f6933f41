"""Where the dollars of a period went: billed time → rows by run, job, project or accelerator. Pure.

Each moment of a slice counts once, for one run or for none, and for one use (`Use`); so the parts of a row add up to its
cost, and the rows to their total. A cost of which one price is unknown is None, never a sum without it. The clouds are never
added up: of emulated and local ones nothing is money.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchestrator import places
from orchestrator.core.lease.lease import LeaseState
from orchestrator.report import costs
from orchestrator.report.money.stretches import Bill, Period, Stretch, Use, clipped, stretches

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


def clouds(bills: Iterable[Bill], period: Period, by: By) -> tuple[CloudCost, ...]:
    """Return each cloud on which something was billed in the period."""
    found: dict[str, list[Stretch]] = defaultdict(list)
    for bill in bills:
        for stretch in stretches(bill):
            if (inside := clipped(stretch, period)) is not None:
                found[bill.cloud].append(inside)
    return tuple(_cloud(cloud, found[cloud], by) for cloud in sorted(found, key=_order))


def _order(cloud: str) -> tuple[bool, bool, int]:
    """What is money comes first."""
    traits = places.traits_of(cloud)
    return not traits.billed, places.is_emulated(cloud), (*places.NAMES, "").index(traits.name)


def _cloud(cloud: str, found: Sequence[Stretch], by: By) -> CloudCost:
    key = _KEYS[by]
    groups: dict[tuple[str, str | None], list[Stretch]] = defaultdict(list)
    for stretch in found:
        groups[key(stretch)].append(stretch)
    rows = [_row(name, job, inside) for (name, job), inside in groups.items()]
    rows.sort(key=lambda row: (-(row.known_usd or 0.0), -row.hours, row.name))
    return CloudCost(cloud, _row("total", None, found), tuple(rows), _open_slices(found))


def _row(name: str, job: str | None, found: Sequence[Stretch]) -> CostRow:
    def dollars(*uses: Use) -> float | None:
        return costs.total(each.usd for each in found if each.use in uses) if billed else None

    billed = all(places.traits_of(each.bill.cloud).billed for each in found)
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
        job_usd=dollars(Use.JOB),
        failed_usd=dollars(Use.FAILED),
        idle_usd=dollars(Use.IDLE),
        lost_usd=dollars(Use.LOST),
        overhead_usd=dollars(Use.OVERHEAD),
        spot_saved_usd=costs.total(_saved(each) for each in found if each.bill.spot) if billed else None,
    )


def _saved(stretch: Stretch) -> float | None:
    """Return what spot capacity saved; nothing on granted capacity, which is free without it."""
    price, on_demand = stretch.bill.usd_per_hour, stretch.bill.on_demand_usd_per_hour
    if price == 0:
        return 0.0
    return None if price is None or on_demand is None else (on_demand - price) * stretch.hours


def _open_slices(found: Sequence[Stretch]) -> tuple[OpenSlice, ...]:
    parts: dict[str, list[Stretch]] = defaultdict(list)
    for stretch in found:
        bill = stretch.bill
        if places.traits_of(bill.cloud).billed and (bill.until is None or bill.state == FORGOTTEN):
            parts[bill.id].append(stretch)
    return tuple(_open_slice(each) for each in parts.values())


def _open_slice(parts: Sequence[Stretch]) -> OpenSlice:
    bill = parts[0].bill
    return OpenSlice(
        node=bill.node,
        name=bill.name,
        accelerator_type=bill.accelerator_type,
        zone=bill.zone,
        project=bill.project,
        state=bill.state,
        since=bill.since,
        counted_until=max(each.until for each in parts),
        forgotten=bill.state == FORGOTTEN,
        usd_per_hour=bill.usd_per_hour,
        cost_usd=costs.total(each.usd for each in parts),
    )


def _by_run(stretch: Stretch) -> tuple[str, str | None]:
    payer = stretch.payer
    return (payer.run, payer.job) if payer is not None else _by_job(stretch)


def _by_job(stretch: Stretch) -> tuple[str, str | None]:
    payer = stretch.payer
    return (payer.job if payer is not None else f"slice {stretch.bill.name}"), None


_KEYS: dict[By, Callable[[Stretch], tuple[str, str | None]]] = {
    "run": _by_run,
    "job": _by_job,
    "project": lambda stretch: (stretch.bill.project, None),
    "accelerator": lambda stretch: (stretch.bill.accelerator_type, None),
}


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
