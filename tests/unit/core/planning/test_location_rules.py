"""Accelerator types and places as the user writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import catalog
from orchestrator.core.planning import location_rules


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
    assert problem is not None
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
