"""The Cloud TPU API for whoever only tears down: standard library instead of google-cloud-tpu, a tenth of its weight.

The guardian's recovery, `tpujob gc` and `tpujob doctor` use me. I ask the same questions as `TpuApi` and read the answers
with the same code; create, start, stop and relabel are not there. Every call is one connection, tried once, over in time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from orchestrator.clouds.google.fetch import fetch
from orchestrator.clouds.tpu import error_translation
from orchestrator.clouds.tpu.calls import GOOGLE, Answer, ApiCalls, capabilities
from orchestrator.core.lease.timings import Timings
from orchestrator.errors import CloudError, UnexpectedReply

# google-cloud-tpu's name of a call → method, and the path after /v2/ with the request's fields filled in
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


class Bearer(Protocol):
    """Who we are: `token` is what to send now; after a 401 `renew` gets another one, or raises why there is none."""

    @property
    def renewable(self) -> bool: ...

    def token(self) -> str: ...

    def renew(self) -> None: ...


class LightApi(ApiCalls):
    """`endpoint` None is Google's. Whoever makes me answers for sending tokens there: see `credentials.connect_light`."""

    def __init__(
        self,
        endpoint: str | None,
        bearer: Bearer,
        *,
        emulated: bool,
        timeout_s: float = 15.0,
        visible_within_s: float | None = None,
        settles_within_s: float | None = None,
        timings: Timings | None = None,
    ) -> None:
        self.endpoint = (endpoint or GOOGLE).rstrip("/")
        self.emulated = emulated
        self.capabilities = capabilities(
            emulated=emulated, visible_within_s=visible_within_s, settles_within_s=settles_within_s, timings=timings
        )
        self._bearer, self._timeout_s = bearer, timeout_s
        self._host = self.endpoint.partition("://")[2]

    def _ask(self, call: str, request: Mapping[str, Any]) -> Answer:
        method, template = CALLS[call]
        path = quote(template.format_map(request), safe="/:")
        query = {"pageToken": request.get("page_token"), "force": "true" if request.get("force") else None}
        asked = urlencode({key: value for key, value in query.items() if value})
        url = f"{self.endpoint}/v2/{path}{'?' + asked if asked else ''}"
        try:
            return self._send(method, url)
        except _RefusedToken as refused:
            if not self._bearer.renewable:
                raise refused.error from refused
        self._bearer.renew()
        try:
            return self._send(method, url)
        except _RefusedToken as refused:
            raise refused.error from refused

    def _send(self, method: str, url: str) -> Answer:
        headers = {"Authorization": f"Bearer {self._bearer.token()}", "Accept": "application/json"}
        body = b"{}" if method == "POST" else None
        if body is not None:
            headers["Content-Type"] = "application/json"
        emulated = self.emulated
        reply = fetch(method, url, body, headers, timeout_s=self._timeout_s, proxies=not emulated, ours=emulated)
        text = reply.body.decode("utf-8", "replace")
        if reply.status >= 300:
            error = error_translation.http_error(
                reply.status,
                text,
                host=self._host,
                retry_after=reply.headers.get("retry-after"),
                emulated=self.emulated,
            )
            if reply.status == 401:
                raise _RefusedToken(error)
            raise error
        return Answer(_object(text, self._host), reply.headers.get("date"))


class _RefusedToken(Exception):
    """A 401: the token is not, or no longer, good."""

    def __init__(self, error: CloudError) -> None:
        super().__init__(error.message)
        self.error = error


def _object(text: str, host: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        shown = " ".join(text[:80].split()) or "an empty reply"
        raise UnexpectedReply(f"{host} answered something that is not JSON: {shown}", details=text[:4000])
    return said
