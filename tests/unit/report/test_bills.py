"""`tpujob cost`: the ledger as bills, the period, and what is shown of it where a price is unknown."""

import csv
import io
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from orchestrator import catalog
from orchestrator.api.results import costs as api_costs
from orchestrator.api.results.costs import Since, bills_and_waits, period
from orchestrator.cli.console import cost_tables as tables
from orchestrator.errors import UserError
from orchestrator.promise.lease.changes import (
    AttemptEnded,
    Began,
    CreateRefused,
    Forgotten,
    HeldUntil,
    Leased,
    Moved,
    Ready,
    ReleaseBegan,
    Settled,
)
from orchestrator.promise.lease.lease import Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.lease.run_spec import RunSpec
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.queue.record import QueuedJob
from orchestrator.report import spending
from orchestrator.report.bill_parts import Bill, Period
from orchestrator.report.rows import costs
from orchestrator.report.spending import By, CloudCost, CostReport
from tests.unit.report.test_costs import AT, DARK, HOUR, LOCAL, RUN, SPOT, T0, USED, asked, ended

START = T0
NOW = START + 20 * HOUR


def began(ledger: Ledger, run: RunRecord = RUN, number: int = 1, at: float | None = None) -> Attempt:
    attempt = Attempt(f"{run.id}-{number}", run.id)
    ledger.record(Began(run, attempt, at))
    return attempt


@dataclass
class Books:
    ledger: Ledger
    owner: str = "alice"

    def now(self, cloud: str | None = None) -> float:
        return NOW


def clouds(ledger: Ledger, by: By = "job", period: Period | None = None) -> tuple[CloudCost, ...]:
    found, waits = bills_and_waits(Books(ledger))
    return spending.clouds(found, period or Period(0.0), by, waits)


def found(ledger: Ledger, by: By = "job", period: Period | None = None) -> CloudCost:
    (only,) = clouds(ledger, by, period)
    return only


def a_month(ledger: Ledger) -> list[RunRecord]:
    """Two attempts, a lost race, a refused zone; then a run on a slice of `up`, and a job that goes on."""
    first = began(ledger)
    refused = asked(ledger, 1, START)
    ledger.record(CreateRefused(refused.id, START + 1, "quota"))
    ledger.record(*ended(refused, START + 2))
    empty = asked(ledger, 2, START)
    ledger.record(Settled(empty.id, START + 1))
    ledger.record(*ended(empty, START + 2))
    loser, lost = asked(ledger, 3, START), asked(ledger, 4, START)
    ledger.record(Ready(loser.id, START + HOUR), Ready(lost.id, START + HOUR), Leased(first.id, START + HOUR, lost.id))
    ledger.record(*ended(loser, START + 2 * HOUR))
    ledger.record(AttemptEnded(first.id, START + 3 * HOUR, AttemptState.INTERRUPTED, cause="preempted"))
    ledger.record(*ended(lost, START + 3 * HOUR))
    second = began(ledger, number=2, at=START + 3 * HOUR)
    last = asked(ledger, 5, START + 3 * HOUR)
    ledger.record(Ready(last.id, START + 4 * HOUR), Leased(second.id, START + 4 * HOUR, last.id))
    ledger.record(AttemptEnded(second.id, START + 6 * HOUR, AttemptState.SUCCEEDED))
    ledger.record(*ended(last, START + 6 * HOUR))
    held = asked(ledger, 6, START + 6 * HOUR, run=None, handle="trainer", purpose=Purpose.HOLD)
    ledger.record(Ready(held.id, START + 7 * HOUR), HeldUntil(held.id, START + 7 * HOUR, START + 30 * HOUR))
    other = replace(RUN, id="r2", name="other", created_at=START + 9 * HOUR)
    on_held = began(ledger, other)
    ledger.record(Leased(on_held.id, START + 9 * HOUR, held.id))
    ledger.record(AttemptEnded(on_held.id, START + 10 * HOUR, AttemptState.SUCCEEDED))
    ledger.record(*ended(held, START + 12 * HOUR))
    running = replace(RUN, id="r3", name="running", created_at=START + 18 * HOUR)
    goes_on = began(ledger, running)
    used = asked(ledger, 7, START + 18 * HOUR, run="r3")
    ledger.record(Ready(used.id, START + 19 * HOUR), Leased(goes_on.id, START + 19 * HOUR, used.id))
    return [RUN, other, running]


def test_a_run_has_the_dollars_that_show_tells_and_every_slice_is_in_the_total(ledger: Ledger) -> None:
    runs = a_month(ledger)
    rows = {row.name: row.cost_usd for row in found(ledger, "run").rows}
    assert {run.id: pytest.approx(rows[run.id]) for run in runs} == {
        run.id: costs.of_run(ledger, run, NOW) for run in runs
    }
    slices = [lease for lease in ledger.leases() if not costs.came_to_nothing(ledger, lease)]
    cost = found(ledger)
    assert cost.total.slices == len(slices) == 5
    assert cost.total.cost_usd == pytest.approx(sum(costs.of_lease(lease, NOW) or 0.0 for lease in slices))
    of = {row.name: row for row in cost.rows}
    assert (of["job"].lost_usd, of["job"].failed_usd, of["job"].job_usd) == pytest.approx((2 * 9.6, 2 * 9.6, 2 * 9.6))
    assert (of["slice trainer"].idle_usd, of["other"].job_usd) == pytest.approx((4 * 9.6, 9.6))
    assert (of["running"].job_usd, of["running"].overhead_usd) == pytest.approx((9.6, 9.6))


def test_of_a_job_that_ended_unnoticed_the_rest_is_idle(ledger: Ledger) -> None:
    attempt = began(ledger)
    lease = asked(ledger, 1, START)
    ledger.record(Ready(lease.id, START), Leased(attempt.id, START, lease.id))
    ledger.record(Moved(attempt.id, START, AttemptState.RUNNING))
    ledger.record(Moved(attempt.id, START + 5 * HOUR, AttemptState.COLLECTING, 2 * HOUR))
    ledger.record(AttemptEnded(attempt.id, START + 6 * HOUR, AttemptState.SUCCEEDED), *ended(lease, START + 6 * HOUR))
    went = {each.cause: each.hours for each in found(ledger).total.causes}
    assert went == {"work": pytest.approx(2), "idle": pytest.approx(3), "teardown": pytest.approx(1)}


def test_a_sweep_is_one_job(ledger: Ledger) -> None:
    for number in (1, 2):
        spec = {"sweep": {"name": "lr-sweep", "number": number}}
        run = replace(RUN, id=f"s{number}", name=f"lr-sweep-{number}", spec=RunSpec.of(spec))
        began(ledger, run)
        ledger.record(*ended(asked(ledger, number, START, run=run.id), START + HOUR))
    (row,) = found(ledger).rows
    assert (row.name, row.runs, row.cost_usd) == ("lr-sweep", 2, pytest.approx(2 * 9.6))


def test_a_slice_that_the_user_forgot_counts_until_then_and_is_named(ledger: Ledger) -> None:
    began(ledger)
    lease = asked(ledger, 1, START)
    ledger.record(
        ReleaseBegan(lease.id, START + HOUR, "over"), Forgotten(lease.id, START + 2 * HOUR, "the project is gone")
    )
    cost = found(ledger)
    assert cost.total.cost_usd == pytest.approx(2 * 9.6) == costs.of_run(ledger, RUN, NOW)
    assert [each.forgotten for each in cost.open_slices] == [True]


def test_spot_is_compared_with_the_on_demand_price_of_its_type_and_zone(ledger: Ledger) -> None:
    began(ledger)
    lease = asked(ledger, 1, START, spot=True, usd_per_hour=5.0)
    ledger.record(*ended(lease, START + 2 * HOUR))
    on_demand = catalog.usd_per_hour(lease.accelerator_type, lease.name.zone, spot=False)
    assert on_demand is not None
    assert found(ledger).total.spot_saved_usd == pytest.approx(2 * (on_demand - 5.0))


def test_a_slice_that_python_lends_is_not_idle(ledger: Ledger) -> None:
    lease = asked(ledger, 1, START, run=None)
    ledger.record(Ready(lease.id, START + HOUR))
    ledger.record(*ended(lease, START + 3 * HOUR))
    total = found(ledger).total
    assert (total.job_usd, total.idle_usd, total.runs) == (pytest.approx(2 * 9.6), 0.0, 0)


def test_the_time_in_the_queue_before_a_run_began_counts_for_its_name_too(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = began(ledger)
    lease = asked(ledger, 1, START)
    ledger.record(Ready(lease.id, START), Leased(first.id, START, lease.id), *ended(lease, START + HOUR))
    books: Any = Books(ledger)
    books.recover = lambda: None
    monkeypatch.setattr(api_costs, "_runs_of", lambda *_: {RUN.id: RUN})
    queued = [QueuedJob(RUN.id, "job", added_at=START - 2 * HOUR), QueuedJob("other", "b", added_at=START - 9 * HOUR)]
    (named,) = api_costs.cost(books, "job", queued=queued).clouds
    (every,) = api_costs.cost(books, since=datetime.fromtimestamp(0, UTC), queued=queued).clouds
    assert named.total.waited_hours == every.total.waited_hours == 2.0


def test_a_queued_request_that_waits_is_billed_from_its_capacity_on(ledger: Ledger) -> None:
    began(ledger)
    lease = asked(ledger, 1, START, queued=True)
    assert found(ledger).total.slices == 0
    ledger.record(Ready(lease.id, NOW - HOUR))
    assert found(ledger).total.cost_usd == pytest.approx(9.6)


NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


def cloud(*bills: Bill) -> CloudCost:
    (found,) = spending.clouds(bills, Period(0.0), "job")
    return found


def report(*bills: Bill, asked_at: float = AT + 100 * HOUR) -> CostReport:
    period = Period(NOVEMBER, DECEMBER)
    found = spending.clouds(bills, period, "job")
    return CostReport(NOVEMBER, DECEMBER, asked_at, "job", "price table 2026-11", "an estimate", found)


@pytest.mark.parametrize(
    ("asked_at", "title"),
    [(AT, "2026-11-01 00:00Z to 2026-11-10 00:00Z · an estimate"), (DECEMBER + HOUR, "2026-11 (UTC) · an estimate")],
)
def test_the_title_says_which_time_and_that_it_is_an_estimate(asked_at: float, title: str) -> None:
    assert tables.title(report(asked_at=asked_at)) == title


def test_each_dollar_has_its_column_and_nothing_is_a_dash() -> None:
    shown = tables.table(cloud(SPOT), "job")
    row = dict(zip(shown.head, shown.rows[0], strict=True))
    assert row == {
        "JOB": "mnist", "RUNS": "1", "CHIP HOURS": "80.0", "COST": "$100.00", "FAILED": "-", "IDLE": "-",
        "LOST": "-", "SPOT SAVED": "$150.00",
    }  # fmt: skip
    assert len(shown.rows) == 1, "a total of one row says nothing"


def test_several_rows_have_a_total() -> None:
    shown = tables.table(cloud(USED, replace(DARK, usd_per_hour=1.0)), "job")
    assert [(row[0], row[3]) for row in shown.rows] == [("mnist", "$100.00"), ("dark", "$10.00"), ("total", "$110.00")]


def test_an_unknown_price_is_a_word() -> None:
    found = cloud(USED, DARK)
    rows = {row[0]: row[3] for row in tables.table(found, "job").rows}
    assert rows == {"mnist": "$100.00", "dark": "unknown", "total": "$100.00 + unknown"}
    assert "unknown: 10 h of slices without a price in the table" in "\n".join(tables.remarks(found))


def test_the_parts_of_the_cost_are_one_sentence() -> None:
    assert tables.remarks(cloud(USED))[0] == "of $100.00: jobs: $70.00; creating and deleting: $30.00"


@pytest.mark.parametrize(("bill", "said"), [
    (replace(USED, until=None, now=AT + HOUR, state="down"), "still billed: tpujob-x-1 (trainer, v5litepod-8,"),
    (replace(USED, state="forgotten"), "forgotten, never proven gone: tpujob-x-1"),
])  # fmt: skip
def test_a_slice_whose_end_is_not_proven_is_told(bill: Bill, said: str) -> None:
    assert tables.remarks(cloud(bill))[-1].startswith(said)


def test_this_machine_has_hours_and_no_dollars() -> None:
    found = cloud(LOCAL)
    assert tables.table(found, "job").head == ("JOB", "RUNS", "HOURS")
    assert tables.remarks(found) == []


@pytest.mark.parametrize(("seconds", "said"), [(0.01, []), (5, ["waited for a slice, with none billed: 5 s"])])
def test_a_wait_is_told_unless_it_rounds_to_nothing(seconds: float, said: list[str]) -> None:
    found = cloud(LOCAL)
    waited = replace(found.total, waited_hours=seconds / 3600)
    assert tables.remarks(replace(found, total=waited)) == said


def test_csv_has_one_line_for_each_row_and_an_unknown_dollar_is_empty() -> None:
    text = tables.csv_text(report(USED, DARK, LOCAL))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["cloud"], row["job"], row["cost_usd"]) for row in rows] == [
        ("google", "mnist", "100.0"),
        ("google", "dark", ""),
        ("local", "mnist", ""),
    ]
    assert {(row["since"], row["until"]) for row in rows} == {("2026-11-01 00:00Z", "2026-11-14 04:00Z")}


def test_a_name_that_a_spreadsheet_would_take_for_a_formula_is_quoted() -> None:
    bill = replace(USED, paid=(replace(USED.paid[0], job="=1+1"),))
    (row,) = csv.DictReader(io.StringIO(tables.csv_text(report(bill))))
    assert row["job"] == "'=1+1"


LAST_SECOND = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC)


def at(*moment: int) -> float:
    return datetime(*moment, tzinfo=UTC).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(("month", "since", "until"), [
    (None, at(2026, 12, 1), at(2027, 1, 1)), ("2026-12", at(2026, 12, 1), at(2027, 1, 1)),
    ("2026-02", at(2026, 2, 1), at(2026, 3, 1)), ("2024-02", at(2024, 2, 1), at(2024, 3, 1)),
])  # fmt: skip
def test_a_month_is_one_of_utc(month: str | None, since: float, until: float) -> None:
    found = period(month, None, LAST_SECOND.timestamp())
    assert (found.since, found.until) == (since, until)


@pytest.mark.parametrize(("since", "begin"), [
    ("2026-12-24", at(2026, 12, 24)), ("2026-12-24T12:00", at(2026, 12, 24, 12)),
    ("2026-12-24T12:00+02:00", at(2026, 12, 24, 10)), (date(2026, 12, 24), at(2026, 12, 24)),
    (datetime(2026, 12, 24, 12), at(2026, 12, 24, 12)),
    (datetime(2026, 12, 24, 12, tzinfo=timezone(timedelta(hours=2))), at(2026, 12, 24, 10)),
    ("30d", (LAST_SECOND - timedelta(days=30)).timestamp()),
    (timedelta(hours=1), (LAST_SECOND - timedelta(hours=1)).timestamp()), ("900000000d", 0.0),
])  # fmt: skip
def test_since_is_a_day_a_moment_or_a_duration_and_has_no_end(since: Since, begin: float) -> None:
    found = period(None, since, LAST_SECOND.timestamp())
    assert (found.since, found.until) == (begin, None)


@pytest.mark.parametrize(("month", "since", "why"), [
    *((month, None, "write year and month, such as 2026-11")
      for month in ("2026-13", "2026-00", "0000-01", "26-11", "2026-1", "2026-11-01", "november", "")),
    *((None, since, "write a day, such as 2026-11-01, or for how long, such as 30d")
      for since in ("2026-02-30", "2026-12-24T", "3", "yesterday", "", "999999999d999999999d")),
    ("2027-01", None, "it has not begun"), ("9999-12", None, "it has not begun"),
    (None, "2027-01-01", "in the future"), (None, timedelta(days=-1), "in the future"),
    ("2026-12", "1d", "exclude each other"),
])  # fmt: skip
def test_a_period_that_cannot_be_read_or_has_not_begun_or_is_told_twice_is_refused(
    month: str | None, since: Since | None, why: str
) -> None:
    with pytest.raises(UserError, match=why):
        period(month, since, LAST_SECOND.timestamp())
