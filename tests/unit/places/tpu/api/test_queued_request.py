"""Queued requests, checked against Google's own messages where these have the fields."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import QueueTerms, SliceName, SliceRequest
from orchestrator.errors import BadRequest
from orchestrator.places.tpu.api.client import preview

ID = "6f1c2d3e-0000-4000-8000-0123456789ab"
QUEUE = QueueTerms(valid_for_s=2700.9, request_id=ID)
REQUEST = SliceRequest(
    SliceName("my-project", "us-central1-a", "tpujob-0abcde-0123456789", queued=True),
    "v5litepod-8",
    "v2-alpha-tpuv5-lite",
    labels={"tpujob": "1", "tpujob-lease-id": "0123456789"},
    metadata={"startup-script": "#!/bin/bash\n"},
    queue=QUEUE,
)
FLEX_START = replace(REQUEST, queue=replace(QUEUE, flex_start_s=7200.0))


@pytest.mark.parametrize(("spot", "reserved"), [(False, False), (True, False), (False, True)])
def test_googles_own_message_parses_every_field(spot: bool, reserved: bool) -> None:
    from google.cloud import tpu_v2
    from google.protobuf import json_format

    message = tpu_v2.QueuedResource.pb(tpu_v2.QueuedResource())
    json_format.ParseDict(preview(replace(REQUEST, spot=spot, reserved=reserved))["body"], message)
    (spec,) = message.tpu.node_spec
    assert (spec.node_id, dict(spec.node.labels)) == (REQUEST.name.node, dict(REQUEST.labels))
    assert spec.node.metadata["startup-script"] == "#!/bin/bash\n"
    assert not spec.node.HasField("scheduling_config"), "how it is provisioned is the request's to say"
    assert message.queueing_policy.valid_until_duration.seconds == 2700
    assert message.HasField("spot") is spot
    reservation = "projects/my-project/locations/us-central1-a/reservations/-"
    assert message.reservation_name == (reservation if reserved else "")


def test_every_queued_request_has_a_time_limit() -> None:
    for request in (REQUEST, FLEX_START):
        assert preview(request)["body"]["queueingPolicy"] == {"validUntilDuration": "2700s"}
    with pytest.raises(BadRequest):
        preview(replace(REQUEST, queue=replace(QUEUE, valid_for_s=0.9)))


def test_flex_start_has_the_deadline_that_the_cloud_enforces() -> None:
    flex = preview(FLEX_START)
    assert flex["body"]["provisioningModel"] == "FLEX_START"
    assert flex["body"]["runDuration"] == {"maxRunDuration": "7200s"}
    assert flex["url"].startswith("https://tpu.googleapis.com/v2alpha1/projects/my-project/locations/us-central1-a/")


def test_the_name_is_chosen_and_the_call_can_be_repeated() -> None:
    shown = preview(REQUEST)
    path = "v2/projects/my-project/locations/us-central1-a/queuedResources"
    assert (shown["method"], shown["url"]) == (
        "POST",
        f"https://tpu.googleapis.com/{path}?queuedResourceId={REQUEST.name.node}&requestId={ID}",
    )


def test_a_plain_request_has_reserved_in_its_node() -> None:
    plain = replace(REQUEST, name=replace(REQUEST.name, queued=False), queue=None, reserved=True)
    assert preview(plain)["body"]["schedulingConfig"]["reserved"] is True


@pytest.mark.parametrize(("queue", "changes"), [
    (replace(QUEUE, request_id="not-a-uuid"), {}), (replace(QUEUE, flex_start_s=8 * 86400.0), {}),
    (replace(QUEUE, flex_start_s=0.5), {}), (replace(QUEUE, flex_start_s=3600.0), {"spot": True}),
    (replace(QUEUE, flex_start_s=3600.0), {"reserved": True}), (QUEUE, {"spot": True, "reserved": True}),
    (QUEUE, {"name": SliceName("my-project", "us-central1-a", "../x", queued=True)}),
])  # fmt: skip
def test_an_invalid_request_is_refused(queue: QueueTerms, changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        preview(replace(REQUEST, queue=queue, **changes))
