"""The period of `tpujob cost`: a month of UTC, or since a day or for so long."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from orchestrator.client.results.costs import Since, period
from orchestrator.errors import UserError

NOW = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)


def at(*moment: int) -> float:
    return datetime(*moment, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(("month", "since", "until"), [
    (None, at(2026, 12, 1), at(2027, 1, 1)), ("2026-12", at(2026, 12, 1), at(2027, 1, 1)),
    ("2026-02", at(2026, 2, 1), at(2026, 3, 1)), ("2024-02", at(2024, 2, 1), at(2024, 3, 1)),
])  # fmt: skip
def test_a_month_is_one_of_utc(month: str | None, since: float, until: float) -> None:
    found = period(month, None, NOW.timestamp())
    assert (found.since, found.until) == (since, until)


@pytest.mark.parametrize(("since", "begin"), [
    ("2026-12-24", at(2026, 12, 24)), ("2026-12-24T12:00", at(2026, 12, 24, 12)),
    ("2026-12-24T12:00+02:00", at(2026, 12, 24, 10)), (date(2026, 12, 24), at(2026, 12, 24)),
    (datetime(2026, 12, 24, 12), at(2026, 12, 24, 12)),
    (datetime(2026, 12, 24, 12, tzinfo=timezone(timedelta(hours=2))), at(2026, 12, 24, 10)),
    ("30d", (NOW - timedelta(days=30)).timestamp()),
    (timedelta(hours=1), (NOW - timedelta(hours=1)).timestamp()), ("900000000d", 0.0),
])  # fmt: skip
def test_since_is_a_day_a_moment_or_a_duration_and_has_no_end(since: Since, begin: float) -> None:
    found = period(None, since, NOW.timestamp())
    assert (found.since, found.until) == (begin, None)


@pytest.mark.parametrize("month", ["2026-13", "2026-00", "0000-01", "26-11", "2026-1", "2026-11-01", "november", ""])
def test_a_month_that_does_not_exist_is_refused(month: str) -> None:
    with pytest.raises(UserError, match="write year and month, such as 2026-11"):
        period(month, None, NOW.timestamp())


@pytest.mark.parametrize("since", ["2026-02-30", "2026-12-24T", "3", "yesterday", "", "999999999d999999999d"])
def test_a_time_that_cannot_be_read_is_refused(since: str) -> None:
    with pytest.raises(UserError, match="write a day, such as 2026-11-01, or for how long, such as 30d"):
        period(None, since, NOW.timestamp())


@pytest.mark.parametrize(("month", "since", "why"), [
    ("2027-01", None, "it has not begun"), ("9999-12", None, "it has not begun"),
    (None, "2027-01-01", "in the future"), (None, timedelta(days=-1), "in the future"),
    ("2026-12", "1d", "exclude each other"),
])  # fmt: skip
def test_a_period_that_has_not_begun_or_is_told_twice_is_refused(
    month: str | None, since: Since | None, why: str
) -> None:
    with pytest.raises(UserError, match=why):
        period(month, since, NOW.timestamp())
