"""The Cloud TPU API for teardown: the standard library instead of google-cloud-tpu, a tenth of its memory.

For the guardian's recovery, `tpujob gc` and `tpujob doctor`. Create, start, stop and set_labels are missing; the rest shares
its code with `TpuApi`. Every call is one connection, tried once, with a time limit for the whole reply.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from orchestrator.places.google.fetch import Reply, fetch
from orchestrator.places.tpu.api.calls import ApiCalls, ApiReply, logged, read_reply
from orchestrator.promise.lease.cloud_api import Bearer, Timings

# google-cloud-tpu's name of a call → method, and path after /v2/ as a template for the request's fields
CALLS = {
    "get_node": ("GET", "{name}"),
    "list_nodes": ("GET", "{parent}/nodes"),
    "delete_node": ("DELETE", "{name}"),
    "get_queued_resource": ("GET", "{name}"),
    "list_queued_resources": ("GET", "{parent}/queuedResources"),
    "delete_queued_resource": ("DELETE", "{name}"),
    "list_locations": ("GET", "{name}/locations"),
    "list_accelerator_types": ("GET", "{parent}/acceleratorTypes"),
    "get_operation": ("GET", "{name}"),
    "list_operations": ("GET", "{name}/operations"),
    "get_guest_attributes": ("POST", "{name}:getGuestAttributes"),
}


class LightApi(ApiCalls):
    """The client for teardown. Create it with `connect_light`, which checks where tokens may be sent."""

    def __init__(
        self,
        endpoint: str | None,
        bearer: Bearer,
        *,
        emulated: bool,
        timeout_s: float = 15.0,
        timings: Timings | None = None,
    ) -> None:
        super().__init__(endpoint, emulated=emulated, timeout_s=timeout_s, timings=timings)
        self._bearer = bearer

    def _ask(self, call: str, request: Mapping[str, Any]) -> ApiReply:
        method, template = CALLS[call]
        path = quote(template.format_map(request), safe="/:")
        query = {"pageToken": request.get("page_token"), "force": "true" if request.get("force") else None}
        parameters = urlencode({key: value for key, value in query.items() if value})
        url = f"{self.endpoint}/v2/{path}{'?' + parameters if parameters else ''}"
        reply = self._send(method, url)
        if reply.status == 401 and self._bearer.renewable:
            self._bearer.renew()
            reply = self._send(method, url)
        return read_reply(reply.status, reply.body, reply.headers, host=self._host, url=url, emulated=self.emulated)

    def _send(self, method: str, url: str) -> Reply:
        headers = {"Authorization": f"Bearer {self._bearer.token()}", "Accept": "application/json"}
        body = b"{}" if method == "POST" else None
        if body is not None:
            headers["Content-Type"] = "application/json"
        emulated = self.emulated
        with logged(method, url) as status:
            reply = fetch(method, url, body, headers, timeout_s=self._timeout_s, proxies=not emulated, ours=emulated)
            status.append(reply.status)
        return reply
