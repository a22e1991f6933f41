"""From requests to candidates in order, each with a reason."""

from dataclasses import replace

import pytest

from orchestrator import catalog
from orchestrator.core.planning.availability import Availability
from orchestrator.core.planning.capacity_request import CapacityRequest, PlanInputs, Provisioning
from orchestrator.core.planning.egress import Bucket
from orchestrator.core.planning.grants import Grant
from orchestrator.core.planning.plan import CandidateOrder, Plan, affordable_s, make
from orchestrator.errors import UserError


def zones(request: CapacityRequest, default_zone: str | None = None) -> list[str]:
    return [candidate.zone for candidate in make([request], default_zone=default_zone).candidates]


def test_a_region_means_its_zones_that_offer_the_type() -> None:
    assert zones(CapacityRequest("v5litepod-8", ("us-east1",))) == ["us-east1-b", "us-east1-c"]


def test_places_are_asked_in_the_order_given_and_each_zone_once() -> None:
    wanted = CapacityRequest("v5litepod-8", ("us-west4-b", "us-west4", "us-central1-a"))
    assert zones(wanted) == ["us-west4-b", "us-west4-a", "us-central1-a"]


def test_without_a_place_the_default_zone_is_taken_else_every_zone_that_offers_it() -> None:
    assert zones(CapacityRequest("v4-8"), default_zone="us-central2-b") == ["us-central2-b"]
    assert len(zones(CapacityRequest("v6e-8"))) > 5


def test_without_a_place_the_cheapest_zone_comes_first_and_an_unknown_price_last() -> None:
    prices = [candidate.usd_per_hour for candidate in make([CapacityRequest("v6e-8")]).candidates]
    known = [price for price in prices if price is not None]
    assert (
        known == sorted(known)
        and len(known) < len(prices)
        and prices[len(known) :] == [None] * (len(prices) - len(known))
    )


NOT_THERE = CapacityRequest("v5litepod-8", ("us-central1-b", "us-central1-a"))


def test_a_named_zone_that_the_table_lacks_is_asked_all_the_same_and_the_zones_that_have_the_type_are_named() -> None:
    there, listed = make([NOT_THERE]).candidates
    assert (there.zone, listed.zone, listed.offered_in) == ("us-central1-b", "us-central1-a", None)
    assert there.offered_in == "us-central1-a, us-east1-b, us-east1-c, us-west1-c and 22 more"
    region = make([CapacityRequest("v4-8", ("us-central1",))]).candidates
    assert {one.zone for one in region} == set(catalog.zones_of("us-central1"))
    assert {one.offered_in for one in region} == {"us-central2-b"}
    assert make([replace(NOT_THERE, unlisted=True)]).candidates[0].offered_in is None


def test_where_the_table_chooses_a_zone_that_it_lacks_is_dropped_with_a_reason() -> None:
    plan = make([NOT_THERE], order=CandidateOrder.CHEAPEST)
    assert [(dropped.zone, dropped.why) for dropped in plan.dropped] == [
        ("us-central1-b", "v5litepod-8 is not offered there")
    ]
    with pytest.raises(UserError) as refused:
        make([CapacityRequest("v4-8", ("us-central1-a",))], order=CandidateOrder.CHEAPEST)
    assert refused.value.hint == "v4-8 is offered in: us-central2-b"


def test_a_mistyped_zone_gets_the_nearest_one() -> None:
    with pytest.raises(UserError) as refused:
        make([CapacityRequest("v5litepod-8", ("us-centrall1",))])
    assert "us-central1" in (refused.value.hint or "")


def test_sixteen_chips_of_v5e_are_four_workers() -> None:
    plan = make([CapacityRequest("v5litepod-16", ("us-central1-a",))])
    (candidate,) = plan.candidates
    assert (candidate.workers, candidate.cores, candidate.cores_per_worker) == (4, 16, 4)


def test_the_worst_case_is_the_price_until_the_deadline() -> None:
    plan = make([CapacityRequest("v5litepod-8", ("us-central1-a",), max_duration_s=2 * 3600)])
    assert plan.worst_case_usd == pytest.approx(2 * 8 * 1.2)


def test_an_unknown_price_makes_the_worst_case_unknown_never_zero() -> None:
    plan = make([CapacityRequest("v6e-8", ("us-central2-b",))])
    assert plan.candidates[0].usd_per_hour is None and plan.worst_case_usd is None


def test_a_type_outside_the_table_has_to_be_allowed() -> None:
    with pytest.raises(UserError):
        make([CapacityRequest("v9-8", ("mars-north1-a",))])
    plan = make([CapacityRequest("v9-8", ("mars-north1-a",), runtime="r", unlisted=True)])
    assert plan.candidates[0].zone == "mars-north1-a"


SPOT, QUEUED = Provisioning.SPOT, Provisioning.QUEUED
V5E, V6E = (
    CapacityRequest("v5litepod-8", ("us-central1-a",)),
    CapacityRequest("v6e-8", ("us-east5-b", "us-central1-b"), provisioning=SPOT),
)


def shown(plan: Plan) -> list[tuple[str, str, str]]:
    return [(candidate.accelerator_type, candidate.zone, str(candidate.provisioning)) for candidate in plan.candidates]


def test_alternatives_of_different_types_are_asked_as_listed_each_with_its_own_workers() -> None:
    plan = make([V6E, replace(V5E, accelerator="v5litepod-16")])
    assert shown(plan) == [
        ("v6e-8", "us-east5-b", "spot"),
        ("v6e-8", "us-central1-b", "spot"),
        ("v5litepod-16", "us-central1-a", "on-demand"),
    ]
    assert [candidate.workers for candidate in plan.candidates] == [1, 1, 4] and [
        candidate.spot for candidate in plan.candidates
    ] == [1, 1, 0]


def test_a_candidate_of_two_alternatives_is_listed_once() -> None:
    assert len(make([V5E, V5E, replace(V5E, provisioning=SPOT)]).candidates) == 2


def test_cheapest_sorts_all_alternatives_by_price_and_puts_unpriced_candidates_last() -> None:
    unknown = CapacityRequest("v6e-8", ("us-central2-b",))
    plan = make([unknown, V5E, replace(V5E, provisioning=SPOT), V6E], order=CandidateOrder.CHEAPEST)
    prices = [candidate.usd_per_hour for candidate in plan.candidates]
    known = [price for price in prices[:-1] if price is not None]
    assert prices[-1] is None and known == sorted(known) and len(known) == len(prices) - 1


def test_fastest_asks_plain_capacity_first_then_spot_then_queued() -> None:
    flex = replace(V5E, provisioning=Provisioning.FLEX_START)
    plan = make([flex, replace(V5E, queue=True), replace(V5E, provisioning=SPOT), V5E], order=CandidateOrder.FASTEST)
    assert [str(candidate.provisioning) for candidate in plan.candidates] == [
        "on-demand", "spot", "flex-start", "queued",
    ]  # fmt: skip


@pytest.mark.parametrize(("requested", "queue", "provisioning", "queued"), [
    (Provisioning.ON_DEMAND, False, Provisioning.ON_DEMAND, False), (Provisioning.ON_DEMAND, True, QUEUED, True),
    (QUEUED, False, QUEUED, True), (SPOT, True, SPOT, True),
    (Provisioning.RESERVED, False, Provisioning.RESERVED, False),
    (Provisioning.FLEX_START, False, Provisioning.FLEX_START, True),
])  # fmt: skip
def test_which_candidates_are_queued(
    requested: Provisioning, queue: bool, provisioning: Provisioning, queued: bool
) -> None:
    (candidate,) = make([replace(V5E, provisioning=requested, queue=queue)]).candidates
    assert (candidate.provisioning, candidate.queued) == (provisioning, queued)


def test_flex_start_has_no_price_in_the_table_and_a_budget_cannot_hold_it() -> None:
    flex = replace(V5E, provisioning=Provisioning.FLEX_START)
    assert make([flex]).candidates[0].usd_per_hour is None
    with pytest.raises(UserError, match="no price"):
        make([replace(flex, max_cost=5.0)])


def test_any_means_every_zone_that_offers_the_type_whatever_the_settings_say() -> None:
    every = set(zones(CapacityRequest("v6e-8", ("any",)), default_zone="us-east5-b"))
    assert every == set(catalog.zones_with("v6e-8"))
    assert zones(CapacityRequest("v6e-8", ("us-east5-b", "any")))[0] == "us-east5-b"


def test_a_candidate_above_the_price_or_without_one_is_dropped_with_a_reason() -> None:
    plan = make(
        [V5E, replace(V5E, provisioning=SPOT), CapacityRequest("v6e-8", ("us-central2-b",))], max_price_per_hour=5.0
    )
    assert shown(plan) == [("v5litepod-8", "us-central1-a", "spot")]
    assert [(dropped.accelerator, dropped.zone, str(dropped.provisioning)) for dropped in plan.dropped] == [
        ("v5litepod-8", "us-central1-a", "on-demand"),
        ("v6e-8", "us-central2-b", "on-demand"),
    ]
    assert [dropped.why.partition(": ")[2] for dropped in plan.dropped] == [
        "v5litepod-8 (on-demand) in us-central1-a costs about $9.60/h, more than $5.00",
        "the price table has no price for v6e-8 (on-demand) in us-central2-b",
    ]
    with pytest.raises(UserError, match="costs about"):
        make([V5E], max_price_per_hour=5.0)


# -- what is known beside the table ------------------------------------------------------------------------------------

GRANTED = PlanInputs(grants=(Grant("v3-8", 5, "europe-west4-a"), Grant("v4", 32, "us-central2-b", spot=True)))


def test_a_granted_candidate_is_free_and_comes_first_under_cheapest_with_a_reason() -> None:
    requests = [replace(V5E, provisioning=SPOT), CapacityRequest("v3-8", ("us-central1-a", "europe-west4-a"))]
    first, *others = make(requests, order=CandidateOrder.CHEAPEST, inputs=GRANTED).candidates
    assert (first.zone, first.granted, first.usd_per_hour, first.list_usd_per_hour) == (
        "europe-west4-a", True, 0.0, 8.8,
    )  # fmt: skip
    assert first.why == "asked for; your settings say that it is granted (5 on-demand v3-8)"
    assert not any(candidate.granted for candidate in others) and all(candidate.usd_per_hour for candidate in others)


def test_where_any_zone_will_do_the_granted_one_is_asked_first() -> None:
    assert make([CapacityRequest("v3-8")], inputs=GRANTED).candidates[0].zone == "europe-west4-a"


def test_a_grant_needs_no_budget_and_fits_under_any_price() -> None:
    plan = make([CapacityRequest("v3-8", ("europe-west4-a",), max_cost=0.01)], max_price_per_hour=0.01, inputs=GRANTED)
    assert plan.worst_case_usd == 0.0 and plan.max_duration_s == 24 * 3600


@pytest.mark.parametrize("provisioning", [SPOT, Provisioning.RESERVED, Provisioning.FLEX_START])
def test_an_on_demand_grant_is_for_nothing_else(provisioning: Provisioning) -> None:
    request = CapacityRequest("v3-8", ("europe-west4-a",), provisioning=provisioning, unlisted=True)
    assert not make([request], inputs=GRANTED).candidates[0].granted


def test_a_type_that_the_project_lacks_is_dropped_and_an_unreachable_zone_is_not() -> None:
    availability = Availability(
        "p", "2026-11-21T10:00:00Z", {"us-central1-a": ("v5litepod-8",)}, {"us-west4-a": "timed out"}
    )
    wanted = CapacityRequest("v5litepod-8", ("us-central1-a", "us-west4-a", "us-east1-b"))
    plan = make([wanted], inputs=PlanInputs(availability=availability))
    assert [candidate.zone for candidate in plan.candidates] == ["us-central1-a", "us-west4-a"]
    (no,) = plan.dropped
    assert no.why == "your project has no v5litepod-8 there (asked on 2026-11-21; `tpujob offers --refresh` asks again)"


def test_a_bucket_in_another_region_drops_the_zone_and_stops_when_no_other_is_left() -> None:
    known = PlanInputs(buckets=(Bucket("b", "us-central1"),))
    plan = make([CapacityRequest("v5litepod-8", ("europe-west4-b", "us-central1-a"))], inputs=known)
    assert [candidate.zone for candidate in plan.candidates] == ["us-central1-a"]
    assert "per TB" in plan.dropped[0].why
    with pytest.raises(UserError, match="gs://b is in us-central1, not in europe-west4") as stopped:
        make([CapacityRequest("v5litepod-8", ("europe-west4-b",))], inputs=known)
    assert "allow_egress: true" in (stopped.value.hint or "")


def test_the_overlap_of_a_race_is_every_racer_but_the_cheapest_for_as_long_as_proof_takes() -> None:
    two = [replace(V5E, provisioning=QUEUED), replace(V5E, provisioning=SPOT, queue=True), V5E]
    plan = make(two, race=True)
    assert [candidate.queued for candidate in plan.racing] == [True, True]
    dearest = max(candidate.usd_per_hour or 0.0 for candidate in plan.racing)
    assert plan.overlap_usd(360) == pytest.approx(dearest / 10)
    assert make(two).racing == () and make([V5E, *two[:1]], race=True).overlap_usd(360) == 0.0
    assert make([CapacityRequest("v6e-8", ("us-central2-b",), queue=True)], race=True).overlap_usd(360) is None


def test_flex_start_is_asked_for_where_google_lists_it_or_where_the_user_says() -> None:
    flex = CapacityRequest("v6e-8", ("us-east5", "any"), provisioning=Provisioning.FLEX_START)
    assert zones(flex) == ["us-east5-a", "asia-northeast1-b"]
    nowhere = replace(flex, accelerator="v4-8", places=("us-central2-b",))
    with pytest.raises(
        UserError, match="v4-8 is not offered in us-central2-b with flex-start, as far as Google lists it"
    ):
        make([nowhere], order=CandidateOrder.CHEAPEST)
    assert make([nowhere]).candidates[0].offered_in == "no zone of the table"


def test_the_whole_bill_stays_within_the_budget_deletion_included() -> None:
    seconds = affordable_s(5.0, 9.6, absent_s=300, where="here")
    assert 9.6 * (seconds + 300) / 3600 == pytest.approx(5.0)


def test_a_budget_without_a_price_is_refused() -> None:
    with pytest.raises(UserError, match="no price"):
        affordable_s(5.0, None, absent_s=300, where="v5e in nowhere")


def test_a_budget_that_would_not_last_a_minute_is_refused_and_the_hint_names_a_sufficient_one() -> None:
    with pytest.raises(UserError, match="uses up") as caught:
        affordable_s(0.5, 9.6, absent_s=300, where="here")
    assert caught.value.hint == "it takes $0.96 at least: 60 s, and 300 s for the deletion, at about $9.60/h"
    with pytest.raises(UserError, match=r"here uses up <\$0.01 within 0.4 s"):
        affordable_s(0.001, 9.6, absent_s=10, where="here")


def test_a_plan_lasts_as_long_as_the_shorter_of_time_and_budget() -> None:
    request = CapacityRequest("v5litepod-8", ("us-central1-a",), max_duration_s=86400, max_cost=4.8, absent_s=300)
    plan = make([request])
    assert plan.max_duration_s == plan.candidates[0].life_s == pytest.approx(1800 - 300)
    assert plan.worst_case_usd is not None and plan.worst_case_usd < 4.8
    assert (
        make([CapacityRequest("v5litepod-8", ("us-central1-a",), max_duration_s=600, max_cost=4.8)]).max_duration_s
        == 600
    )


def test_a_plan_whose_every_candidate_is_too_expensive_is_refused() -> None:
    with pytest.raises(UserError, match=r"limits\.max_cost"):
        make([CapacityRequest("v5litepod-8", ("us-central1-a",), max_cost=0.01, absent_s=300)])
