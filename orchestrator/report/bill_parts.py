"""Bills of slices and of attempts on this machine, and their parts: one payer, one use and one cause each. Pure."""

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TypeVar

from orchestrator.report.causes import Cause, Wait, Work
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
    owner: str = ""  # who added it to a queue; empty: the owner of the slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A slice that existed, or an attempt on this machine. Times are unix seconds of the ledger.

    `until` is None while nothing says that it is gone; then it is billed to `now`. Where it was not held, `held_at` is None.
    `on_demand_usd_per_hour`: of the same type and zone, for spot capacity; `list_usd_per_hour`: of its own kind, also where it
    was granted. `lent`: used by the process that created it, READY to deletion. `vms`: TPU VMs that came with it, `addresses`:
    those that have an external one.
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
    list_usd_per_hour: float | None = None
    owner: str = ""
    vms: int = 0
    addresses: int = 0
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
    """A part of a bill with one payer (None: no run), one use and one cause."""

    bill: Bill
    payer: BilledInterval | None
    use: Use
    cause: Cause
    since: float
    until: float

    @property
    def hours(self) -> float:
        return (self.until - self.since) / 3600

    @property
    def chip_hours(self) -> float | None:
        """None for a type that is not known."""
        return None if self.bill.chips is None else self.bill.chips * self.hours

    @property
    def usd(self) -> float | None:
        """Dollars; None without a known price."""
        return costs.between(self.bill.usd_per_hour, self.since, self.until)


def parts_of(bill: Bill) -> list[BillPart]:
    """Cut a bill wherever payer, use or cause change. Times outside of it are left out; an overlap counts for the first."""
    cuts = [bill.ready_at, bill.held_at, bill.down_at]
    cuts += [at for paid in bill.paid for at in (paid.since, paid.until)]
    cuts += [at for work in bill.work for at in work.cuts()]
    points = sorted({bill.since, bill.end, *(at for at in cuts if at is not None and bill.since < at < bill.end)})
    found: list[BillPart] = []
    for since, until in pairwise(points):
        payer = next((each for each in bill.paid if each.since <= since < each.until), None)
        part = BillPart(bill, payer, _use(bill, since), _cause(bill, since), since, until)
        if found and (found[-1].payer, found[-1].use, found[-1].cause) == (payer, part.use, part.cause):
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


def _cause(bill: Bill, at: float) -> Cause:
    if bill.down_at is not None and at >= bill.down_at:
        return Cause.TEARDOWN
    if bill.ready_at is None or at < bill.ready_at:
        return Cause.WAITING
    work = next((each for each in bill.work if each.since <= at < each.until), None)
    if work is not None:
        return work.cause(at)
    if bill.lent:
        return Cause.WORK
    return Cause.IDLE if bill.work or bill.held_at is not None else Cause.WAITING


P = TypeVar("P", BillPart, Wait)


def clipped(part: P, period: Period) -> P | None:
    """Return the part of the part in the period; None if there is none."""
    since = max(part.since, period.since)
    until = part.until if period.until is None else min(part.until, period.until)
    return replace(part, since=since, until=until) if since < until else None
