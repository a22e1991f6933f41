"""Where a bucket of Cloud Storage lies: one question to its API, with the standard library. `plan` and `run` ask me.

Real credentials go to https://storage.googleapis.com only; an emulator of it (STORAGE_EMULATOR_HOST, as Google's own clients
name it) gets none.
"""

from __future__ import annotations

import json
from urllib.parse import quote

from orchestrator.clouds.google.credentials import GoogleToken
from orchestrator.clouds.google.fetch import fetch
from orchestrator.clouds.tpu import error_translation
from orchestrator.clouds.tpu.light_client import Bearer
from orchestrator.core.planning import egress
from orchestrator.core.planning.egress import Bucket
from orchestrator.errors import BadRequest, UnexpectedReply

GOOGLE = "https://storage.googleapis.com"
TIMEOUT_S = 10.0
_FIELDS = "location,locationType,customPlacementConfig"


def bucket(name: str, *, emulator: str | None = None, bearer: Bearer | None = None) -> Bucket | None:
    """None when the reply names no place, as emulators do. Raises a CloudError for whatever is no reply of Cloud Storage."""
    endpoint = GOOGLE if emulator is None else emulator if "//" in emulator else f"http://{emulator}"
    headers = {"Accept": "application/json"}
    if emulator is None:
        headers["Authorization"] = f"Bearer {(bearer or GoogleToken()).token()}"
    url = f"{endpoint.rstrip('/')}/storage/v1/b/{quote(name, safe='')}?fields={quote(_FIELDS, safe='')}"
    reply = fetch("GET", url, None, headers, timeout_s=TIMEOUT_S, proxies=emulator is None)
    text = reply.body.decode("utf-8", "replace")
    host = endpoint.partition("://")[2]
    if reply.status == 404 and emulator is None:
        raise BadRequest(f"there is no bucket gs://{name}", hint="make it, or correct `bucket:` in the job")
    if reply.status >= 300 and emulator is not None:
        return None  # many of them know objects only
    if reply.status >= 300:
        raise error_translation.http_error(reply.status, text, host=host, emulated=False)
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise UnexpectedReply(f"{host} answered something that is not JSON", details=text[:4000])
    return egress.from_reply(name, said)
