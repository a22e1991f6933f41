"""What follows from a candidate that could not be had: ask the next one, skip its kind, or stop asking. Pure."""

from __future__ import annotations

import re
from enum import StrEnum

from orchestrator.core.lease.slices import SliceRequest
from orchestrator.errors import (
    AuthError,
    BadRequest,
    CapacityError,
    CloudError,
    CloudUnavailable,
    Preempted,
    QuotaError,
)

_REGIONAL = re.compile(r"per ?region|in region", re.IGNORECASE)


class Step(StrEnum):
    NEXT = "next"  # there is none now: the next candidate, and this one again later
    SKIP = "skip"  # asking again is useless until a person acts: this bucket is left out, others are asked
    STOP = "stop"  # the request itself is wrong, or nobody knows what happened


def step_after(error: CloudError) -> Step:
    """Unknown errors stop: what is not understood is not to be repeated elsewhere, at a price."""
    if isinstance(error, CapacityError | Preempted | CloudUnavailable):
        return Step.NEXT
    if isinstance(error, QuotaError | AuthError):
        return Step.SKIP
    return Step.STOP


def describe(error: CloudError) -> str:
    """Why, in a line that names the candidate already."""
    if isinstance(error, CapacityError):
        return "no capacity"
    if isinstance(error, Preempted):
        return "taken away before it was ready"
    kind = {QuotaError: "quota", AuthError: "no permission", CloudUnavailable: "no answer", BadRequest: "refused"}
    title = next((title for cls, title in kind.items() if isinstance(error, cls)), error.reason)
    return f"{title}: {error.message}"


def quota_key(request: SliceRequest, error: CloudError | None = None) -> tuple[str, bool, str]:
    """What quotas and permissions are given for: the family of accelerators, the tier, and the zone or region."""
    family = request.accelerator_type.rpartition("-")[0]
    zone = request.name.zone
    place = zone.rpartition("-")[0] if error is not None and _REGIONAL.search(error.message) else zone
    return family, request.spot, place


def is_excluded(closed: tuple[str, bool, str], request: SliceRequest) -> bool:
    family, spot, place = closed
    zone = request.name.zone
    return quota_key(request)[:2] == (family, spot) and place in (zone, zone.rpartition("-")[0])
