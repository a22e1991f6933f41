"""What follows when a candidate could not be had: the next one, none of its kind, or none at all. Pure."""

import re
from enum import StrEnum

from orchestrator import errors
from orchestrator.promise.lease.cloud_api import SliceRequest

_REGIONAL = re.compile(r"per ?region|in region", re.IGNORECASE)

QuotaKey = tuple[str, bool, str]  # accelerator family, spot, and the zone or region


class Step(StrEnum):
    """What the search does next."""

    NEXT = "next"  # no capacity now: try the next candidate, and this one again later
    SKIP = "skip"  # a retry is useless: leave out this candidate, or every one with its quota key
    STOP = "stop"  # the request itself is wrong, or the error is not understood


def step_after(error: errors.CloudError) -> Step:
    """Return what to do after this error. An error that is not understood stops: a retry elsewhere might cost money."""
    if isinstance(error, errors.CapacityError | errors.Preempted | errors.CloudUnavailable):
        return Step.NEXT
    if error.scope == "project":
        return Step.STOP
    if isinstance(error, errors.QuotaError | errors.AuthError) or error.scope == "place":
        return Step.SKIP
    return Step.STOP


def describe(error: errors.CloudError) -> str:
    """Return the reason, for a line that already names the candidate."""
    if isinstance(error, errors.CapacityError):
        return "no capacity"
    if isinstance(error, errors.Preempted):
        return "taken away before it was ready"
    kind = {
        errors.QuotaError: "quota",
        errors.AuthError: "no permission",
        errors.CloudUnavailable: "no answer",
        errors.BadRequest: "refused",
    }
    title = next((title for cls, title in kind.items() if isinstance(error, cls)), error.reason)
    return f"{title}: {error.message}"


def policy(error: errors.CloudError) -> str:
    """Return which policy of the organization refuses, in words."""
    if isinstance(error, errors.ExternalAddressRefused):
        return "constraints/compute.vmExternalIpAccess forbids external addresses"
    return "constraints/compute.requireOsLogin forbids SSH keys in the metadata"


def quota_key(request: SliceRequest, error: errors.CloudError | None = None) -> QuotaKey:
    """Return what a quota or permission is granted for: the accelerator family, spot or not, and the zone or region."""
    family = request.accelerator_type.rpartition("-")[0]
    zone = request.name.zone
    place = zone.rpartition("-")[0] if error is not None and _REGIONAL.search(error.message) else zone
    return family, request.spot, place


def is_excluded(request: SliceRequest, key: QuotaKey) -> bool:
    """Return whether the request falls under a quota key that was refused."""
    family, spot, place = key
    zone = request.name.zone
    return quota_key(request)[:2] == (family, spot) and place in (zone, zone.rpartition("-")[0])
