"""The Cloud TPU API (v2, REST) behind `core.lease.slices.Cloud`, for Google and for the emulator alike.

One question out, one answer back: every call has a timeout and is tried once; what went wrong comes back as a CloudError.
google-cloud-tpu is imported when the first client is made, so that importing me is cheap.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.clouds.tpu import error_translation, replies
from orchestrator.clouds.tpu.calls import GOOGLE, Answer, ApiCalls, capabilities, parent, path
from orchestrator.clouds.tpu.error_translation import NotFound
from orchestrator.clouds.tpu.queued_request import queued_request
from orchestrator.core.lease.slices import Operation, SliceName, SliceRequest, WorkerAddress
from orchestrator.core.lease.timings import Timings
from orchestrator.core.lease.watchdog_report import min_read_interval_s
from orchestrator.errors import BadRequest, CloudUnavailable, UnexpectedReply, Vanished

SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class TpuApi(ApiCalls):
    """`endpoint` None is Google's. Whoever makes me answers for sending `credentials` there: see `credentials.connect`."""

    def __init__(
        self,
        endpoint: str | None,
        credentials: Any,
        *,
        emulated: bool,
        timeout_s: float = 15.0,
        create_timeout_s: float = 30.0,
        visible_within_s: float | None = None,
        settles_within_s: float | None = None,
        timings: Timings | None = None,
    ) -> None:
        from orchestrator.clouds.tpu import transport

        self.endpoint = (endpoint or GOOGLE).rstrip("/")
        self.emulated = emulated
        self.capabilities = capabilities(
            emulated=emulated, visible_within_s=visible_within_s, settles_within_s=settles_within_s, timings=timings
        )
        self._timeout_s, self._create_timeout_s = timeout_s, create_timeout_s
        self._host = self.endpoint.partition("://")[2]
        self._foreign, self._unparsable = transport.Foreign, transport.NotOurProto
        self._door = transport.Adapter(self._host, emulated=emulated)
        self._client = transport.open_client(self.endpoint, credentials, self._door, emulated=emulated)

    # -- changes --------------------------------------------------------------------------------------------------

    def create(self, request: SliceRequest) -> Operation:
        if request.name.queued is not (request.queue is not None):
            raise BadRequest(f"{request.name.node}: its name and its request differ in whether it is queued")
        try:
            if request.queue is not None:
                return replies.operation(self._post(preview(request, self.endpoint)))
            said = self._json(self._client.create_node, create_request(request), self._create_timeout_s)
        except NotFound as error:
            raise BadRequest(error.message, hint=error.hint, details=error.details) from error
        return replies.operation(said)

    def start(self, name: SliceName) -> Operation:
        return self._switch(self._client.start_node, name)

    def stop(self, name: SliceName) -> Operation:
        return self._switch(self._client.stop_node, name)

    def _switch(self, call: Callable[..., Any], name: SliceName) -> Operation:
        try:
            return replies.operation(self._json(call, {"name": path(name)}))
        except NotFound as error:
            raise _vanished(name, error) from error

    def set_labels(self, name: SliceName, labels: Mapping[str, str]) -> Operation:
        request = {"node": {"name": path(name), "labels": dict(labels)}, "update_mask": {"paths": ["labels"]}}
        try:
            return replies.operation(self._json(self._client.update_node, request))
        except NotFound as error:
            raise _vanished(name, error) from error

    # -- questions ------------------------------------------------------------------------------------------------

    def workers(self, name: SliceName) -> tuple[WorkerAddress, ...]:
        try:
            node = self._node(name)
        except NotFound as error:
            raise _vanished(name, error) from error
        replies.addresses(node)  # guest attributes may be asked for a few times a minute: not before all have one
        try:
            published = self.guest_attributes(name)
        except CloudUnavailable as error:
            error.retry_after_s = max(error.retry_after_s or 0.0, min_read_interval_s(self.capabilities.timings.heartbeat_s))
            raise
        return replies.worker_addresses(node, published, emulated=self.emulated)

    def preview(self, request: SliceRequest) -> dict[str, Any]:
        return preview(request, self.endpoint)

    # -- one call -------------------------------------------------------------------------------------------------

    def _ask(self, call: str, request: Mapping[str, Any]) -> Answer:
        return Answer(self._json(getattr(self._client, call), request), self._door.last_date())

    def _json(
        self, call: Callable[..., Any], request: Mapping[str, Any], timeout_s: float | None = None
    ) -> dict[str, Any]:
        """The reply as it came; what the generated parser thinks of it does not matter."""
        try:
            self._call(call, request, timeout_s)
        except UnexpectedReply as error:
            if not isinstance(error.__cause__, self._unparsable):
                raise
        return self._door.last_reply()

    def _post(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What google-cloud-tpu has no words for, through the same door and with the same credentials."""
        from orchestrator.clouds.tpu import transport

        try:
            reply = transport.post(self._client, request["url"], request["body"], self._create_timeout_s)
        except self._foreign as error:
            raise error_translation.local_error(error, self._host) from error
        if reply.status_code >= 300:  # a 401 that a fresh token did not help
            raise error_translation.http_error(reply.status_code, reply.text, host=self._host, emulated=self.emulated)
        return self._door.last_reply()

    def _call(self, call: Callable[..., Any], request: Mapping[str, Any], timeout_s: float | None = None) -> Any:
        try:
            return call(request, retry=None, timeout=timeout_s or self._timeout_s)
        except self._foreign as error:
            raise error_translation.local_error(error, self._host) from error


def create_request(request: SliceRequest) -> dict[str, Any]:
    """The arguments of google-cloud-tpu's create_node."""
    node: dict[str, Any] = {
        "accelerator_type": request.accelerator_type,
        "runtime_version": request.runtime_version,
        "labels": dict(request.labels),
        "metadata": dict(request.metadata),
        "network_config": {"network": request.network, "enable_external_ips": True},
        "scheduling_config": {"spot": request.spot, **({"reserved": True} if request.reserved else {})},
    }
    if request.service_account is not None:
        node["service_account"] = {"email": request.service_account, "scope": [SCOPE]}
    path(request.name)
    return {"parent": parent(request.name.project, request.name.zone), "node_id": request.name.node, "node": node}


def preview(request: SliceRequest, endpoint: str = GOOGLE) -> dict[str, Any]:
    """The very request that `create` sends, made by the same code and recorded in place of being sent."""
    from orchestrator.clouds.tpu import transport

    try:
        transport.copy_client(endpoint).create_node(create_request(request), retry=None)
    except transport.Unsent as unsent:
        sent = unsent.request
    body = json.loads(sent.body or "null")
    if request.queue is not None:
        return queued_request(request, request.queue, body, endpoint)
    return {"method": sent.method, "url": sent.url, "body": body}


def _vanished(name: SliceName, error: NotFound) -> Vanished:
    return Vanished(f"{name.node} does not exist in {name.zone} (any more)", details=error.details)
