"""`tpujob plan` of a job on a cluster: the same objects as `run`, under names that are not used. Asks no cluster."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.client.cluster import bucket
from orchestrator.client.cluster.preparation import prepare, variables
from orchestrator.client.jobs.code import ship_shape
from orchestrator.client.jobs.planning import PlanPreview
from orchestrator.core.text import names
from orchestrator.places.gke.api.kube_api import path_of
from orchestrator.places.gke.objects.plan import plan_of, price
from orchestrator.report.cluster_plan import cluster_plan_lines, program_line
from orchestrator.report.plan import candidate_shape
from orchestrator.settings import GKE

if TYPE_CHECKING:
    from orchestrator.client.session import Session
    from orchestrator.core.jobfile.keys import JobSpec
    from orchestrator.places.gke.objects.manifest import ClusterJob
    from orchestrator.remote.shipping.tree import Survey


def preview(session: Session, spec: JobSpec, path: Path, found: Survey | None, ships: tuple[str, ...]) -> PlanPreview:
    """Return what a run of this job would submit. Raises UserError for a job that cannot be run.

    `found`: what it ships; `ships`: that and what its pods fetch, in sentences.
    """
    run, lease_id = (names.new_run_id(secrets.randbits(names.RUN_BITS)) for _ in range(2))
    env = variables(spec, with_secrets=False)
    with ExitStack() as stack:
        made = prepare(session, spec, path, run=run, lease_id=lease_id, env=env, stack=stack)
        bucket.check(session, spec, made.job.target.location)
        documents = [each for each in made.documents() if each["kind"] != "Secret"]
    requests = tuple(_request(each) for each in documents)
    shape = _shape(spec, made.job, requests) | {"ship": ship_shape(found)}
    return PlanPreview(
        plan_of(made.job), requests, shape, (*cluster_plan_lines(made.job), program_line(made.job.program), *ships)
    )


def _request(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The call that creates an object. Its host is that of the cluster, which is not asked."""
    collection = path_of(f"{str(document['kind']).lower()}s", document["metadata"]["namespace"])
    return {"method": "POST", "url": collection, "body": document}


def _shape(spec: JobSpec, job: ClusterJob, requests: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    """The keys of any plan, and those of a cluster."""
    plan = plan_of(job)
    return {
        "job": spec.name,
        "cloud": GKE,
        "project": None,
        "candidates": [{**candidate_shape(plan.candidates[0]), "request": requests[0]}],
        "dropped": [],
        "order": spec.tpu.order,
        "race": False,
        "wait_s": job.deadlines.wait_s,
        "asked": None,
        "workers": job.pods,
        "cores": plan.candidates[0].cores,
        "max_duration_s": spec.limits.max_duration_s,
        "max_results_bytes": spec.limits.max_results,
        "worst_case_usd": plan.worst_case_usd,
        "overlap_usd": 0.0,
        "request": requests[0],
        "requests": list(requests),
        "cluster": {
            "context": job.target.context,
            "cluster": job.target.cluster,
            "namespace": job.target.namespace,
            "queue": job.target.queue,
            "image": job.target.image,
            "machine_type": job.slice.machine_type,
            "topology": job.slice.topology,
            "chips": job.slices * job.slice.kind.chips,
            "slices": job.slices,
            "hosts_per_slice": job.slice.hosts,
            "price_why": price(job)[1],
            "pod_deadline_s": job.deadlines.pod_s,
            "job_deadline_s": job.deadlines.job_s,
            "kept_s": job.deadlines.kept_s,
        },
    }
