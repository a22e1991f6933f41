"""From a wish to candidates in order, each with a reason."""

import pytest

from orchestrator.core.plan import Wish, make
from orchestrator.errors import UserError


def zones(wish: Wish, default_zone: str | None = None) -> list[str]:
    return [candidate.zone for candidate in make(wish, default_zone=default_zone).candidates]


def test_a_region_means_its_zones_that_offer_the_type() -> None:
    assert zones(Wish("v5litepod-8", ("us-east1",))) == ["us-east1-b", "us-east1-c"]


def test_places_are_asked_in_the_order_given_and_each_zone_once() -> None:
    wanted = Wish("v5litepod-8", ("us-west4-b", "us-west4", "us-central1-a"))
    assert zones(wanted) == ["us-west4-b", "us-west4-a", "us-central1-a"]


def test_without_a_place_the_default_zone_is_taken_else_every_zone_that_offers_it() -> None:
    assert zones(Wish("v4-8"), default_zone="us-central2-b") == ["us-central2-b"]
    assert len(zones(Wish("v6e-8"))) > 5


def test_without_a_place_the_cheapest_zone_comes_first_and_an_unknown_price_last() -> None:
    prices = [candidate.usd_per_hour for candidate in make(Wish("v6e-8")).candidates]
    known = [price for price in prices if price is not None]
    assert (
        known == sorted(known)
        and len(known) < len(prices)
        and prices[len(known) :] == [None] * (len(prices) - len(known))
    )


def test_a_zone_that_does_not_offer_the_type_is_dropped_with_a_reason() -> None:
    plan = make(Wish("v5litepod-8", ("us-central1-b", "us-central1-a")))
    assert [(dropped.zone, dropped.why) for dropped in plan.dropped] == [
        ("us-central1-b", "v5litepod-8 is not offered there")
    ]


def test_offered_nowhere_that_was_asked_is_refused_with_where_it_is() -> None:
    with pytest.raises(UserError) as refused:
        make(Wish("v4-8", ("us-central1-a",)))
    assert refused.value.hint == "it is offered in: us-central2-b"


def test_a_mistyped_zone_gets_the_nearest_one() -> None:
    with pytest.raises(UserError) as refused:
        make(Wish("v5litepod-8", ("us-centrall1",)))
    assert "us-central1" in (refused.value.hint or "")


def test_sixteen_chips_of_v5e_are_four_workers() -> None:
    plan = make(Wish("v5litepod-16", ("us-central1-a",)))
    assert (plan.workers, plan.cores, plan.cores_per_worker) == (4, 16, 4)


def test_the_worst_case_is_the_price_until_the_deadline() -> None:
    plan = make(Wish("v5litepod-8", ("us-central1-a",), max_duration_s=2 * 3600))
    assert plan.worst_case_usd == pytest.approx(2 * 8 * 1.2)


def test_an_unknown_price_makes_the_worst_case_unknown_never_zero() -> None:
    plan = make(Wish("v6e-8", ("us-central2-b",)))
    assert plan.candidates[0].usd_per_hour is None and plan.worst_case_usd is None


def test_what_the_table_does_not_know_needs_to_be_allowed() -> None:
    with pytest.raises(UserError):
        make(Wish("v9-8", ("mars-north1-a",)))
    plan = make(Wish("v9-8", ("mars-north1-a",), runtime="r", unlisted=True))
    assert plan.candidates[0].zone == "mars-north1-a"
