"""What places share whose workers are VMs, reached by SSH: the plan, the drafts, the stay, and the ways to the workers.

A place of this kind is its API, its traits, and what it refuses of a job; `place.VmPlace` has the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from orchestrator.places import place_of

if TYPE_CHECKING:
    from orchestrator.places.vms.place import VmPlace


def vms_of(cloud: str) -> VmPlace:
    """Return the place of a cloud whose workers are VMs."""
    return cast("VmPlace", place_of(cloud))
