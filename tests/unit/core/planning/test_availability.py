"""What the project was said to have: kept and read again, never another project's, and silence is not absence."""

from __future__ import annotations

import json

import pytest

from orchestrator.core.planning.availability import Availability, from_dict

SAID = Availability(
    "google:p", "2026-11-21T10:00:00Z", {"us-central1-a": ("v5litepod-8",)}, {"us-west4-a": "timed out"}
)


def test_it_survives_being_kept() -> None:
    assert from_dict(json.loads(json.dumps(SAID.shape())), "google:p") == SAID


def test_a_zone_that_did_not_answer_is_unknown_and_one_that_was_not_listed_has_nothing() -> None:
    assert SAID.has("v5litepod-8", "us-central1-a") is True
    assert SAID.has("v6e-8", "us-central1-a") is False
    assert SAID.has("v5litepod-8", "us-east1-b") is False
    assert SAID.has("v5litepod-8", "us-west4-a") is None


@pytest.mark.parametrize(
    "said", [None, [], {}, {"schema": 2}, SAID.shape() | {"zones": 1}, SAID.shape() | {"silent": 5}]
)
def test_what_is_not_ours_to_read_is_as_if_nobody_had_asked(said: object) -> None:
    assert from_dict(said, "google:p") is None
    assert from_dict(SAID.shape(), "google:other") is None
