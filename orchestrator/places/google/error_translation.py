"""Errors of the API, of the network and of google-auth, each translated into one CloudError with advice.

The kind follows from code, status, typed details and, where Cloud TPU gives nothing better, from its literal message
(`known_errors.TABLE`). The original stays in `details`, error ids included.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import errors
from orchestrator.places.google.known_errors import MORE_QUOTA, TABLE, KnownError, fill, project_in
from orchestrator.system.lazy import Later
from orchestrator.text import parsing

if TYPE_CHECKING:
    import google.auth.exceptions as auth_exceptions
else:
    auth_exceptions = Later("google.auth.exceptions")

LOGIN = "log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
EMULATOR_LOGIN = "restart the emulator with `tpujob emulator stop`; the next command starts it with a new token"
MAX_MESSAGE_CHARS = 500
MAX_DETAIL_CHARS = 4000


class NotFound(errors.CloudError):
    """The API replied that this resource does not exist: a 404 with the status or the reason for it, nothing less."""

    reason = "absent"


# google.rpc.Code → its name, and the error that it becomes unless a rule of `TABLE` matches.
_STATUSES: dict[int, tuple[str, type[errors.CloudError]]] = {
    1: ("CANCELLED", errors.Vanished),  # in an operation: a delete overtook it
    2: ("UNKNOWN", errors.CloudUnavailable),
    3: ("INVALID_ARGUMENT", errors.BadRequest),
    4: ("DEADLINE_EXCEEDED", errors.CloudUnavailable),
    5: ("NOT_FOUND", NotFound),
    6: ("ALREADY_EXISTS", errors.AlreadyExists),
    7: ("PERMISSION_DENIED", errors.AuthError),
    8: ("RESOURCE_EXHAUSTED", errors.CloudUnavailable),  # "check quota" without a name of one is usually a rate limit
    9: ("FAILED_PRECONDITION", errors.WrongState),
    10: ("ABORTED", errors.WrongState),
    11: ("OUT_OF_RANGE", errors.BadRequest),
    12: ("UNIMPLEMENTED", errors.UnexpectedReply),
    13: ("INTERNAL", errors.CloudUnavailable),
    14: ("UNAVAILABLE", errors.CloudUnavailable),
    15: ("DATA_LOSS", errors.CloudUnavailable),
    16: ("UNAUTHENTICATED", errors.AuthError),
}
_KINDS = dict(_STATUSES.values())
_BY_HTTP = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 408: "UNAVAILABLE",
    409: "ABORTED", 412: "FAILED_PRECONDITION", 429: "RESOURCE_EXHAUSTED", 501: "UNIMPLEMENTED"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ApiRefusal:
    """An error as the API sends it, in an HTTP body or in a done operation."""

    status: str
    message: str
    details: tuple[Mapping[str, Any], ...] = ()
    in_operation: bool = False
    http: int | None = None
    retry_after_s: float | None = None
    project: str = ""  # that was asked for; empty: not known

    def info(self) -> Mapping[str, Any]:
        """Return the ErrorInfo; empty without one."""
        return self.detail("ErrorInfo")

    def detail(self, kind: str) -> Mapping[str, Any]:
        """Return the detail of a google.rpc type; empty without one."""
        return next((d for d in self.details if str(d.get("@type", "")).endswith(f"google.rpc.{kind}")), {})


def http_error(
    http: int, body: str, *, host: str, asked: str = "", retry_after: str | None = None, emulated: bool = False
) -> errors.CloudError:
    """Return the error for a reply with a status of 300 or more. `asked`: the address of the call, or a name in it."""
    found = _error_object(body)
    if found is None:
        return _not_the_api(http, body, host, seconds_of(retry_after))
    message, status = _text(found.get("message")), found.get("status")
    if not isinstance(status, str):
        status = "UNAVAILABLE" if http >= 500 and http != 501 else _BY_HTTP.get(http, "")
        if http == 404 and any(each.get("reason") == "notFound" for each in _dicts(found.get("errors"))):
            status = "NOT_FOUND"  # of an API that has no statuses, such as that of Compute Engine
        if http == 409 and "already exists" in message:
            status = "ALREADY_EXISTS"
    if (status == "NOT_FOUND") != (http == 404):
        return errors.UnexpectedReply(f"{host} answered {http} {status}: {plain(message)}", details=_cut(body))
    if http == 499:
        status = "UNAVAILABLE"
    details = _dicts(found.get("details"))
    error = _classify(ApiRefusal(status, message, details, False, http, seconds_of(retry_after), project_in(asked)))
    if http == 401:
        error.scope = "project"
        error.hint = EMULATOR_LOGIN if emulated else error.hint or LOGIN
    return error


def operation_error(error: Mapping[str, Any], asked: str = "") -> errors.CloudError:
    """Return the error for the `error` of a done operation, a google.rpc.Status as JSON. `asked`: the operation's name."""
    number = error.get("code")
    status = _STATUSES[number][0] if isinstance(number, int) and number in _STATUSES else ""
    message, details = _text(error.get("message")), _dicts(error.get("details"))
    return _classify(ApiRefusal(status, message, details, in_operation=True, project=project_in(asked)))


def json_object(text: str, host: str) -> dict[str, Any]:
    """Return the JSON object of a reply. Raises UnexpectedReply for anything else."""
    found = _parsed(text)
    if not isinstance(found, dict):
        shown = " ".join(text[:80].split()) or "an empty reply"
        raise errors.UnexpectedReply(f"{host} answered something that is not JSON: {shown}", details=_cut(text))
    return found


def auth_error(error: Exception) -> errors.CloudError:
    """Return the error for google-auth's: no credentials, unusable ones, or no reply from the sign-in server."""
    why = plain(" ".join(str(part) for part in error.args[:1]))
    if isinstance(error, (auth_exceptions.TransportError, auth_exceptions.TimeoutError)) or getattr(
        error, "retryable", False
    ):
        return errors.CloudUnavailable(f"Google's sign-in server cannot be reached: {why}", details=why)
    if isinstance(error, auth_exceptions.DefaultCredentialsError):
        return errors.AuthError(f"no usable Google credentials: {why}", hint=LOGIN, details=why, scope="project")
    if isinstance(error, auth_exceptions.RefreshError):
        if "invalid_rapt" in str(error) or "eauthentication" in why:
            message = "Google requires you to sign in again (your organization ends sessions after a while)"
            hint = "`gcloud auth application-default login`"
        else:
            message, hint = f"Google did not renew your credentials: {why}", f"they are expired or revoked; {LOGIN}"
        return errors.AuthError(message, hint=hint, details=str(error.args), scope="project")
    return errors.AuthError(f"Google credentials cannot be used: {why}", hint=LOGIN, details=why, scope="project")


def _classify(refusal: ApiRefusal) -> errors.CloudError:
    rule = next((rule for rule in TABLE if _matches(rule, refusal)), None)
    kind = rule.kind if rule else _KINDS.get(refusal.status, errors.UnexpectedReply)
    if rule is None and refusal.in_operation and refusal.status == "RESOURCE_EXHAUSTED":
        kind = errors.CapacityError  # quotas are refused before there is an operation
    if (rule is None or kind is errors.CapacityError) and refusal.detail("QuotaFailure"):
        kind, rule = errors.QuotaError, None
    message = plain(refusal.message)
    if kind is errors.QuotaError and (violation := _violation(refusal)):
        message = plain(violation)
    if not message:
        message = f"the API answered {refusal.http or 'an error'} {refusal.status} without a message".replace("  ", " ")
    metadata = refusal.info().get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    hint = MORE_QUOTA if kind is errors.QuotaError else None
    if rule:
        hint = fill(rule.hint, refusal.message, known, refusal.project)
    details = {"status": refusal.status, "message": refusal.message, "details": list(refusal.details)}
    if issubclass(kind, errors.CloudUnavailable):
        return kind(message, hint=hint, details=details, retry_after_s=_retry_delay(refusal))
    if kind is errors.Preempted:
        message = f"the slice was taken away: {message}"
    return kind(message, hint=hint, details=details, scope=rule.scope if rule else "")


def _matches(rule: KnownError, refusal: ApiRefusal) -> bool:
    if rule.statuses and refusal.status not in rule.statuses:
        return False
    if rule.reasons and refusal.info().get("reason") in rule.reasons:
        return True
    return bool(rule.text and re.search(rule.text, refusal.message, re.IGNORECASE))


def _violation(refusal: ApiRefusal) -> str:
    violations = _dicts(refusal.detail("QuotaFailure").get("violations"))
    return next((_text(v.get("description")) for v in violations if v.get("description")), "")


def _retry_delay(refusal: ApiRefusal) -> float | None:
    delay = str(refusal.detail("RetryInfo").get("retryDelay", "")).removesuffix("s")
    return seconds_of(delay) or refusal.retry_after_s


def seconds_of(text: str | None) -> float | None:
    """A delay in seconds; None for a date or nonsense."""
    return float(text) if text and re.fullmatch(r"\d{1,6}(\.\d{1,9})?", text) else None


def _not_the_api(http: int, body: str, host: str, retry_after_s: float | None) -> errors.CloudError:
    """HTML of a proxy or a load balancer, or truncated JSON: never a statement about a resource."""
    title = re.search(r"<title>(.*?)</title>", body, re.IGNORECASE | re.DOTALL)
    shown = plain(title.group(1) if title else body[:80]) or "an empty reply"
    message = f"{host} answered {http}, not in the API's form: {shown}"
    if http >= 500 or http in (408, 429):
        return errors.CloudUnavailable(message, details=_cut(body), retry_after_s=retry_after_s)
    if http == 401:
        return errors.AuthError(message, hint=LOGIN, details=_cut(body))
    if http < 400:
        message = f"{host} answered {http}, a redirection, which is not followed"
    hint = "is there a proxy or a sign-in page between this machine and the API?"
    return errors.UnexpectedReply(message, hint=hint, details=_cut(body))


def _error_object(body: str) -> Mapping[str, Any] | None:
    found = _parsed(body)
    if isinstance(found, list) and found:
        found = found[0]
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else None


def _parsed(text: str) -> Any:
    """The value of a JSON text; None if it is not JSON."""
    try:
        return parsing.loads(text)
    except ValueError:
        return None


def _dicts(value: object) -> tuple[Mapping[str, Any], ...]:
    return tuple(item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def plain(text: str) -> str:
    """One printable line without the error id."""
    line = " ".join(re.sub(r"\s*\[EID: [^\]]*\]", "", text).split())
    line = "".join(char if char.isprintable() else "?" for char in line)
    return line if len(line) <= MAX_MESSAGE_CHARS else f"{line[: MAX_MESSAGE_CHARS - 1]}…"


def _cut(body: str) -> str:
    return body[:MAX_DETAIL_CHARS]
