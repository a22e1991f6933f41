"""gRPC calls as REST requests: the `google.api.http` rules of Google's published API definitions, applied both ways.

Pure. `grpc_api` gets the HTTP request of a call here, and the gRPC status of an HTTP error, so that gRPC and REST share one
implementation.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.wire.node_schema import camel

TPU_VERSIONS = {"google.cloud.tpu.v2.Tpu": "v2", "google.cloud.tpu.v2alpha1.Tpu": "v2alpha1"}
OPERATIONS, LOCATIONS = "google.longrunning.Operations", "google.cloud.location.Locations"
OPERATION = "google.longrunning.Operation"
EMPTY = "google.protobuf.Empty"
# Google's own table for HTTP errors without the API's JSON (a proxy's page, a path that no API has).
BY_HTTP_STATUS = {400: "INTERNAL", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "UNIMPLEMENTED",
    **dict.fromkeys((429, 502, 503, 504), "UNAVAILABLE")}  # fmt: skip

_PLACE = "projects/*/locations/*"
_NODE, _QUEUED = f"{_PLACE}/nodes/*", f"{_PLACE}/queuedResources/*"
_SOME_OPERATION = f"{_PLACE}/operations/*"


@dataclass(frozen=True, slots=True)
class Rule:
    """The REST form of a method. `path` as in google.api.http: {field=pattern}; `body`: a field, `*` (the rest), or None."""

    verb: str
    path: str
    answer: str = OPERATION  # a message of the service's own package, or a full name
    body: str | None = None


_TPU = {
    "ListNodes": Rule("GET", f"{{parent={_PLACE}}}/nodes", "ListNodesResponse"),
    "GetNode": Rule("GET", f"{{name={_NODE}}}", "Node"),
    "CreateNode": Rule("POST", f"{{parent={_PLACE}}}/nodes", body="node"),
    "DeleteNode": Rule("DELETE", f"{{name={_NODE}}}"),
    "StopNode": Rule("POST", f"{{name={_NODE}}}:stop", body="*"),
    "StartNode": Rule("POST", f"{{name={_NODE}}}:start", body="*"),
    "UpdateNode": Rule("PATCH", f"{{node.name={_NODE}}}", body="node"),
    "GetGuestAttributes": Rule("POST", f"{{name={_NODE}}}:getGuestAttributes", "GetGuestAttributesResponse", body="*"),
    "ListQueuedResources": Rule("GET", f"{{parent={_PLACE}}}/queuedResources", "ListQueuedResourcesResponse"),
    "GetQueuedResource": Rule("GET", f"{{name={_QUEUED}}}", "QueuedResource"),
    "CreateQueuedResource": Rule("POST", f"{{parent={_PLACE}}}/queuedResources", body="queuedResource"),
    "DeleteQueuedResource": Rule("DELETE", f"{{name={_QUEUED}}}"),
    "ResetQueuedResource": Rule("POST", f"{{name={_QUEUED}}}:reset", body="*"),
    "GenerateServiceIdentity": Rule(
        "POST", f"{{parent={_PLACE}}}:generateServiceIdentity", "GenerateServiceIdentityResponse", body="*"
    ),
    "ListAcceleratorTypes": Rule("GET", f"{{parent={_PLACE}}}/acceleratorTypes", "ListAcceleratorTypesResponse"),
    "GetAcceleratorType": Rule("GET", f"{{name={_PLACE}/acceleratorTypes/*}}", "AcceleratorType"),
    "ListRuntimeVersions": Rule("GET", f"{{parent={_PLACE}}}/runtimeVersions", "ListRuntimeVersionsResponse"),
    "GetRuntimeVersion": Rule("GET", f"{{name={_PLACE}/runtimeVersions/*}}", "RuntimeVersion"),
}
_ONLY_ALPHA = {
    "SimulateMaintenanceEvent": Rule("POST", f"{{name={_NODE}}}:simulateMaintenanceEvent", body="*"),
    "PerformMaintenance": Rule("POST", f"{{name={_NODE}}}:performMaintenance", body="*"),
    "PerformMaintenanceQueuedResource": Rule("POST", f"{{name={_QUEUED}}}:performMaintenanceQueuedResource", body="*"),
    "ListReservations": Rule("GET", f"{{parent={_PLACE}}}/reservations", "ListReservationsResponse"),
}
RULES: dict[str, Mapping[str, Rule]] = {
    "google.cloud.tpu.v2.Tpu": _TPU,
    "google.cloud.tpu.v2alpha1.Tpu": _TPU | _ONLY_ALPHA,
    OPERATIONS: {
        "GetOperation": Rule("GET", f"{{name={_SOME_OPERATION}}}"),
        "ListOperations": Rule("GET", f"{{name={_PLACE}}}/operations", "ListOperationsResponse"),
        "DeleteOperation": Rule("DELETE", f"{{name={_SOME_OPERATION}}}", EMPTY),
        "CancelOperation": Rule("POST", f"{{name={_SOME_OPERATION}}}:cancel", EMPTY),
    },
    LOCATIONS: {
        "ListLocations": Rule("GET", "{name=projects/*}/locations", "ListLocationsResponse"),
        "GetLocation": Rule("GET", f"{{name={_PLACE}}}", "Location"),
    },
}


HttpCall = tuple[str, str, dict[str, Any] | None]  # to the REST API: verb, path with query, body


def type_names(service: str, method: str) -> tuple[str, str]:
    """Return the full names of the request message and of the answer message."""
    package, rule = service.rpartition(".")[0], RULES[service][method]
    answer = rule.answer if "." in rule.answer else f"{package}.{rule.answer}"
    return f"{package}.{method}Request", answer


def http_call(service: str, method: str, request: Mapping[str, Any], version: str) -> HttpCall:
    """Return the HTTP request of a call; `request` is the message as JSON. Raises ApiError for a malformed resource name."""
    rule, left = RULES[service][method], dict(request)
    variable = re.search(r"\{(.+?)=(.+?)\}", rule.path)
    assert variable is not None, f"the rule of {method} has no variable"
    name = _take(left, variable[1])
    if not re.fullmatch(variable[2].replace("*", "[^/]+"), name):
        raise ApiError("INVALID_ARGUMENT", f'Invalid value "{name}" for {variable[1]}: expected {variable[2]}.')
    path = f"/{version}/{quote(rule.path.replace(variable[0], name), safe='/:')}"
    body: dict[str, Any] | None = None
    if rule.body == "*":
        body, left = left, {}
    elif rule.body is not None:
        body = left.pop(camel(rule.body), {})
    query = urlencode([(key, _text(value)) for key, value in left.items()])
    return rule.verb, f"{path}?{query}" if query else path, body


def error_of(http_status: int, body: str) -> ApiError:
    """Return the error whose status a call over gRPC ends with, from an HTTP error."""
    try:
        error = json.loads(body)["error"]
        return ApiError(error["status"], str(error["message"]), tuple(error.get("details", ())))
    except (ValueError, KeyError, TypeError):
        status = BY_HTTP_STATUS.get(http_status, "UNKNOWN")
        return ApiError(status, f"The server replied HTTP {http_status} with a body that is not the API's.")


def _take(message: dict[str, Any], dotted: str) -> str:
    """Return the value at `node.name`, which stays in the message, or at `name`, which is removed from it."""
    first, _, rest = dotted.partition(".")
    value = message.get(first, {}).get(rest, "") if rest else message.pop(first, "")
    return str(value)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
