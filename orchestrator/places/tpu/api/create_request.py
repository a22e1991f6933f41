"""The request of a create call: its body is made of the types of google-cloud-tpu, which refuse what the API does not have.

Pure; sends nothing. google-cloud-tpu is imported by `load`, or with the first request, so that importing this module is cheap.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.errors import BadRequest
from orchestrator.places.google.credentials import SCOPE
from orchestrator.places.tpu.api.calls import GOOGLE, parent, path, queue_path
from orchestrator.promise.lease.cloud_api import QueueTerms, SliceRequest
from orchestrator.system.lazy import Later

if TYPE_CHECKING:
    from google.cloud import tpu_v2
    from google.protobuf import json_format
else:
    tpu_v2, json_format = Later("google.cloud.tpu_v2"), Later("google.protobuf.json_format")


def load() -> None:
    """Import google-cloud-tpu, which takes seconds on a busy machine: a create call that is on its way may not be late."""
    _ = tpu_v2.Node, json_format.MessageToDict


def create_request(request: SliceRequest, endpoint: str = GOOGLE) -> dict[str, Any]:
    """Return the request that `TpuApi.create` sends: {"method", "url", "body"}. Raises BadRequest for invalid parts."""
    path(request.name)  # raises for an invalid name
    body = node_body(request)
    if request.queue is not None:
        return queued_request(request, request.queue, body, endpoint)
    place = parent(request.name.project, request.name.zone)
    return {"method": "POST", "url": f"{endpoint}/v2/{place}/nodes?nodeId={request.name.node}", "body": body}


def node_body(request: SliceRequest) -> dict[str, Any]:
    """Return the node to be created, as JSON."""
    node: dict[str, Any] = {
        "accelerator_type": request.accelerator_type,
        "runtime_version": request.runtime_version,
        "labels": dict(request.labels),
        "metadata": dict(request.metadata),
        "network_config": {
            "network": request.network,
            **({"subnetwork": request.subnetwork} if request.subnetwork else {}),
            "enable_external_ips": request.external_ips,
        },
        **({"tags": list(request.tags)} if request.tags else {}),
        "scheduling_config": {"spot": request.spot, **({"reserved": True} if request.reserved else {})},
    }
    if request.secure_boot:
        node["shielded_instance_config"] = {"enable_secure_boot": True}
    if request.service_account is not None:
        node["service_account"] = {"email": request.service_account, "scope": [SCOPE]}
    body: dict[str, Any] = json_format.MessageToDict(tpu_v2.Node.pb(tpu_v2.Node(node)))
    return body


# The request for a slice through a queued resource, with the two limits that the cloud itself enforces. Pure; sends nothing.
#
# Every request has `validUntilDuration`: a request that is no longer waited for must not become a node later, and nothing else
# in the API prevents it. Flex-start adds `runDuration`, after which the cloud deletes the VMs by itself. Only v2alpha1 has it,
# and no client library, so this part of the request is plain JSON.

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
