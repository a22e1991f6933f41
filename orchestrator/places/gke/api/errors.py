"""Errors of the API of Kubernetes, each translated into one CloudError. Only `places.gke.api` imports this module."""

import json
from typing import Any

from orchestrator import errors

MAX_MESSAGE_CHARS = 500
NO_JOBSET = "its admin installs JobSet: docs/gke.md"
SIGN_IN = "`kubectl auth whoami` says who you are there; docs/gke.md lists the permissions that a run needs"


class NotFound(errors.CloudError):
    """The API says that this object does not exist: a Status with the reason NotFound, nothing less."""

    reason = "absent"


def of_reply(status: int, body: bytes, *, retry_after: str | None = None, server: str) -> errors.CloudError:
    """Return the error for a reply with a status of 300 or more. `server`: which, for messages."""
    found = _status(body)
    if found is None:
        return _not_the_api(status, body, server, _seconds(retry_after))
    reason, message = str(found.get("reason") or ""), _plain(str(found.get("message") or f"status {status}"))
    if status == 404:
        if reason == "NotFound":
            return NotFound(message, details=found)
        return errors.UnexpectedReply(f"{server} answered 404 {reason}: {message}", details=found)
    if status == 401:
        return errors.AuthError(f"{server} does not accept your credentials: {message}", hint=SIGN_IN, details=found)
    if status == 403:
        if "exceeded quota" in message:
            return errors.QuotaError(
                message, hint="a ResourceQuota of the namespace; its admin can raise it", details=found
            )
        if "admission webhook" in message or "denied the request" in message or "Warden" in message:
            return errors.BadRequest(f"the cluster refuses it: {message}", details=found)
        return errors.AuthError(message, hint=SIGN_IN, details=found)
    if status == 409:
        kind = errors.AlreadyExists if reason == "AlreadyExists" else errors.WrongState
        return kind(message, details=found)
    if status in (400, 405, 413, 415, 422):
        return errors.BadRequest(f"the cluster refuses it: {message}", details=found)
    if status in (410, 429) or status >= 500:  # 410: the rest of a list has expired, and it begins anew
        return errors.CloudUnavailable(f"{server}: {message}", retry_after_s=_seconds(retry_after), details=found)
    return errors.UnexpectedReply(f"{server} answered {status} {reason}: {message}", details=found)


def _status(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("kind") == "Status" else None


def _not_the_api(status: int, body: bytes, server: str, retry_after_s: float | None) -> errors.CloudError:
    text = _plain(body.decode("utf-8", "replace"))
    if status == 404 and "page not found" in text:
        return errors.BadRequest(f"{server} does not know JobSets (jobset.x-k8s.io/v1alpha2)", hint=NO_JOBSET)
    if status in (401, 403):
        return errors.AuthError(f"{server} answered {status}: {text}", hint=SIGN_IN)
    if status == 429 or status >= 500:
        return errors.CloudUnavailable(f"{server} answered {status}: {text}", retry_after_s=retry_after_s)
    return errors.UnexpectedReply(
        f"{server} answered {status}, and not as the API of Kubernetes does: {text}", details=text
    )


def _plain(text: str) -> str:
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * MAX_MESSAGE_CHARS]).strip()
    return shown if len(shown) <= MAX_MESSAGE_CHARS else f"{shown[: MAX_MESSAGE_CHARS - 1]}…"


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() and len(text) < 6 else None
