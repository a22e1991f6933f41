"""A budget in dollars as a time, by the price table."""

import pytest

from orchestrator.core.planning.budget import life_s
from orchestrator.core.planning.capacity_request import CapacityRequest
from orchestrator.core.planning.plan import make
from orchestrator.errors import UserError


def test_the_whole_bill_stays_within_the_budget_deletion_included() -> None:
    seconds = life_s(5.0, 9.6, absent_s=300, where="here")
    assert 9.6 * (seconds + 300) / 3600 == pytest.approx(5.0)


def test_a_budget_without_a_price_is_refused() -> None:
    with pytest.raises(UserError, match="no price"):
        life_s(5.0, None, absent_s=300, where="v5e in nowhere")


def test_a_budget_that_would_not_last_a_minute_is_refused_and_says_what_it_takes() -> None:
    with pytest.raises(UserError, match="uses up") as caught:
        life_s(0.5, 9.6, absent_s=300, where="here")
    assert "$0.96" in str(caught.value.hint)


def test_a_plan_lives_as_long_as_the_shorter_of_time_and_budget() -> None:
    wish = CapacityRequest("v5litepod-8", ("us-central1-a",), max_duration_s=86400, max_cost=4.8, absent_s=300)
    plan = make([wish])
    assert plan.max_duration_s == plan.candidates[0].life_s == pytest.approx(1800 - 300)
    assert plan.worst_case_usd is not None and plan.worst_case_usd < 4.8
    assert (
        make([CapacityRequest("v5litepod-8", ("us-central1-a",), max_duration_s=600, max_cost=4.8)]).max_duration_s
        == 600
    )


def test_a_plan_whose_every_candidate_is_too_dear_is_refused() -> None:
    with pytest.raises(UserError, match=r"limits\.max_cost"):
        make([CapacityRequest("v5litepod-8", ("us-central1-a",), max_cost=0.01, absent_s=300)])
