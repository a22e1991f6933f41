"""From requests to candidates in order, each with a reason: places, buckets, granted quota, and what a project has."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import catalog
from orchestrator.capacity import location_rules
from orchestrator.capacity.availability import Availability, from_dict
from orchestrator.capacity.capacity_request import CapacityRequest, PlanInputs
from orchestrator.capacity.egress import Bucket, from_reply
from orchestrator.capacity.grants import Grant, from_keys, from_text, remaining
from orchestrator.capacity.plan import CandidateOrder, Plan, affordable_s, make
from orchestrator.capacity.provisioning import Provisioning
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


def test_places_are_split_at_commas() -> None:
    assert location_rules.split_places("us-central1, europe-west4-a ,") == ("us-central1", "europe-west4-a")
    assert location_rules.split_places(" , ") == ()


@pytest.mark.parametrize("kind", [name for name in catalog.types() if catalog.zones_with(name)])
def test_every_type_of_the_catalog_is_fine_where_it_is_offered(kind: str) -> None:
    assert location_rules.accelerator_problem(kind) is None
    for zone in catalog.zones_with(kind):
        assert location_rules.place_problem(zone, kind) is None
        assert location_rules.place_problem(zone.rpartition("-")[0], kind) is None


def test_a_type_that_only_gke_has_is_refused_with_the_way() -> None:
    problem = location_rules.accelerator_problem("tpu7x-8")
    assert problem.endswith("Compute Engine and GKE have it; run it on a cluster, with `on: gke`")
    assert location_rules.accelerator_problem("tpu7x-8", unlisted=True) is None


def test_where_a_type_is_not_offered_the_nearest_zones_that_have_it_come_first() -> None:
    assert location_rules.place_problem("europe-west1", "v6e-8") is None, "Google is asked"
    shown = location_rules.offered_near("europe-west1-b", catalog.zones_with("v6e-8"))
    assert shown.startswith("europe-west4-a, ") and shown.endswith(" more")


def test_a_place_that_is_close_to_none_gets_the_zones_of_the_type_by_region() -> None:
    problem = location_rules.place_problem("mars", "v4-8")
    assert problem == "`mars` is not a zone or a known region; zones with v4-8: us-central2-b"
    assert "us-central1-a/b/c/f" in location_rules.places_near("mars") and len(location_rules.places_near("mars")) < 700
    assert location_rules.places_near("us-centrall1").startswith("nearest: us-central1")


def test_places_are_told_from_types() -> None:
    assert all(map(location_rules.is_place, ("us-east5", "us-central1-a", "mars-north9", "us-east5,us-west4-a")))
    assert not any(map(location_rules.is_place, ("v5e", "v5litepod-8", "v6e-8", "", "us", "V4-8")))


def test_an_unlisted_type_may_be_asked_for_in_an_unlisted_zone_but_not_in_an_unknown_region() -> None:
    assert location_rules.accelerator_problem("v7-8", unlisted=True) is None
    assert location_rules.place_problem("mars-north1-a", "v7-8", unlisted=True) is None
    assert location_rules.place_problem("mars-north1", "v7-8", unlisted=True) is not None


@pytest.mark.ci
@given(st.text())
def test_every_text_gets_a_printable_line(text: str) -> None:
    for problem in (location_rules.accelerator_problem(text), location_rules.place_problem(text, "v5litepod-8")):
        assert problem is None or problem.isprintable()


def problem(reply: dict[str, Any], zone: str) -> str | None:
    bucket = from_reply("b", reply)
    return bucket.problem(zone)


@pytest.mark.parametrize(("reply", "zone"), [
    ({"location": "US-CENTRAL1"}, "us-central1-a"), ({"location": "US"}, "us-central1-a"),
    ({"location": "EU"}, "europe-west4-a"), ({"location": "NAM4"}, "us-east1-d"),
    ({"location": "US", "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-WEST1"]}}, "us-west1-c"),
])  # fmt: skip
def test_a_bucket_in_the_region_or_a_multi_region_around_it_is_no_problem(reply: dict[str, Any], zone: str) -> None:
    assert problem(reply, zone) is None


@pytest.mark.parametrize(("reply", "zone", "price"), [
    ({"location": "US-EAST1"}, "us-central1-a", "$20 to $80"),
    ({"location": "EUR4"}, "europe-west1-b", "$20 to $80"),
    ({"location": "US"}, "europe-west4-a", "$50 to $140"),
    ({"location": "ASIA-EAST1"}, "us-central1-a", "$50 to $140"),
    ({"location": "NAM4"}, "europe-west4-a", "$50 to $140"),
    ({"location": "US", "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-WEST1"]}}, "us-central1-a",
     "$20 to $80"),
])  # fmt: skip
def test_a_bucket_elsewhere_names_the_price_of_a_terabyte_and_its_date(
    reply: dict[str, Any], zone: str, price: str
) -> None:
    found = problem(reply, zone)
    region = zone.rpartition("-")[0]
    assert found == (
        f"gs://b is in {reply['location'].lower()}, not in {region}: copying between them costs about {price} per TB "
        "(list prices, roughly, as of 2026-11)"
    )


@pytest.mark.parametrize("reply", [{}, {"location": ""}, {"location": 7}])
def test_a_reply_without_a_location_yields_none(reply: dict[str, Any]) -> None:
    assert from_reply("b", reply) is None


V3, V4_SPOT = Grant("v3-8", 5, "europe-west4-a"), Grant("v4", 32, "us-central2-b", spot=True)


@pytest.mark.parametrize(("line", "grant"), [
    ("5 on-demand v3-8 TPU devices in zone europe-west4-a", V3),
    ("5 on-demand Cloud TPU v3-8 device(s) in zone europe-west4-a", V3),
    (" - 5 on-demand v3-8 in europe-west4-a.", V3),
    ("100 preemptible Cloud TPU v2-8 device(s) in zone us-central1-f", Grant("v2-8", 100, "us-central1-f", spot=True)),
    ("32 spot Cloud TPU v4 chips in zone us-central2-b", V4_SPOT),
    ("64 Spot Cloud TPU v5e chips in zone us-central1-a", Grant("v5e", 64, "us-central1-a", spot=True)),
])  # fmt: skip
def test_a_line_of_an_email_is_a_grant(line: str, grant: Grant) -> None:
    assert from_text(line) == grant


@pytest.mark.parametrize(("line", "problem"), [
    ("five v3-8", "is not a grant; write for example `5 on-demand Cloud TPU v3-8 devices in zone europe-west4-a`"),
    ("5 reserved v3-8 in europe-west4-a", "is not a grant"),
    ("5 on-demand v3-9 in europe-west4-a", "'v3-9' is neither an accelerator type nor a generation; nearest: v3-8"),
    ("5 on-demand v3-8 in europe", "zone: 'europe'"),
    ("0 on-demand v3-8 in europe-west4-a", "grants nothing; remove it"),
    ("8 on-demand v3-8 chips in europe-west4-a", "counts chips of one type, or devices of a whole generation"),
    ("8 on-demand v4 devices in us-central2-b", "counts chips of one type, or devices of a whole generation"),
])  # fmt: skip
def test_a_line_that_is_no_grant_gets_advice(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match="^" + problem.replace("(", r"\(")):
        from_text(line)


@pytest.mark.parametrize(("keys", "problem"), [
    ({"type": "v3-8"}, "type is not a key of a grant; they are accelerator, count, zone, spot"),
    ({"accelerator": "v3-8", "count": "5"}, "lacks zone"),
    ({"accelerator": "v3-8", "count": "-5", "zone": "europe-west4-a"}, "count: '-5' is not a whole number"),
    ({"accelerator": "v3-8", "count": "5", "zone": "europe-west4-a", "spot": "yes"}, "spot: 'yes' is not `true`"),
])  # fmt: skip
def test_keys_are_checked_one_by_one(keys: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{problem}"):
        from_keys(keys)
    assert from_keys({"accelerator": "v3-8", "count": "5", "zone": "europe-west4-a"}) == V3


def test_a_grant_of_a_type_is_for_that_type_zone_and_provisioning_only() -> None:
    assert V3.covers("v3-8", "europe-west4-a", spot=False)
    assert not V3.covers("v3-32", "europe-west4-a", spot=False), "five v3-8 are no v3-32"
    assert not V3.covers("v3-8", "us-central1-a", spot=False)
    assert not V3.covers("v3-8", "europe-west4-a", spot=True)


def test_a_grant_of_a_generation_counts_chips_of_any_size_that_fits() -> None:
    assert V4_SPOT.covers("v4-64", "us-central2-b", spot=True), "32 chips"
    assert not V4_SPOT.covers("v4-128", "us-central2-b", spot=True)
    assert V4_SPOT.too_small_for("v4-128", "us-central2-b", spot=True)
    assert not V4_SPOT.covers("v5p-8", "us-central2-b", spot=True)
    assert V4_SPOT.label == "32 spot v4 chips" and V3.label == "5 on-demand v3-8"


def test_existing_slices_use_up_grants() -> None:
    used = [("v4-32", "us-central2-b", True), ("v4-8", "us-central2-b", True), ("v3-8", "europe-west4-a", False)]
    assert [grant.count for grant in remaining([V3, V4_SPOT], used)] == [4, 32 - 16 - 4]
    assert remaining([Grant("v3-8", 1, "europe-west4-a")], used)[0].too_small_for("v3-8", "europe-west4-a", spot=False)
    assert remaining([V3], [("v3-8", "us-central1-a", False)]) == (V3,)


STORED = Availability(
    "google:p", "2026-11-21T10:00:00Z", {"us-central1-a": ("v5litepod-8",)}, {"us-west4-a": "timed out"}
)


def test_it_is_read_back_as_written() -> None:
    assert from_dict(json.loads(json.dumps(STORED.to_dict())), "google:p") == STORED


def test_an_unreachable_zone_is_unknown_and_an_unlisted_one_has_nothing() -> None:
    assert STORED.has("v5litepod-8", "us-central1-a") is True
    assert STORED.has("v6e-8", "us-central1-a") is False
    assert STORED.has("v5litepod-8", "us-east1-b") is False
    assert STORED.has("v5litepod-8", "us-west4-a") is None


@pytest.mark.parametrize(
    "data", [None, [], {}, {"schema": 2}, STORED.to_dict() | {"zones": 1}, STORED.to_dict() | {"unreachable": 5}]
)
def test_malformed_data_and_other_projects_yield_none(data: object) -> None:
    assert from_dict(data, "google:p") is None
    assert from_dict(STORED.to_dict(), "google:other") is None
