"""The client of the Cloud TPU API (v2, REST): all of `promise.lease.cloud_api.Cloud`, for Google and for the emulator.

Every call is one connection of the standard library, tried once, with a time limit for the whole reply, or raises a CloudError.
google-cloud-tpu makes the body of a create call (`create_request`): teardown does without it, and with a third of its memory.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from orchestrator.errors import BadRequest
from orchestrator.places.google.credentials import EmulatorToken, GoogleToken, safe_address
from orchestrator.places.google.error_translation import NotFound
from orchestrator.places.google.fetch import ApiReply, api_call
from orchestrator.places.tpu.api import replies
from orchestrator.places.tpu.api.calls import ApiCalls, must_exist, path
from orchestrator.places.tpu.api.create_request import create_request
from orchestrator.promise.lease.cloud_api import Bearer, Operation, SliceRequest, always
from orchestrator.promise.lease.lease import SliceName
from orchestrator.promise.lease.periods import Timings
from orchestrator.settings import Target

# google-cloud-tpu's name of a call → method, and path after /v2/ as a template for the request's fields
CALLS = {
    "get_node": ("GET", "{name}"),
    "list_nodes": ("GET", "{parent}/nodes"),
    "delete_node": ("DELETE", "{name}"),
    "start_node": ("POST", "{name}:start"),
    "stop_node": ("POST", "{name}:stop"),
    "update_node": ("PATCH", "{name}"),
    "get_queued_resource": ("GET", "{name}"),
    "list_queued_resources": ("GET", "{parent}/queuedResources"),
    "delete_queued_resource": ("DELETE", "{name}"),
    "list_locations": ("GET", "{name}/locations"),
    "list_accelerator_types": ("GET", "{parent}/acceleratorTypes"),
    "get_operation": ("GET", "{name}"),
    "list_operations": ("GET", "{name}/operations"),
    "get_guest_attributes": ("POST", "{name}:getGuestAttributes"),
}


def connect(target: Target, endpoint_url: str | None = None, token: str | None = None, *, now: bool = True) -> "TpuApi":
    """Return the API of the target's cloud. `endpoint_url` and `token` are the emulator's; Google needs neither.

    An emulator that the environment names (TPUJOB_ENDPOINT) has precedence. `now`: sign in at once, so that a missing login is
    noticed before any create; else the first call does. Raises ConfigError, or AuthError without a login.
    """
    endpoint_url, token = safe_address(target, endpoint_url, token)
    if token is not None:
        return TpuApi(endpoint_url, EmulatorToken(token), emulated=True, timings=target.timings)
    bearer = GoogleToken()
    if now:
        bearer.renew()
    return TpuApi(endpoint_url, bearer, emulated=False)


class TpuApi(ApiCalls):
    """The client. Create it with `connect`, which checks where tokens may be sent."""

    def __init__(
        self,
        endpoint: str | None,
        bearer: Bearer,
        *,
        emulated: bool,
        timeout_s: float = 15.0,
        create_timeout_s: float = 30.0,
        timings: Timings | None = None,
    ) -> None:
        super().__init__(endpoint, emulated=emulated, timings=timings)
        self._bearer = bearer
        self._timeout_s, self._create_timeout_s = timeout_s, create_timeout_s

    def create(self, request: SliceRequest, in_time: Callable[[], bool] = always) -> Operation:
        if request.name.queued is not (request.queue is not None):
            raise BadRequest(f"{request.name.node}: its name and its request differ in whether it is queued")
        wanted = self.preview(request)
        try:
            reply = self._send(wanted["method"], wanted["url"], wanted["body"], self._create_timeout_s, in_time)
        except NotFound as error:
            raise BadRequest(error.message, hint=error.hint, details=error.details) from error
        return replies.operation(reply.data)

    def preview(self, request: SliceRequest) -> dict[str, Any]:
        return create_request(request, self.endpoint)

    def start(self, name: SliceName) -> Operation:
        return self._change("start_node", name, {})

    def stop(self, name: SliceName) -> Operation:
        return self._change("stop_node", name, {})

    def set_labels(self, name: SliceName, labels: Mapping[str, str]) -> Operation:
        body = {"name": path(name), "labels": dict(labels)}
        return self._change("update_node", name, {"updateMask": "labels", "body": body})

    def let_in(self, name: SliceName, user: str, public_line: str) -> bool | None:
        with must_exist(name):
            metadata = dict(self._ask("get_node", {"name": path(name)}).data.get("metadata") or {})
        if str(metadata.get("enable-oslogin", "")).upper() == "TRUE":
            return None
        keys = str(metadata.get("ssh-keys", "")).splitlines()
        line = f"{user}:{public_line}"
        if line in keys:
            return True
        metadata["ssh-keys"] = "\n".join([*keys, line])
        body = {"name": path(name), "metadata": metadata}
        self._change("update_node", name, {"updateMask": "metadata", "body": body})
        return False

    def _change(self, call: str, name: SliceName, request: Mapping[str, Any]) -> Operation:
        with must_exist(name):
            return replies.operation(self._ask(call, {"name": path(name), **request}).data)

    def _ask(self, call: str, request: Mapping[str, Any]) -> ApiReply:
        method, template = CALLS[call]
        query = {
            "pageToken": request.get("page_token"),
            "force": "true" if request.get("force") else None,
            "updateMask": request.get("updateMask"),
        }
        parameters = urlencode({key: value for key, value in query.items() if value})
        url = f"{self.endpoint}/v2/{quote(template.format_map(request), safe='/:')}{'?' + parameters if parameters else ''}"
        body = None if method in ("GET", "DELETE") else request.get("body", {})
        return self._send(method, url, body, self._timeout_s)

    def _send(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        in_time: Callable[[], bool] = always,
    ) -> ApiReply:
        return api_call(method, url, body, self._bearer, emulated=self.emulated, timeout_s=timeout_s, in_time=in_time)
