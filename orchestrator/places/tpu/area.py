"""Where the Cloud TPU API is asked for slices that no ledger here need know: in a project, and its zones."""

from collections.abc import Sequence
from typing import Any

from orchestrator.places.area import Area
from orchestrator.places.vms.area import zones_of
from orchestrator.settings import Target


def named(target: Target) -> Area:
    return Area(target.kind, target.project, target.why)


def asked(target: Target, parts: Sequence[str], **_: Any) -> Area:
    """Return the project, in these zones and regions; empty means every zone. Raises UserError for an unknown place."""
    return Area(target.kind, target.project, target.why, zones_of(parts))
