"""What this machine's slices and runs cost in a period, from its ledger: `cost`."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import get_args

from orchestrator import catalog, traits
from orchestrator.api.session.session import Session
from orchestrator.errors import UserError
from orchestrator.promise.lease.lease import Lease, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.report import spending
from orchestrator.report.rows import costs
from orchestrator.report.spending import HERE, Bill, BilledInterval, By, CostReport, Period, Work
from orchestrator.text.units import parse_duration

NOTE = f"an estimate by {catalog.PRICES_AS_OF}, of what this machine ran; not an invoice"
Since = str | date | timedelta


def cost(session: Session, *, month: str | None = None, since: Since | None = None, by: By = "job") -> CostReport:
    """Return the costs of a month of UTC, or since a day or for so long; by default of this month.

    Recovers what earlier commands left first. Raises UserError for a period that does not exist or has not begun.
    """
    if by not in get_args(By):
        raise UserError(f"by {by}: must be one of {', '.join(get_args(By))}")
    session.recover()
    asked_at = session.now()
    asked = period(month, since, asked_at)
    found = spending.clouds(bills(session.ledger, session.now), asked, by)
    return CostReport(asked.since, asked.until, asked_at, by, catalog.PRICES_AS_OF, NOTE, found)


def period(month: str | None, since: Since | None, now: float) -> Period:
    """Return the period that is meant. `now`: unix seconds. Raises UserError for one that does not exist or has not begun."""
    if month is not None and since is not None:
        raise UserError("month and since exclude each other")
    if since is not None:
        return Period(_begin(since, now))
    first = _first_of(month) if month is not None else datetime.fromtimestamp(now, UTC).replace(day=1)
    begin = first.replace(hour=0, minute=0, second=0, microsecond=0)
    if begin.timestamp() > now:
        raise UserError(f"month {month}: it has not begun")
    return Period(begin.timestamp(), (begin + timedelta(days=32)).replace(day=1).timestamp())


def _first_of(month: str) -> datetime:
    try:
        if re.fullmatch(r"\d{4}-\d{2}", month, re.ASCII):
            return datetime(int(month[:4]), int(month[5:]), 1, tzinfo=UTC)
    except ValueError:
        pass
    raise UserError(f"month {month}: write year and month, such as 2026-11")


def _begin(since: Since, now: float) -> float:
    """Return the unix seconds of a day, of a moment, or of so long ago. Without a time zone it is UTC."""
    if isinstance(since, str):
        since = _read(since)
    if isinstance(since, timedelta):
        begin = now - since.total_seconds()
    else:
        moment = since if isinstance(since, datetime) else datetime(since.year, since.month, since.day)
        begin = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if begin > now:
        raise UserError(f"since {since}: it is in the future")
    return max(begin, 0.0)


def _read(since: str) -> date | timedelta:
    try:
        if re.match(r"\d{4}-", since, re.ASCII):
            return datetime.fromisoformat(since)
        return timedelta(seconds=parse_duration(since))
    except (ValueError, OverflowError):
        raise UserError(f"since {since}: write a day, such as 2026-11-01, or for how long, such as 30d") from None


# The ledger as bills: every slice that existed and every attempt on this machine, with who pays and what it was used for.
#
# Who pays for what is decided in `report.costs`, so that `tpujob cost` has the dollars of `tpujob show`.


def bills(ledger: Ledger, now: Callable[[str], float]) -> Iterator[Bill]:
    """Yield the bills of every cloud. `now`: the ledger's time of a cloud, in unix seconds."""
    paid: dict[str, list[BilledInterval]] = defaultdict(list)
    work: dict[str, list[Work]] = defaultdict(list)
    for run, _ in ledger.runs():
        at = now(run.cloud)
        if not traits.traits_of(run.cloud).billed:
            yield from _local(ledger, run, at)
            continue
        for share in costs.shares(ledger, run, at):
            paid[share.lease.id].append(BilledInterval(run.id, _job(run), share.since, share.until))
        for attempt in ledger.attempts_of(run.id):
            if attempt.lease_id is not None:
                work[attempt.lease_id].append(_work(attempt, costs.began_at(ledger, run, attempt), at))
    for lease in ledger.leases():
        since = lease.billed_from
        is_others = lease.purpose is Purpose.ELSEWHERE and not work[lease.id]  # this machine only looked at it
        if since is not None and not is_others and not costs.came_to_nothing(ledger, lease):
            yield _bill(ledger, lease, since, now(lease.cloud), tuple(paid[lease.id]), tuple(work[lease.id]))


def _bill(
    ledger: Ledger, lease: Lease, since: float, now: float, paid: tuple[BilledInterval, ...], work: tuple[Work, ...]
) -> Bill:
    kind = catalog.lookup(lease.accelerator_type)
    zone = lease.name.zone
    held = [at for at, event, _ in ledger.events(lease.id) if event == "held"]
    if lease.purpose is Purpose.HOLD and not held:
        held = [since]  # of `tpujob up`, which has not come to its end
    return Bill(
        id=lease.id,
        cloud=lease.cloud,
        project=lease.name.project,
        zone=zone,
        name=lease.handle,
        node=lease.name.node,
        accelerator_type=lease.accelerator_type,
        chips=kind.chips * lease.slices if kind else None,
        state=str(lease.state),
        since=since,
        until=lease.gone_at,
        now=now,
        usd_per_hour=lease.usd_per_hour,
        spot=lease.spot,
        on_demand_usd_per_hour=catalog.usd_per_hour(lease.accelerator_type, zone, spot=False),
        ready_at=lease.ready_at,
        held_at=held[0] if held else None,
        down_at=lease.down_at,
        lent=lease.run is None and lease.purpose is Purpose.RUN,
        paid=paid,
        work=work,
    )


def _local(ledger: Ledger, run: RunRecord, now: float) -> Iterator[Bill]:
    for attempt in ledger.attempts_of(run.id):
        since = costs.began_at(ledger, run, attempt)
        until = attempt.ended_at
        yield Bill(
            id=attempt.id,
            cloud=run.cloud,
            project=HERE,
            name=run.name,
            accelerator_type=HERE,
            state=str(attempt.state),
            since=since,
            until=until,
            now=now,
            ready_at=since,
            paid=(BilledInterval(run.id, _job(run), since, now if until is None else until),),
            work=(_work(attempt, since, now),),
        )


def _work(attempt: Attempt, began_at: float, now: float) -> Work:
    failed = attempt.state.ended and attempt.state is not AttemptState.SUCCEEDED
    return Work(began_at, now if attempt.ended_at is None else attempt.ended_at, failed)


def _job(run: RunRecord) -> str:
    """Return the name of the job; a sweep is one job."""
    return run.spec.sweep.name or run.name
