"""The Cloud TPU API (v2, REST) on google-cloud-tpu: all of `promise.lease.cloud_api.Cloud`, for Google and for the emulator.

Every call has a timeout, is tried once, and raises a CloudError. google-cloud-tpu is imported with the first client, so that
importing this module is cheap.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.errors import BadRequest
from orchestrator.places.google import error_translation
from orchestrator.places.google.credentials import SCOPE
from orchestrator.places.google.error_translation import NotFound
from orchestrator.places.tpu.api import replies
from orchestrator.places.tpu.api.calls import GOOGLE, ApiCalls, ApiReply, must_exist, parent, path, queue_path
from orchestrator.promise.lease.cloud_api import Operation, QueueTerms, SliceName, SliceRequest, Timings


class TpuApi(ApiCalls):
    """The complete client. Create it with `connect`, which checks where `credentials` may be sent."""

    def __init__(
        self,
        endpoint: str | None,
        credentials: Any,
        *,
        emulated: bool,
        timeout_s: float = 15.0,
        create_timeout_s: float = 30.0,
        timings: Timings | None = None,
    ) -> None:
        from orchestrator.places.tpu.api import transport  # google-cloud-tpu: half a second

        super().__init__(endpoint, emulated=emulated, timeout_s=timeout_s, timings=timings)
        self._create_timeout_s = create_timeout_s
        self._library_errors, self._parse_error = transport.LIBRARY_ERRORS, transport.PARSE_ERROR
        self._adapter = transport.Adapter(self._host, emulated=emulated)
        self._client = transport.open_client(self.endpoint, credentials, self._adapter, emulated=emulated)

    # -- changes --------------------------------------------------------------------------------------------------

    def create(self, request: SliceRequest) -> Operation:
        if request.name.queued is not (request.queue is not None):
            raise BadRequest(f"{request.name.node}: its name and its request differ in whether it is queued")
        try:
            if request.queue is not None:
                return replies.operation(self._post(preview(request, self.endpoint)))
            reply = self._send(self._client.create_node, create_request(request), self._create_timeout_s)
        except NotFound as error:
            raise BadRequest(error.message, hint=error.hint, details=error.details) from error
        return replies.operation(reply.data)

    def start(self, name: SliceName) -> Operation:
        return self._change(self._client.start_node, name, {"name": path(name)})

    def stop(self, name: SliceName) -> Operation:
        return self._change(self._client.stop_node, name, {"name": path(name)})

    def set_labels(self, name: SliceName, labels: Mapping[str, str]) -> Operation:
        request = {"node": {"name": path(name), "labels": dict(labels)}, "update_mask": {"paths": ["labels"]}}
        return self._change(self._client.update_node, name, request)

    def _change(self, call: Callable[..., Any], name: SliceName, request: Mapping[str, Any]) -> Operation:
        with must_exist(name):
            return replies.operation(self._send(call, request).data)

    # -- reads -----------------------------------------------------------------------------------------------------

    def preview(self, request: SliceRequest) -> dict[str, Any]:
        return preview(request, self.endpoint)

    # -- one call -------------------------------------------------------------------------------------------------

    def _ask(self, call: str, request: Mapping[str, Any]) -> ApiReply:
        return self._send(getattr(self._client, call), request)

    def _send(self, call: Callable[..., Any], request: Mapping[str, Any], timeout_s: float | None = None) -> ApiReply:
        """Send a call of google-cloud-tpu. Return the reply, whatever the generated parser makes of it."""
        try:
            call(request, retry=None, timeout=timeout_s or self._timeout_s)
        except self._library_errors as error:
            if not isinstance(error, self._parse_error):
                raise error_translation.local_error(error, self._host) from error
        return self._adapter.last_reply()

    def _post(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request that google-cloud-tpu cannot express, through the same adapter and with the same credentials."""
        from orchestrator.places.tpu.api import transport  # as above

        try:
            reply = transport.post(self._client, request["url"], request["body"], self._create_timeout_s)
        except self._library_errors as error:
            raise error_translation.local_error(error, self._host) from error
        if reply.status_code >= 300:  # a 401 that a fresh token did not cure
            raise error_translation.http_error(
                reply.status_code, reply.text, host=self._host, asked=request["url"], emulated=self.emulated
            )
        return self._adapter.last_reply().data


def create_request(request: SliceRequest) -> dict[str, Any]:
    """Return the arguments of google-cloud-tpu's create_node. Raises BadRequest for an invalid name."""
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
    path(request.name)
    return {"parent": parent(request.name.project, request.name.zone), "node_id": request.name.node, "node": node}


def preview(request: SliceRequest, endpoint: str = GOOGLE) -> dict[str, Any]:
    """Return the request that `create` sends: {"method", "url", "body"}, made by the same code and not sent."""
    from orchestrator.places.tpu.api import transport  # as above

    try:
        transport.recording_client(endpoint).create_node(create_request(request), retry=None)
    except transport.Unsent as unsent:
        sent = unsent.request
    body = json.loads(sent.body or "null")
    if request.queue is not None:
        return queued_request(request, request.queue, body, endpoint)
    return {"method": sent.method, "url": sent.url, "body": body}


# The request for a slice through a queued resource, with the two limits that the cloud itself enforces. Pure; sends nothing.
#
# Every request has `validUntilDuration`: a request that is no longer waited for must not become a node later, and nothing else
# in the API prevents it. Flex-start adds `runDuration`, after which the cloud deletes the VMs by itself. Only v2alpha1 has it,
# and no client library, so the request is JSON. `TpuApi.create` sends it, and `preview` shows it.

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
