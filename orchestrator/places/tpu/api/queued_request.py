"""The request for a slice through a queued resource, with the two limits that the cloud itself enforces. Pure; sends nothing.

Every request has `validUntilDuration`: a request that is no longer waited for must not become a node later, and nothing else
in the API prevents it. Flex-start adds `runDuration`, after which the cloud deletes the VMs by itself. Only v2alpha1 has it,
and no client library, so the request is JSON. `TpuApi.create` sends it, and `preview` shows it.
"""

import re
from collections.abc import Mapping
from typing import Any

from orchestrator.core.lease.cloud_api import QueueTerms, SliceRequest
from orchestrator.errors import BadRequest
from orchestrator.places.tpu.api.calls import GOOGLE, parent, queue_path

LONGEST_FLEX_START_S = 7 * 86400.0  # Google's own limit
_REQUEST_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def queued_request(
    request: SliceRequest, queue: QueueTerms, node: Mapping[str, Any], endpoint: str = GOOGLE
) -> dict[str, Any]:
    """Return {"method", "url", "body"}. `node` is the body of a plain create call. Raises BadRequest for invalid parts."""
    name = request.name
    queue_path(name)  # raises for an invalid name
    place = parent(name.project, name.zone)
    if not _REQUEST_ID.fullmatch(queue.request_id):
        raise BadRequest(f"{queue.request_id!r} is not a UUID")
    if queue.valid_for_s < 1:
        raise BadRequest("a queued request has to be valid for at least a second")
    body: dict[str, Any] = {
        "tpu": {"nodeSpec": [{"parent": place, "nodeId": name.node, "node": _plain(node)}]},
        "queueingPolicy": {"validUntilDuration": _seconds(queue.valid_for_s)},
    }
    version, provisioning = _provisioning(request, queue)
    query = f"queuedResourceId={name.node}&requestId={queue.request_id}"
    url = f"{endpoint}/{version}/{place}/queuedResources?{query}"
    return {"method": "POST", "url": url, "body": body | provisioning}


def _provisioning(request: SliceRequest, queue: QueueTerms) -> tuple[str, dict[str, Any]]:
    """The API version, and its fields for spot, reserved or flex-start."""
    if (queue.flex_start_s is not None) + request.spot + request.reserved > 1:
        raise BadRequest("spot, reserved and flex-start exclude each other: a request takes one of them")
    if request.spot:
        return "v2", {"spot": {}}
    if request.reserved:  # from any reservation that fits; v2 has no other field for it
        return "v2", {"reservationName": f"{parent(request.name.project, request.name.zone)}/reservations/-"}
    if queue.flex_start_s is None:
        return "v2", {}
    if not 1 <= queue.flex_start_s <= LONGEST_FLEX_START_S:
        raise BadRequest(f"flex-start takes up to 7 days, not {queue.flex_start_s:.0f} s")
    run = {"maxRunDuration": _seconds(queue.flex_start_s)}
    return "v2alpha1", {"provisioningModel": "FLEX_START", "runDuration": run}


def _plain(node: Mapping[str, Any]) -> dict[str, Any]:
    """The node without its scheduling: the queued resource has it."""
    return {key: value for key, value in node.items() if key != "schedulingConfig"}


def _seconds(seconds: float) -> str:
    """A protobuf Duration as JSON, in whole seconds, rounded down: earlier is safer."""
    return f"{int(seconds)}s"
