"""`tpujob cost` on screen and as CSV: an unknown price is a word or an empty cell, and what is open is told."""

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from orchestrator.report.money import spending, tables
from orchestrator.report.money.spending import CloudCost, CostReport
from orchestrator.report.money.stretches import Bill, Period
from tests.unit.report.money.test_spending import AT, DARK, HOUR, LOCAL, SPOT, USED

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
