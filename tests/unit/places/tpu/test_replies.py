"""Replies of the Cloud TPU API, piece by piece: verbs, health, queued requests without a node, and what reaches no one."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import CloudError
from orchestrator.places.tpu.api import replies
from orchestrator.promise.lease.cloud_api import SliceState
from orchestrator.promise.lease.lease import SliceName

ASKED = SliceName("p", "us-central1-a", "n")
NODE = "projects/p/locations/us-central1-a/nodes/n"
REQUEST = "projects/p/locations/us-central1-a/queuedResources/n"


@pytest.mark.parametrize(("text", "verb"), [
    ("create", "create"), ("CreateNode", "create"), ("createQueuedResource", "create"), ("Delete", "delete"), ("", ""),
])  # fmt: skip
def test_every_word_for_a_create_is_one(text: str, verb: str) -> None:
    assert replies.verb_of(text) == verb


@pytest.mark.parametrize(("said", "health"), [
    (1, "HEALTHY"), (3, "TIMEOUT"), (4, "UNHEALTHY_TENSORFLOW"), (5, "UNHEALTHY_MAINTENANCE"), ("HEALTHY", "HEALTHY"),
    (0, None), ("HEALTH_UNSPECIFIED", None), (None, None),
])  # fmt: skip
def test_health_has_a_name_or_none(said: Any, health: str | None) -> None:
    reply = {"name": NODE, "state": "READY", "acceleratorType": "v5litepod-8"} | (
        {} if said is None else {"health": said}
    )
    assert replies.slice_view(reply, ASKED).health == health


@pytest.mark.parametrize(("more", "spot"), [
    ({}, False), ({"spot": {}}, True), ({"provisioningModel": "SPOT"}, True), ({"provisioningModel": "FLEX_START"}, False),
])  # fmt: skip
def test_a_queued_request_is_a_spot_one_by_either_word(more: dict[str, Any], spot: bool) -> None:
    view = replies.queue_view({"name": REQUEST, "state": {"state": "WAITING_FOR_RESOURCES"}, **more}, ASKED)
    assert (view.spot, view.state, view.error) == (spot, SliceState.QUEUED, None) and view.name.queued


def test_a_queued_request_that_failed_says_why() -> None:
    reply = {
        "name": REQUEST,
        "state": {"state": "FAILED", "failedData": {"error": {"code": 8, "message": "no capacity"}}},
    }
    view = replies.queue_view(reply, ASKED)
    assert isinstance(view.error, CloudError) and view.state is SliceState.TOMBSTONE
