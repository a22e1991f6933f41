"""What a queued request says, checked against Google's own messages where they know its fields."""

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.cloud.queued import queued_request
from orchestrator.cloud.tpu_api import preview
from orchestrator.core.slices import SliceName, SliceRequest
from orchestrator.errors import BadRequest

REQUEST = SliceRequest(
    SliceName("my-project", "us-central1-a", "tpujob-0abcde-0123456789"),
    "v5litepod-8",
    "v2-alpha-tpuv5-lite",
    labels={"tpujob": "1", "tpujob-run": "0123456789"},
    metadata={"startup-script": "#!/bin/bash\n"},
)
ID = "6f1c2d3e-0000-4000-8000-0123456789ab"


def built(request: SliceRequest = REQUEST, **how: Any) -> dict[str, Any]:
    node = preview(request)["body"]
    return queued_request(request, node, **{"valid_for_s": 2700.9, "request_id": ID} | how)


@pytest.mark.parametrize("spot", [False, True])
def test_googles_own_message_understands_every_field(spot: bool) -> None:
    from google.cloud import tpu_v2
    from google.protobuf import json_format

    said = tpu_v2.QueuedResource.pb(tpu_v2.QueuedResource())
    json_format.ParseDict(built(replace(REQUEST, spot=spot))["body"], said)
    (spec,) = said.tpu.node_spec
    assert (spec.node_id, dict(spec.node.labels)) == (REQUEST.name.node, dict(REQUEST.labels))
    assert said.queueing_policy.valid_until_duration.seconds == 2700
    assert said.HasField("spot") is spot


def test_no_queued_request_is_without_an_end_of_its_own() -> None:
    assert built()["body"]["queueingPolicy"] == {"validUntilDuration": "2700s"}
    assert built(flex_start_s=3600)["body"]["queueingPolicy"] == {"validUntilDuration": "2700s"}
    with pytest.raises(BadRequest):
        built(valid_for_s=0)


def test_flex_start_carries_the_deadline_that_the_cloud_keeps() -> None:
    flex = built(flex_start_s=7200)
    assert flex["body"]["provisioningModel"] == "FLEX_START"
    assert flex["body"]["runDuration"] == {"maxRunDuration": "7200s"}
    assert flex["url"].startswith("https://tpu.googleapis.com/v2alpha1/projects/my-project/locations/us-central1-a/")


def test_the_name_is_ours_and_the_call_can_be_repeated() -> None:
    assert built()["url"].endswith(f"queuedResources?queuedResourceId={REQUEST.name.node}&requestId={ID}")


@pytest.mark.parametrize(
    ("request_", "how"),
    [
        (REQUEST, {"request_id": "not-a-uuid"}),
        (REQUEST, {"flex_start_s": 8 * 86400}),
        (replace(REQUEST, spot=True), {"flex_start_s": 3600}),
        (replace(REQUEST, name=SliceName("my-project", "us-central1-a", "../x")), {}),
    ],
)
def test_what_the_api_would_refuse_or_misread_is_not_built(request_: SliceRequest, how: dict[str, Any]) -> None:
    node = preview(REQUEST)["body"]
    with pytest.raises(BadRequest):
        queued_request(request_, node, **{"valid_for_s": 60.0, "request_id": ID} | how)
