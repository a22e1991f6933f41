"""Where a bucket lies, and what it costs to be elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.planning.egress import from_reply


def problem(said: dict[str, Any], zone: str) -> str | None:
    bucket = from_reply("b", said)
    assert bucket is not None
    return bucket.problem(zone)


@pytest.mark.parametrize(
    ("said", "zone"),
    [
        ({"location": "US-CENTRAL1"}, "us-central1-a"),
        ({"location": "US"}, "us-central1-a"),
        ({"location": "EU"}, "europe-west4-a"),
        ({"location": "NAM4"}, "us-east1-d"),
        ({"location": "US", "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-WEST1"]}}, "us-west1-c"),
    ],
)
def test_in_the_region_or_a_multi_region_around_it_nothing_is_to_be_said(said: dict[str, Any], zone: str) -> None:
    assert problem(said, zone) is None


@pytest.mark.parametrize(
    ("said", "zone", "price"),
    [
        ({"location": "US-EAST1"}, "us-central1-a", "$20 to $80"),
        ({"location": "EUR4"}, "europe-west1-b", "$20 to $80"),
        ({"location": "US"}, "europe-west4-a", "$50 to $140"),
        ({"location": "ASIA-EAST1"}, "us-central1-a", "$50 to $140"),
        ({"location": "NAM4"}, "europe-west4-a", "$50 to $140"),
        (
            {"location": "US", "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-WEST1"]}},
            "us-central1-a",
            "$20 to $80",
        ),
    ],
)
def test_elsewhere_the_price_of_a_terabyte_is_said_with_its_date(said: dict[str, Any], zone: str, price: str) -> None:
    found = problem(said, zone)
    region = zone.rpartition("-")[0]
    assert found == (
        f"gs://b is in {said['location'].lower()}, not in {region}: copying between them costs about {price} per TB "
        "(list prices, roughly, as of 2026-11)"
    )


@pytest.mark.parametrize("said", [{}, {"location": ""}, {"location": 7}])
def test_a_reply_without_a_place_is_no_place(said: dict[str, Any]) -> None:
    assert from_reply("b", said) is None
