"""A draft of a job on a cluster: its lease, not yet in the ledger, and the create request with its manifests."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from orchestrator.core.lease.cloud_api import QueueTerms, SliceName, SliceRequest
from orchestrator.core.lease.lease import Lease, Purpose
from orchestrator.core.text import names
from orchestrator.engine.provision.drafts import Draft
from orchestrator.places.gke.api import clusters
from orchestrator.places.gke.objects.plan import price
from orchestrator.settings import GKE

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.places.desk import Desk
    from orchestrator.places.gke.objects.manifest import ClusterJob

GRACE_S = 180.0  # beyond what the control plane keeps by itself: pods are stopped with a grace of a minute


def draft_of(
    desk: Desk,
    spec: JobSpec,
    job: ClusterJob,
    documents: tuple[dict[str, Any], ...],
    *,
    project: str,
    run: str,
    lease_id: str,
    detach: bool,
) -> Draft:
    """Return the lease and the request of one attempt. `project`: the identity of the cluster.

    `detach`: nothing may follow the job at its end, so its results stay for `limits.linger`.
    """
    deadlines, now = job.deadlines, desk.now(GKE)
    name = SliceName(project, job.target.namespace, job.name, queued=True)
    location = clusters.location(project)
    tpu = spec.tpu.alternatives[0]
    lease = Lease(
        id=lease_id,
        handle=str(spec.name),
        purpose=Purpose.RUN,
        cloud=GKE,
        name=name,
        accelerator_type=tpu.accelerator,
        runtime_version="",
        spot=tpu.effective_provisioning.spot,
        owner=desk.owner,
        deadline=now + deadlines.life_s + GRACE_S - deadlines.wait_s + (deadlines.kept_s if detach else 0.0),
        created_at=now,
        provisioning=str(tpu.effective_provisioning),
        usd_per_hour=None if location is None else price(job, location)[0],
        run=run,
        slices=job.slices,
    )
    request = SliceRequest(
        name=name,
        accelerator_type=lease.accelerator_type,
        runtime_version="",
        spot=lease.spot,
        labels={names.LEASE_ID: lease_id},
        queue=QueueTerms(deadlines.wait_s, request_id=str(uuid.uuid4())),
        manifests=documents,
    )
    return Draft(lease, request)
