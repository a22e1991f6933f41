"""The location of a Cloud Storage bucket, with one call of its API over the standard library.

Real credentials are sent to https://storage.googleapis.com only; an emulator of it (STORAGE_EMULATOR_HOST, as in Google's own
clients) gets none.
"""

from urllib.parse import quote

from orchestrator.core.lease.cloud_api import Bearer
from orchestrator.core.planning import egress
from orchestrator.core.planning.egress import Bucket
from orchestrator.errors import BadRequest
from orchestrator.places.google import error_translation
from orchestrator.places.google.credentials import GoogleToken
from orchestrator.places.google.fetch import fetch

GOOGLE = "https://storage.googleapis.com"
TIMEOUT_S = 10.0
_FIELDS = "location,locationType,customPlacementConfig"


def bucket(name: str, *, project: str = "", emulator: str | None = None, bearer: Bearer | None = None) -> Bucket | None:
    """Return the bucket; None if the reply has no location, as an emulator's. `project`: for hints. Raises CloudError."""
    endpoint = GOOGLE if emulator is None else emulator if "//" in emulator else f"http://{emulator}"
    headers = {"Accept": "application/json"}
    if emulator is None:
        headers["Authorization"] = f"Bearer {(bearer or GoogleToken()).token()}"
    url = f"{endpoint.rstrip('/')}/storage/v1/b/{quote(name, safe='')}?fields={quote(_FIELDS, safe='')}"
    reply = fetch("GET", url, None, headers, timeout_s=TIMEOUT_S, proxies=emulator is None)
    text = reply.body.decode("utf-8", "replace")
    host = endpoint.partition("://")[2]
    if reply.status == 404 and emulator is None:
        raise BadRequest(f"there is no bucket gs://{name}", hint="create it, or correct its name in the job")
    if reply.status >= 300 and emulator is not None:
        return None  # many emulators have objects only
    if reply.status >= 300:
        raise error_translation.http_error(reply.status, text, host=host, asked=f"projects/{project}")
    return egress.from_reply(name, error_translation.json_object(text, host))
