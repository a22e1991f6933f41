"""A slice, or an attempt on this machine, as a bill; and a bill cut wherever its payer or its use changes. Pure."""

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from orchestrator.report import costs


class Use(StrEnum):
    """What a slice was paid for."""

    JOB = "job"  # an attempt that succeeded or goes on, or a slice that `client.slice()` lends
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
class Paid:
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


@dataclass(frozen=True, slots=True)
class Bill:
    """A slice that existed, or an attempt on this machine. Times are unix seconds of the ledger.

    `until` is None while nothing says that it is gone; then it is billed to `now`. Where it was not held, `held_at` is None.
    `on_demand_usd_per_hour`: of the same type and zone, for spot capacity. `lent`: used by the process that created it, READY
    to deletion.
    """

    id: str
    cloud: str
    project: str
    zone: str
    name: str
    node: str
    accelerator_type: str
    chips: int | None
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
    paid: tuple[Paid, ...] = ()
    work: tuple[Work, ...] = ()

    @property
    def end(self) -> float:
        """When it ends, or now; never before it began."""
        return max(self.now if self.until is None else self.until, self.since)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a bill with one payer (None: no run) and one use."""

    bill: Bill
    payer: Paid | None
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


def stretches(bill: Bill) -> list[Stretch]:
    """Cut a bill wherever its payer or its use changes. Times outside of it are left out; an overlap counts for the first."""
    cuts = [bill.ready_at, bill.held_at, bill.down_at]
    cuts += [at for paid in bill.paid for at in (paid.since, paid.until)]
    cuts += [at for work in bill.work for at in (work.since, work.until)]
    points = sorted({bill.since, bill.end, *(at for at in cuts if at is not None and bill.since < at < bill.end)})
    found: list[Stretch] = []
    for since, until in pairwise(points):
        payer = next((each for each in bill.paid if each.since <= since < each.until), None)
        stretch = Stretch(bill, payer, _use(bill, since), since, until)
        if found and (found[-1].payer, found[-1].use) == (payer, stretch.use):
            found[-1] = replace(found[-1], until=until)
        else:
            found.append(stretch)
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


def clipped(stretch: Stretch, period: Period) -> Stretch | None:
    """Return the part of the stretch in the period; None if there is none."""
    since = max(stretch.since, period.since)
    until = stretch.until if period.until is None else min(stretch.until, period.until)
    return replace(stretch, since=since, until=until) if since < until else None
