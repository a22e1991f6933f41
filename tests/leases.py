"""Leases and drafts as most tests want them."""

from dataclasses import replace
from typing import Any

from orchestrator.core.lease.cloud_api import QueueTerms, SliceName, SliceRequest
from orchestrator.core.lease.lease import Lease, Purpose
from orchestrator.engine.provision.drafts import Draft

ZONE = "us-central1-a"


def lease_on(name: SliceName, now: float, **other: Any) -> Lease:
    """Return a lease on an emulated v5litepod-8, for a day from `now` on; `other`: fields that are not so."""
    _, owner, identity = name.node.split("-", 2)
    fields = {
        **{"id": identity, "handle": "x", "purpose": Purpose.RUN, "cloud": "emulated", "name": name, "owner": owner},
        **{"accelerator_type": "v5litepod-8", "runtime_version": "v2-alpha-tpuv5-lite", "spot": False},
        **{"deadline": now + 24 * 3600, "created_at": now},
    }
    return Lease(**fields | other)


def lease_and_request(
    n: int = 0, *, zone: str = ZONE, now: float = 1_800_000_000.0, purpose: Purpose = Purpose.RUN
) -> Draft:
    identity = f"{n:010d}"
    name = SliceName("a-project", zone, f"tpujob-owner0-{identity}")
    lease = lease_on(name, now, handle="alice", purpose=purpose, usd_per_hour=9.6)
    request = SliceRequest(
        name, "v5litepod-8", "v2-alpha-tpuv5-lite", labels={"tpujob": "1", "tpujob-lease-id": identity}
    )
    return Draft(lease, request)


def queued(draft: Draft, valid_for_s: float = 3600.0) -> Draft:
    """Return a draft that asks for the same slice in the queue."""
    lease, request = draft
    name = replace(lease.name, queued=True)
    queue = QueueTerms(valid_for_s, f"00000000-0000-4000-8000-{lease.id:0>12}")
    return Draft(replace(lease, name=name), replace(request, name=name, queue=queue))
