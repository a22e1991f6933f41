"""One call of a JSON API of Google other than Cloud TPU's, with a bearer token: the object that it answers, or a CloudError.

Real tokens go to https://*.googleapis.com only; an emulator's goes to its own address, which `credentials.safe_address` checks.
"""

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.core.lease.cloud_api import Bearer
from orchestrator.places.google import error_translation
from orchestrator.places.google.fetch import Reply, fetch

TIMEOUT_S = 15.0


def json_call(
    method: str,
    url: str,
    body: Mapping[str, Any] | None,
    bearer: Bearer,
    *,
    emulated: bool,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """Send it once, or once more after a 401 that a new token may cure. Raises a CloudError."""
    reply = _send(method, url, body, bearer, emulated, timeout_s)
    if reply.status == 401 and bearer.renewable:
        bearer.renew()
        reply = _send(method, url, body, bearer, emulated, timeout_s)
    text, host = reply.body.decode("utf-8", "replace"), url.partition("://")[2].partition("/")[0]
    if reply.status >= 300:
        after = reply.headers.get("retry-after")
        raise error_translation.http_error(
            reply.status, text, host=host, asked=url, retry_after=after, emulated=emulated
        )
    return error_translation.json_object(text, host)


def _send(
    method: str, url: str, body: Mapping[str, Any] | None, bearer: Bearer, emulated: bool, timeout_s: float
) -> Reply:
    headers = {"Authorization": f"Bearer {bearer.token()}", "Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    sent = None if body is None else json.dumps(body).encode()
    return fetch(method, url, sent, headers, timeout_s=timeout_s, proxies=not emulated, ours=emulated)
