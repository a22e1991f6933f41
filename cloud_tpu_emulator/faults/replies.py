"""The replies that faults give on the wire: errors in Google's own wording, and bodies that are not the API's.

Pure: a simulator can pass them to the client's own translation of errors.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloud_tpu_emulator.faults import api_errors
from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.faults.fault import Fault

# The page of Google's front end, when a request reaches no API.
PAGE = (
    "<!DOCTYPE html>\n<html lang=en>\n  <meta charset=utf-8>\n  <title>Error {status} ({title})!!1</title>\n"
    "  <p><b>{status}.</b> <ins>That’s an error.</ins>\n  <p>{text}\n</html>\n"
)
TITLES = {
    400: ("Bad Request", "Your client has issued a malformed or illegal request."),
    401: ("Unauthorized", "Your client does not have permission to the requested URL."),
    403: ("Forbidden", "Your client does not have permission to get the requested URL from this server."),
    404: ("Not Found", "The requested URL was not found on this server."),
    409: ("Conflict", "There was a conflict."),
    429: ("Too Many Requests", "We're sorry, but you have sent too many requests to us recently."),
}
SERVER = (
    "Server Error",
    "The server encountered a temporary error and could not complete your request.<p>Please try again in 30 seconds.",
)
HTML_BY_DEFAULT = (404, 502)
UNAUTHENTICATED = (
    "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid "
    "authentication credential. See https://developers.google.com/identity/sign-in/web/devconsole-project."
)
PERMISSIONS = {"nodes.patch": "tpu.nodes.update"}


@dataclass(frozen=True, slots=True)
class FaultReply:
    """One complete HTTP reply."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


def refusal(fault: Fault, operation: str, name: str) -> FaultReply:
    """Return the reply of a fault of kind "status". `name` is the full name of the resource."""
    status, form = fault.parameters["status"], fault.parameters["body"]
    after_s = fault.parameters["retry_after_s"] or (1 if status == 429 else 0)
    headers = {"Retry-After": f"{after_s:g}"} if after_s else {}
    if literal := str(fault.parameters["literal"]):
        kind = "application/json" if literal.lstrip()[:1] in "{[" else "text/html"
        return FaultReply(status, literal.encode(), kind, headers)
    if form == "html" or (form == "auto" and status in HTML_BY_DEFAULT):
        return FaultReply(status, page(status, fault.parameters["message"]).encode(), "text/html", headers)
    error = _error(status, operation, name)
    body = error.body()
    body["error"] |= {"code": status, "message": fault.parameters["message"] or error.message}
    return FaultReply(status, json.dumps(body).encode(), headers=headers)


def page(status: int, text: str = "") -> str:
    """Return the page of Google's front end, by default with its own text for this status."""
    title, usual = TITLES.get(status, SERVER)
    return PAGE.format(status=status, title=title, text=text or usual)


def _error(status: int, operation: str, name: str) -> ApiError:
    match status:
        case 400:
            return api_errors.wrong_state(operation.partition(".")[2], "CREATING")
        case 403:
            own = operation if operation.startswith("storage.") else f"tpu.{operation}"
            return api_errors.permission_denied(PERMISSIONS.get(operation, own), name)
        case 404:
            return api_errors.not_found(name)
        case 409:
            return api_errors.busy()
        case 429:
            return ApiError("RESOURCE_EXHAUSTED", f"Quota exceeded for {_rpc(operation)} requests per minute.")
        case 401:
            return ApiError("UNAUTHENTICATED", UNAUTHENTICATED)
        case 504:
            return ApiError("DEADLINE_EXCEEDED", "Deadline expired before operation could complete.")
        case 500:
            return api_errors.internal()
    return ApiError("UNAVAILABLE", "The service is currently unavailable.")


def _rpc(operation: str) -> str:
    """Return the name in quotas: DeleteNode for nodes.delete."""
    collection, _, verb = operation.partition(".")
    return f"{verb[:1].upper()}{verb[1:]}{collection[:1].upper()}{collection[1:-1]}"


def corrupted(fault: Fault, body: bytes) -> FaultReply:
    """Return the reply of a fault of kind "garbage", in place of the correct `body`."""
    match fault.parameters["form"]:
        case "truncated":
            return FaultReply(200, body[: max(1, len(body) // 2)])
        case "types":
            return FaultReply(200, json.dumps(_retyped(json.loads(body), outermost=True)).encode())
        case "empty":
            return FaultReply(200, b"")
        case "large":
            return FaultReply(200, b"<html>" + b"x" * int(fault.parameters["size_bytes"]), "text/html")
    return FaultReply(
        200, b"<!DOCTYPE html>\n<html><title>Sign in</title>Please sign in to the network.</html>\n", "text/html"
    )


def _retyped(value: Any, *, outermost: bool = False) -> Any:
    """Return the same names with values of other types."""
    if isinstance(value, dict):
        inner = {name: _retyped(item) for name, item in value.items()}
        return inner if outermost else [inner]
    if isinstance(value, list):
        return "many"
    if isinstance(value, str):
        return {"text": value}
    return [value]
