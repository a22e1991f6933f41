"""The request for a slice through a queued resource: the two fences that the cloud itself keeps. Pure; sends nothing.

`validUntilDuration` is on every one of them: a request that nobody waits for any more must not come alive later, and nothing
else on the API stops it. Flex-start adds `runDuration`, after which the cloud deletes the VMs by itself, whoever lives or is
dead; only v2alpha1 knows it, and no client library does, so the request is JSON. Whoever queues a slice sends what
`queued_request` builds, and trusts the end only once `SliceView.deadline` reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestrator.core import names
from orchestrator.core.slices import SliceRequest
from orchestrator.errors import BadRequest

LONGEST_FLEX_START_S = 7 * 86400.0  # Google's own limit
_REQUEST_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def queued_request(
    request: SliceRequest,
    node: Mapping[str, Any],
    *,
    valid_for_s: float,
    request_id: str,
    flex_start_s: float | None = None,
) -> dict[str, Any]:
    """{"method", "url", "body"}. `node` is the body of a plain create call; queue and node have one name, our own.

    `valid_for_s`: no node is made later than this. `flex_start_s`: the VMs live so long at most, by the cloud's clock.
    `request_id` (a UUID that is written down before the call) makes sending it again harmless.
    """
    name = request.name
    if problem := names.node_problem(name.node):
        raise BadRequest(f"{name.node!r} {problem}")
    if not _REQUEST_ID.fullmatch(request_id):
        raise BadRequest(f"{request_id!r} is not a UUID")
    if valid_for_s <= 0:
        raise BadRequest("a queued request that is valid for no time at all")
    parent = f"projects/{name.project}/locations/{name.zone}"
    body: dict[str, Any] = {
        "tpu": {"nodeSpec": [{"parent": parent, "nodeId": name.node, "node": _plain(node)}]},
        "queueingPolicy": {"validUntilDuration": _seconds(valid_for_s)},
    }
    version = "v2"
    if flex_start_s is not None:
        if request.spot:
            raise BadRequest("flex-start is a way of provisioning of its own: it cannot be spot too")
        if not 0 < flex_start_s <= LONGEST_FLEX_START_S:
            raise BadRequest(f"flex-start takes up to 7 days, not {flex_start_s:.0f} s")
        version = "v2alpha1"
        body |= {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": _seconds(flex_start_s)}}
    elif request.spot:
        body["spot"] = {}
    path = f"{version}/{parent}/queuedResources"
    query = f"queuedResourceId={name.node}&requestId={request_id}"
    return {"method": "POST", "url": f"https://tpu.googleapis.com/{path}?{query}", "body": body}


def _plain(node: Mapping[str, Any]) -> dict[str, Any]:
    """Spot is said by the queued resource, never by the node in it."""
    return {key: value for key, value in node.items() if key != "schedulingConfig"}


def _seconds(seconds: float) -> str:
    """A protobuf Duration as JSON; whole seconds, rounded down: earlier is on the safe side."""
    return f"{int(seconds)}s"
