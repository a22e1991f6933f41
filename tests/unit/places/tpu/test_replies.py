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


def test_a_queued_request_that_failed_says_why_and_in_which_project() -> None:
    error = {"code": 7, "message": "Permission 'tpu.nodes.create' denied"}
    name = REQUEST.replace("projects/p/", "projects/acme-project/")
    view = replies.queue_view({"name": name, "state": {"state": "FAILED", "failedData": {"error": error}}}, ASKED)
    assert isinstance(view.error, CloudError) and view.state is SliceState.TOMBSTONE
    assert "on project acme-project" in str(view.error.hint)


def test_a_node_of_a_type_that_is_newer_than_this_tpujob_is_ready_when_the_api_says_so() -> None:
    view = replies.slice_view({"name": NODE, "state": "READY", "acceleratorType": "v99-8"}, ASKED)
    assert (view.state, view.native_state) == (SliceState.READY, "READY")


def test_a_node_that_says_no_state_is_in_none_that_is_known() -> None:
    view = replies.slice_view({"name": NODE}, ASKED)
    assert (view.state, view.native_state) == (SliceState.UNKNOWN, "STATE_UNSPECIFIED")
