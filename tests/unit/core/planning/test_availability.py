"""The stored reply about a project: read back, never for another project, and an unreachable zone stays unknown."""

import json

import pytest

from orchestrator.core.planning.availability import Availability, from_dict

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
