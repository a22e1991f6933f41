"""What this machine's slices and runs cost in a period, from its ledger: `cost`."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, get_args

from orchestrator import catalog, traits
from orchestrator.api.session import lookup
from orchestrator.api.session.session import Session
from orchestrator.errors import UserError
from orchestrator.promise.lease.access import Via
from orchestrator.promise.lease.lease import Lease, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.queue.record import QueuedJob
from orchestrator.report import causes, spending
from orchestrator.report.bill_parts import Bill, BilledInterval, Period
from orchestrator.report.causes import Wait, Work
from orchestrator.report.files import timing_file
from orchestrator.report.rows import costs
from orchestrator.report.spending import HERE, By, CostReport
from orchestrator.text.units import parse_duration

NOTE = f"an estimate by {catalog.PRICES_AS_OF}, of what this machine ran; not an invoice"
Since = str | date | timedelta
NO_JOBS: Mapping[str, QueuedJob] = MappingProxyType({})


def cost(
    session: Session,
    name: str | None = None,
    *,
    month: str | None = None,
    since: Since | None = None,
    by: By = "job",
    queued: Sequence[QueuedJob] | None = None,
) -> CostReport:
    """Return the costs of a month of UTC, or since a day or for so long; by default of this month.

    `name`: only what the runs of this id or name pay for, or of this sweep, by default of all time. `queued`: only what these
    jobs pay for. Recovers what earlier commands left first. Raises UserError for a period that does not exist or has not
    begun; UnknownRun.
    """
    if by not in get_args(By):
        raise UserError(f"by {by}: must be one of {', '.join(get_args(By))}")
    session.recover()
    asked_at, runs = session.now(), None if name is None else _runs_of(session, name)
    if runs is None or month is not None or since is not None:
        asked = period(month, since, asked_at)
    else:
        waits_since = [each.added_at for each in queued or () if each.id in runs]
        asked = Period(min([run.created_at for run in runs.values()] + waits_since))
    wanted = None if runs is None else {*runs}
    if queued is not None:
        wanted = {each.id for each in queued if wanted is None or each.id in wanted}
    found, waits = bills_and_waits(session, asked.since, wanted, {each.id: each for each in queued or ()})
    clouds = spending.clouds(found, asked, by, waits, wanted)
    return CostReport(asked.since, asked.until, asked_at, by, catalog.PRICES_AS_OF, NOTE, clouds)


def _runs_of(session: Session, name: str) -> dict[str, RunRecord]:
    """Return what a run's id, the name of a job or that of a sweep means. Raises UnknownRun, UserError."""
    meant = lookup.meant(session, name)
    ids, sweeps = {*meant.runs}, {each.id for each in meant.sweeps}
    every = [run for run, _ in session.ledger.runs()]
    found = {run.id: run for run in every if run.id in ids or run.spec.sweep.id in sweeps or _job(run) == name}
    return found or {run.id: run for run, _ in lookup.runs(session, name)}


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


class Books(Protocol):
    """What a session has of it."""

    @property
    def ledger(self) -> Ledger:
        """The ledger of this machine."""

    @property
    def owner(self) -> str:
        """Whose the runs on this machine are."""

    def now(self, cloud: str | None = None) -> float:
        """Return the ledger's time of a cloud, in unix seconds."""


def bills_and_waits(
    books: Books, since: float = 0.0, runs: Collection[str] | None = None, queued: Mapping[str, QueuedJob] = NO_JOBS
) -> tuple[list[Bill], list[Wait]]:
    """Return the bills of every cloud, and when a run waited and none was billed for it.

    What a job timed of itself is read only of runs that go on or ended after `since`. `runs`: leave out the others.
    """
    paid: dict[str, list[BilledInterval]] = defaultdict(list)
    work: dict[str, list[Work]] = defaultdict(list)
    found: list[Bill] = []
    waits: list[Wait] = []
    ledger = books.ledger
    for run, last in ledger.runs():
        if runs is not None and run.id not in runs:
            continue
        at, job = books.now(run.cloud), queued.get(run.id)
        attempts = ledger.attempts_of(run.id)
        worked = _worked(ledger, run, attempts, at, is_old=last.ended_at is not None and last.ended_at <= since)
        if not traits.traits_of(run.cloud).billed:
            found += [_local(run, *each, at, books.owner) for each in zip(attempts, worked, strict=True)]
            continue
        shares, owner = costs.shares(ledger, run, at), job.owner if job else ""
        for share in shares:
            paid[share.lease.id].append(BilledInterval(run.id, _job(run), share.since, share.until, owner))
        for attempt, each in zip(attempts, worked, strict=True):
            if attempt.lease_id is not None:
                work[attempt.lease_id].append(each)
        waits += _waits(ledger, run, attempts, worked, shares, at, job)
    for lease in ledger.leases():
        begin = lease.billed_from
        is_others = lease.purpose is Purpose.ELSEWHERE and not work[lease.id]  # this machine only looked at it
        if begin is not None and not is_others and not costs.came_to_nothing(ledger, lease):
            found.append(
                _bill(ledger, lease, begin, books.now(lease.cloud), tuple(paid[lease.id]), tuple(work[lease.id]))
            )
    return found, waits


def _waits(
    ledger: Ledger,
    run: RunRecord,
    attempts: Sequence[Attempt],
    worked: Sequence[Work],
    shares: Sequence[costs.Share],
    now: float,
    job: QueuedJob | None,
) -> Iterator[Wait]:
    billed = [(share.since, share.until) for share in shares]
    asked = ledger.leases_of(run.id)
    since = job.added_at if job else None
    for attempt, each in zip(attempts, worked, strict=True):
        lease = ledger.lease(attempt.lease_id) if attempt.lease_id else None
        ready_at = lease.ready_at if lease else None
        until = each.until if ready_at is None else ready_at
        shown = lease or next(iter(asked), None)
        owner, project, kind = (shown.owner, shown.name.project, shown.accelerator_type) if shown else ("", "", "")
        for begin, end in causes.not_in(each.since if since is None else since, until, billed):
            yield Wait(run.cloud, run.id, _job(run), job.owner if job else owner, project, kind, begin, end)
        since = attempt.ended_at


def _bill(
    ledger: Ledger, lease: Lease, since: float, now: float, paid: tuple[BilledInterval, ...], work: tuple[Work, ...]
) -> Bill:
    kind = catalog.lookup(lease.accelerator_type)
    zone = lease.name.zone
    held = [at for at, event, _ in ledger.events(lease.id) if event == "held"]
    if lease.purpose is Purpose.HOLD and not held:
        held = [since]  # of `tpujob up`, which has not come to its end
    vms = kind.hosts * lease.slices if kind and traits.traits_of(lease.cloud).by_target else 0  # else of the cluster
    return Bill(
        id=lease.id, cloud=lease.cloud, project=lease.name.project, zone=zone, name=lease.handle,
        node=lease.name.node, accelerator_type=lease.accelerator_type,
        chips=kind.chips * lease.slices if kind else None, state=str(lease.state), since=since, until=lease.gone_at,
        now=now, usd_per_hour=lease.usd_per_hour, spot=lease.spot,
        list_usd_per_hour=catalog.usd_per_hour(lease.accelerator_type, zone, spot=lease.spot), owner=lease.owner,
        vms=vms, addresses=vms if lease.route.via is Via.EXTERNAL else 0,
        on_demand_usd_per_hour=catalog.usd_per_hour(lease.accelerator_type, zone, spot=False),
        ready_at=lease.ready_at, held_at=held[0] if held else None, down_at=lease.down_at,
        lent=lease.run is None and lease.purpose is Purpose.RUN, paid=paid, work=work,
    )  # fmt: skip


def _local(run: RunRecord, attempt: Attempt, work: Work, now: float, owner: str) -> Bill:
    return Bill(
        id=attempt.id, cloud=run.cloud, project=HERE, name=run.name, accelerator_type=HERE, owner=owner,
        state=str(attempt.state), since=work.since, until=attempt.ended_at, now=now, ready_at=work.since,
        paid=(BilledInterval(run.id, _job(run), work.since, work.until),), work=(work,),
    )  # fmt: skip


def _worked(ledger: Ledger, run: RunRecord, attempts: Sequence[Attempt], now: float, *, is_old: bool) -> Sequence[Work]:
    """Return when each attempt worked, and to what that went."""
    timing = None if is_old else timing_file.read_run(Path(run.directory))
    ran = [each.started_at for each in attempts if each.started_at is not None]
    spans = causes.spans_of(timing, ran) if timing is not None and ran else ()
    events = [ledger.events(each.id) for each in attempts]
    found = []
    for attempt, own, after in zip(attempts, events, [*events[1:], []], strict=True):
        ended_at = attempt.ended_at
        moved = ((at, data) for at, kind, data in own if kind == "moved" and data["state"] == AttemptState.COLLECTING)
        noticed_at, said = next(moved, (None, {}))
        done_at, ran_s = noticed_at, said.get("ran_s")
        if noticed_at is not None and ran_s is not None and attempt.started_at is not None:
            done_at = min(attempt.started_at + ran_s, noticed_at)
        work = Work(
            costs.began_at(ledger, run, attempt), now if ended_at is None else ended_at,
            failed=attempt.state.ended and attempt.state is not AttemptState.SUCCEEDED,
            lost=any(kind == "attempt_ended" and data.get("cause") for _, kind, data in own),
            main_at=attempt.started_at, done_at=done_at, noticed_at=noticed_at, spans=spans,
            saved_at=costs.saved_at(after, ended_at),
        )  # fmt: skip
        found.append(work)
    return found


def _job(run: RunRecord) -> str:
    """Return the name of the job; a sweep is one job."""
    return run.spec.sweep.name or run.name
