"""Which cluster, nodes and image a job with `on: gke` gets, by its file and the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.catalog import gke
from orchestrator.core.jobfile import cluster as settings
from orchestrator.core.jobfile.cluster import ClusterTarget, ClusterWish
from orchestrator.core.planning.capacity_request import Provisioning
from orchestrator.errors import JobSpecError
from orchestrator.places.gke.objects.capacity import Capacity
from orchestrator.places.gke.objects.deadlines import deadlines
from orchestrator.places.gke.objects.manifest import ClusterShape

if TYPE_CHECKING:
    from orchestrator.core.jobfile.keys import JobSpec


def target_of(spec: JobSpec, of_settings: ClusterWish) -> ClusterTarget:
    """Return the target of a job. Raises JobSpecError for what neither the job nor the settings say."""
    wish = spec.gke.wish.over(of_settings)
    only = spec.tpu.alternatives[0]
    reserved = only.effective_provisioning is Provisioning.RESERVED
    found = settings.problems(wish, reserved=reserved, together=only.queue)
    mistakes = [spec.mistake(("gke", key), why) for key, why in found]
    if mistakes:
        raise JobSpecError(mistakes, hint="docs/job-file.md has the keys of `gke:`")
    return settings.target_of(wish, reserved=reserved)


def shape_of(spec: JobSpec, of_settings: ClusterWish) -> ClusterShape:
    """Return what a job asks a cluster for. Raises JobSpecError as `target_of` does."""
    target, only = target_of(spec, of_settings), spec.tpu.alternatives[0]
    found = gke.lookup(only.accelerator, target.machine_type)
    assert found is not None, "the rules of the job file have checked the type and the machine type"
    return ClusterShape(
        target=target,
        slice=found,
        slices=spec.tpu.slices,
        capacity=Capacity(only.effective_provisioning, together=only.queue, reservation=target.reservation),
        deadlines=deadlines(
            spec.limits.max_duration_s,
            wait_s=spec.tpu.wait,
            linger_s=spec.limits.linger,
            queued=target.queue is not None,
        ),
    )
