"""The page of what was spent: what it says, and what of it is escaped."""

from dataclasses import replace

from orchestrator.report import spending
from orchestrator.report.bill_parts import Bill, Period
from orchestrator.report.page.cost_page import cost_page
from orchestrator.report.spending import CostReport
from tests.unit.report.page.test_page import HOSTILE, text_of
from tests.unit.report.test_costs import AT, HOUR, LOCAL, USED


def page(*bills: Bill) -> str:
    found = spending.clouds(bills, Period(0.0), "run")
    report = CostReport(AT, None, AT + 100 * HOUR, "run", "price table 2026-11", "an estimate", found)
    return cost_page(report, "2026-11 (UTC) · an estimate", lambda text: text)


def test_it_says_who_used_what_where_it_went_and_what_a_grant_does_not_pay() -> None:
    granted = replace(USED, owner="alice", usd_per_hour=0.0, list_usd_per_hour=12.0, vms=1, addresses=1)
    text = text_of(page(granted))
    assert "2026-11 (UTC) an estimate" in text
    assert "alice v5litepod-8 10.00 80.00 $0.00 $120.00 $120.00" in text
    assert "boot disks 1,000.00 GB hours" in text and "external addresses 10.00 address hours" in text
    assert "egress not measured tpujob does not measure it; from a bucket in another region about $20" in text


def test_no_cause_of_nothing_is_most_of_a_run_and_small_hours_are_not_none() -> None:
    text = text_of(page(replace(USED, ready_at=AT + 10.0, down_at=None)))
    assert "By run" in text and " 0 %" not in text.partition("By run")[2]
    assert "waiting 0.0 % <0.01 0.02" in text


def test_an_unknown_price_is_a_word_and_this_machine_has_none() -> None:
    text = text_of(page(replace(USED, usd_per_hour=None), LOCAL))
    assert "Cost unknown" in text and "local" in text and "Cost none" in text


def test_nothing_in_it_comes_to_life_and_it_asks_no_network() -> None:
    made = page(replace(USED, owner=HOSTILE, accelerator_type=HOSTILE, project=HOSTILE))
    assert "<img" not in made and "<script" not in made and "default-src &#39;none&#39;" in made


def test_a_time_without_a_run_has_a_page() -> None:
    assert "No slice was billed" in text_of(page())
