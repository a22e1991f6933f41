"""Where a bucket lies, and what it costs to be elsewhere."""

from typing import Any

import pytest

from orchestrator.core.planning.egress import from_reply


def problem(reply: dict[str, Any], zone: str) -> str | None:
    bucket = from_reply("b", reply)
    assert bucket is not None
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
