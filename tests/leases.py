"""A lease as most tests want it."""

from typing import Any

from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.core.lease.lease import Lease, Purpose


def lease_on(name: SliceName, now: float, **other: Any) -> Lease:
    """Return a lease on an emulated v5litepod-8, for a day from `now` on; `other`: fields that are not so."""
    _, owner, identity = name.node.split("-", 2)
    fields = {
        **{"id": identity, "handle": "x", "purpose": Purpose.RUN, "cloud": "emulated", "name": name, "owner": owner},
        **{"accelerator_type": "v5litepod-8", "runtime_version": "v2-alpha-tpuv5-lite", "spot": False},
        **{"deadline": now + 24 * 3600, "created_at": now},
    }
    return Lease(**fields | other)
