"""The errors of the API, with the literal texts of Cloud TPU where they are known.

Pure data: `model` and `wire` raise `ApiError`; `api` turns it into an HTTP body, or into the `error` of a done operation. The
texts come from public issue threads; clients match on them.
"""

import hashlib
from typing import Any

# Canonical status -> (number inside an operation's error, HTTP status).
STATUSES = {
    "CANCELLED": (1, 499),
    "UNKNOWN": (2, 500),
    "INVALID_ARGUMENT": (3, 400),
    "NOT_FOUND": (5, 404),
    "ALREADY_EXISTS": (6, 409),
    "PERMISSION_DENIED": (7, 403),
    "RESOURCE_EXHAUSTED": (8, 429),
    "FAILED_PRECONDITION": (9, 400),
    "ABORTED": (10, 409),
    "UNIMPLEMENTED": (12, 501),
    "DEADLINE_EXCEEDED": (4, 504),
    "INTERNAL": (13, 500),
    "UNAVAILABLE": (14, 503),
    "UNAUTHENTICATED": (16, 401),
}


class ApiError(Exception):
    """A canonical status, a message, and the typed details that clients read."""

    def __init__(self, status: str, message: str, details: tuple[dict[str, Any], ...] = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.details = status, message, details
        self.code, self.http = STATUSES[status]

    def body(self) -> dict[str, Any]:
        """Return the JSON body of an HTTP error."""
        return {"error": {"code": self.http, "message": self.message, "status": self.status} | self._details()}

    def in_operation(self) -> dict[str, Any]:
        """Return the `error` of a done operation (google.rpc.Status)."""
        return {"code": self.code, "message": self.message} | self._details()

    def _details(self) -> dict[str, Any]:
        return {"details": list(self.details)} if self.details else {}


def _with_eid(status: str, text: str) -> ApiError:
    """Append an error id, as Cloud TPU does; here it is a digest, so that equal errors are equal."""
    return ApiError(status, f"{text} [EID: 0x{hashlib.sha256(text.encode()).hexdigest()[:16]}]")


def bad_request(text: str, status: str = "INVALID_ARGUMENT") -> ApiError:
    """Return the error of a request that Cloud TPU refuses."""
    return _with_eid(status, f"Cloud TPU received a bad request. {text}")


def bad_field(text: str) -> ApiError:
    """Return the error of a body that does not fit its message, as Google's JSON parser words it."""
    return ApiError("INVALID_ARGUMENT", f"Invalid JSON payload received. {text}")


def not_found(name: str) -> ApiError:
    """`name` is the full name of the resource."""
    return ApiError("NOT_FOUND", f"Resource '{name}' was not found")


def already_exists(name: str) -> ApiError:
    """`name` is the full name of the resource."""
    detail = {"@type": "type.googleapis.com/google.rpc.ResourceInfo", "resourceName": name}
    return ApiError("ALREADY_EXISTS", f"Resource '{name}' already exists", (detail,))


def wrong_state(verb: str, state: str) -> ApiError:
    """Return the error of a call that the resource's state does not allow."""
    return bad_request(f"{verb} is not supported while in state {state}", "FAILED_PRECONDITION")


def busy() -> ApiError:
    """Return the error of a change while another operation is under way."""
    return ApiError("ABORTED", "unable to queue the operation")


def no_maintenance(name: str) -> ApiError:
    """Return the error if no maintenance is announced, or if the customer may not begin it."""
    return _with_eid("FAILED_PRECONDITION", f"Maintenance of {name} cannot be started now.")


def superseded(verb: str, what: str = "node") -> ApiError:
    """Return the error of an operation that a delete ends."""
    return ApiError("CANCELLED", f"The {verb} operation was cancelled because the {what} is being deleted.")


def expired() -> ApiError:
    """Return the error of a queued resource that was not fulfilled in its time."""
    text = "The 'valid until' start timing constraint expired before the request could be fulfilled."
    return ApiError("DEADLINE_EXCEEDED", text)


def interrupted(state: str) -> ApiError:
    """Return the error of an operation whose node the service puts into `state`; the API reports a bad argument."""
    return bad_request(f"update is not supported while in state {state}")


def permission_denied(permission: str, name: str) -> ApiError:
    """Return the error of IAM; `name` is the resource."""
    return ApiError("PERMISSION_DENIED", f"Permission '{permission}' denied on '{name}' (or it may not exist).")


def policy_violated(constraint: str, project: str, text: str) -> ApiError:
    """Return the error of a create that an organization policy forbids, in the words of Compute Engine."""
    return ApiError(
        "FAILED_PRECONDITION", f"Constraint constraints/{constraint} violated for project {project}. {text}"
    )


def internal() -> ApiError:
    """Return an INTERNAL error."""
    return ApiError("INTERNAL", "an internal error has occurred")


def no_capacity(zone: str) -> ApiError:
    """Return the error of a stockout."""
    text = (
        f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud TPU Nodes are '
        "offered (see https://cloud.google.com/tpu/docs/regions)"
    )
    return _with_eid("RESOURCE_EXHAUSTED", text)


def no_reservation(status: str) -> ApiError:
    """Return the error for `status` RESOURCE_EXHAUSTED (too little is left) or FAILED_PRECONDITION (none exists)."""
    return _with_eid(status, "Insufficient reserved capacity. Contact customer support to increase your reservation.")


def queue_closed(accelerator_type: str, zone: str) -> ApiError:
    """Return the error of a queue that the project may not use."""
    return ApiError(
        "PERMISSION_DENIED",
        "User does not have permission to submit requests into this queue for accelerator type "
        f"{accelerator_type} in location {zone}.",
    )


def no_flex_start(accelerator_type: str, zone: str) -> ApiError:
    """Return the error where flex-start is not offered."""
    return ApiError(
        "INVALID_ARGUMENT",
        f'FLEX_START provisioning model is not supported for accelerator type "{accelerator_type}" in location "{zone}"',
    )


def quota_exceeded(name: str, limit: int, per: str, place: str) -> ApiError:
    """`per` is zone or region, `place` its name."""
    violation = {"subject": name, "description": f"Quota '{name}' exhausted. Limit {limit} in {per} {place}"}
    detail = {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}
    text = f"Quota limit '{name}' has been exceeded. Limit: {limit} in {per} {place}."
    return ApiError("RESOURCE_EXHAUSTED", text, (detail,))


def _error_info(reason: str, **metadata: str) -> dict[str, Any]:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"}
    return info | {"metadata": metadata | {"service": "tpu.googleapis.com"}}


def too_many_creates(project: str) -> ApiError:
    """Return the error of the rate limit of creates."""
    detail = _error_info(
        "RATE_LIMIT_EXCEEDED", consumer=f"projects/{project}", quota_metric="tpu.googleapis.com/qps/create"
    )
    text = (
        "Quota exceeded for quota metric 'CreateNode requests' and limit 'Maximum number of CreateNode requests per "
        f"minute' of service 'tpu.googleapis.com' for consumer '{project}'."
    )
    return ApiError("RESOURCE_EXHAUSTED", text, (detail,))


def api_disabled(service: str, project: str) -> ApiError:
    """Return the error of an API that the project has not enabled."""
    link = f"https://console.developers.google.com/apis/api/{service}/overview?project={project}"
    info = _error_info("SERVICE_DISABLED", consumer=f"projects/{project}")
    info["metadata"]["service"] = service
    help_ = {
        "@type": "type.googleapis.com/google.rpc.Help",
        "links": [{"description": "Google developers console API activation", "url": link}],
    }
    text = (
        f"{service} has not been used in project {project} before or it is disabled. Enable it by visiting {link} then "
        "retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems and retry."
    )
    return ApiError("PERMISSION_DENIED", text, (help_, info))


class ReasonedError(ApiError):
    """An error in the form of Compute Engine and Cloud Storage: a reason in place of the name of a status."""

    def __init__(self, http: int, message: str, reason: str) -> None:
        super().__init__("INTERNAL", message)  # never shown
        self.http, self.reason = http, reason

    def body(self) -> dict[str, Any]:
        """Return the JSON body of an HTTP error."""
        error = {"message": self.message, "domain": "global", "reason": self.reason}
        return {"error": {"code": self.http, "message": self.message, "errors": [error]}}


def type_not_in_zone(accelerator_type: str, zone: str) -> ApiError:
    """Return the error of a type that the zone does not offer."""
    return bad_request(
        f'The requested accelerator configuration for accelerator type, "{accelerator_type}", could not be found in '
        f'the zonal accelerator configurations for "{zone}".; the accelerator {accelerator_type} was not found in '
        f"zone {zone}"
    )


def location_denied(project: str, location: str) -> ApiError:
    """Return the error of a location that the project may not use, or that does not exist."""
    detail = _error_info("LOCATION_POLICY_VIOLATED", consumer=f"projects/{project}", location=location)
    message = f"Permission denied on 'locations/{location}' (or it may not exist)."
    return ApiError("PERMISSION_DENIED", message, (detail,))


def unauthenticated() -> ApiError:
    """Return the error of a call without a valid token."""
    return ApiError(
        "UNAUTHENTICATED",
        "Request is missing required authentication credential. Expected the token of this emulator as "
        "`Authorization: Bearer …`; it is in the file `token` of the emulator's state directory.",
    )
