"""What this machine's slices and runs cost in a period, from its ledger: `cost`."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import get_args

from orchestrator import catalog
from orchestrator.client.session import Session
from orchestrator.core.text.durations import parse_duration
from orchestrator.errors import UserError
from orchestrator.report.money import spending
from orchestrator.report.money.bills import bills
from orchestrator.report.money.spending import By, CostReport
from orchestrator.report.money.stretches import Period

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
