"""The request for a slice through a queued resource, with the two fences that the cloud itself keeps. Pure; sends nothing.

`validUntilDuration` is on every one of them: a request that nobody waits for any more must not come alive later, and nothing
else on the API stops it. Flex-start adds `runDuration`, after which the cloud deletes the VMs by itself, whoever lives or is
dead; only v2alpha1 knows it, and no client library does, so the request is JSON. `TpuApi.create` sends what I build, and
`preview` shows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestrator.clouds.tpu.calls import GOOGLE, parent, queue_path
from orchestrator.core.lease.slices import QueueTerms, SliceRequest
from orchestrator.errors import BadRequest

LONGEST_FLEX_START_S = 7 * 86400.0  # Google's own limit
_REQUEST_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def queued_request(
    request: SliceRequest, queue: QueueTerms, node: Mapping[str, Any], endpoint: str = GOOGLE
) -> dict[str, Any]:
    """{"method", "url", "body"}. `node` is the body of a plain create call; queue and node have one name, our own."""
    name = request.name
    queue_path(name)  # refuses what is no name
    place = parent(name.project, name.zone)
    if not _REQUEST_ID.fullmatch(queue.request_id):
        raise BadRequest(f"{queue.request_id!r} is not a UUID")
    if queue.valid_for_s < 1:
        raise BadRequest("a queued request that is valid for no time at all")
    body: dict[str, Any] = {
        "tpu": {"nodeSpec": [{"parent": place, "nodeId": name.node, "node": _plain(node)}]},
        "queueingPolicy": {"validUntilDuration": _seconds(queue.valid_for_s)},
    }
    version, way = _way(request, queue)
    query = f"queuedResourceId={name.node}&requestId={queue.request_id}"
    return {
        "method": "POST",
        "url": f"{endpoint}/{version}/{place}/queuedResources?{query}",
        "body": body | way,
    }


def _way(request: SliceRequest, queue: QueueTerms) -> tuple[str, dict[str, Any]]:
    """The version that knows it, and how it says spot, reserved or flex-start."""
    if (queue.flex_start_s is not None) + request.spot + request.reserved > 1:
        raise BadRequest("spot, reserved and flex-start are three ways of provisioning: a request takes one of them")
    if request.spot:
        return "v2", {"spot": {}}
    if request.reserved:  # out of any reservation that fits; v2 has no other word for it
        return "v2", {"reservationName": f"{parent(request.name.project, request.name.zone)}/reservations/-"}
    if queue.flex_start_s is None:
        return "v2", {}
    if not 1 <= queue.flex_start_s <= LONGEST_FLEX_START_S:
        raise BadRequest(f"flex-start takes up to 7 days, not {queue.flex_start_s:.0f} s")
    run = {"maxRunDuration": _seconds(queue.flex_start_s)}
    return "v2alpha1", {"provisioningModel": "FLEX_START", "runDuration": run}


def _plain(node: Mapping[str, Any]) -> dict[str, Any]:
    """How it is provisioned is said by the queued resource, never by the node in it."""
    return {key: value for key, value in node.items() if key != "schedulingConfig"}


def _seconds(seconds: float) -> str:
    """A protobuf Duration as JSON; whole seconds, rounded down: earlier is on the safe side."""
    return f"{int(seconds)}s"
