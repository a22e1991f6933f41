"""A cluster as a place: a job becomes a JobSet with all that its pods need, which is submitted and followed."""

from __future__ import annotations

import os
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from orchestrator.errors import JobSpecError, UnknownRun, UserError
from orchestrator.places.gke import bucket, preparation
from orchestrator.places.gke.api import clusters
from orchestrator.places.gke.api.client import ClusterCloud
from orchestrator.places.gke.api.kube_api import path_of
from orchestrator.places.gke.objects.nodes import in_words
from orchestrator.places.gke.plan import cluster_plan_lines, plan_of, price, program_line
from orchestrator.places.gke.pods.collection import collected_from
from orchestrator.places.gke.pods.fleet import PodFleet
from orchestrator.places.gke.preparation import prepare, to_yaml, variables
from orchestrator.places.gke.stay import ClusterStay
from orchestrator.places.gke.traits import TRAITS
from orchestrator.places.leased import LeasedPlace, NoReach
from orchestrator.places.place import STATES, CompileTarget, Phase, PlanMade, Prepared, Stay, Wish
from orchestrator.places.preparation import buckets, records
from orchestrator.places.preparation.resolving import pods_of
from orchestrator.promise.lease.cloud_api import Cloud, QueueTerms, SliceRequest, WorkerAddress
from orchestrator.promise.lease.lease import Lease, Purpose, SliceName
from orchestrator.promise.obtain.drafts import Draft
from orchestrator.settings import GKE
from orchestrator.text import names

if TYPE_CHECKING:
    from orchestrator.capacity.plan import Plan
    from orchestrator.hosts.transfer.collect import CollectRequest
    from orchestrator.hosts.transfer.collection import Collection
    from orchestrator.job.job_spec import JobSpec
    from orchestrator.places.desk import Desk, Lines
    from orchestrator.places.gke.objects.manifest import ClusterJob
    from orchestrator.promise.lease.run_and_attempt import RunRecord


SPARE_S = 180.0  # beyond what the control plane keeps by itself: pods are stopped with a grace


def draft_of(desk: Desk, spec: JobSpec, made: preparation.Prepared, project: str, *, detach: bool) -> Draft:
    """Return the lease and the request of one attempt. `project`: the identity of the cluster.

    `detach`: nothing may follow the job at its end, so its results stay for `limits.linger`.
    """
    job, now = made.job, desk.now(GKE)
    deadlines, lease_id = job.deadlines, job.labels[names.LEASE_ID]
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
        deadline=now + deadlines.life_s + SPARE_S - deadlines.wait_s + (deadlines.kept_s if detach else 0.0),
        created_at=now,
        provisioning=str(tpu.effective_provisioning),
        usd_per_hour=None if location is None else price(job, location)[0],
        run=job.labels[names.RUN],
        slices=job.slices,
    )
    request = SliceRequest(
        name=name,
        accelerator_type=lease.accelerator_type,
        runtime_version="",
        spot=lease.spot,
        labels={names.LEASE_ID: lease_id},
        queue=QueueTerms(deadlines.wait_s, request_id=str(uuid.uuid4())),
        manifests=made.documents(),
    )
    return Draft(lease, request)


MANIFEST = "jobset.yaml"  # in the directory of a run: what was submitted, without the values of the Secret

NO_CLOUD_OPTIONS = "a job with `on: gke` names its cluster below `gke:`: --cloud and --project do not apply"


class Cluster(LeasedPlace):
    traits = TRAITS

    def check(self, desk: Desk, spec: JobSpec, path: Path, wish: Wish) -> None:
        if wish.cloud_is_named:
            raise UserError(NO_CLOUD_OPTIONS)
        if wish.resume is not None:
            text = "a cluster starts a job again by itself, as often as `max_restarts` says"
            raise UserError(f"--resume is for slices: {text}")
        if wish.keep_s is not None:
            raise UserError("--keep holds a slice: on a cluster nothing is left to hold once the pods have ended")
        if spec.keep_on_failure is not None:
            why = "holds a slice: on a cluster nothing is left to hold once the pods have ended; remove it"
            raise JobSpecError([spec.mistake(("keep_on_failure",), why)])
        preparation.target_of(spec, desk.target.gke)

    def capacity(self, desk: Desk, spec: JobSpec, wish: Wish) -> Plan:
        return plan_of(preparation.shape_of(spec, desk.target.gke))

    def describe(self, desk: Desk, spec: JobSpec, plan: Plan) -> list[str]:
        return cluster_plan_lines(preparation.shape_of(spec, desk.target.gke), spec.bucket)

    def plan(self, desk: Desk, spec: JobSpec, path: Path) -> PlanMade:
        """Return the same objects as a run submits, under names that are not used. Asks no cluster."""
        run, lease_id = _new_ids()
        with ExitStack() as stack:
            env = variables(spec, with_secrets=False)
            made = prepare(desk, spec, path, run=run, lease_id=lease_id, env=env, stack=stack)
            bucket.check(desk, spec, made.job.target.location)
            requests = tuple(map(_request, _shown(made.documents())))
        asked = (*cluster_plan_lines(made.job, spec.bucket), program_line(made.job.program))
        notes = (*asked, *made.chosen.lines, *made.chosen.warnings)
        more = {"requests": list(requests), "cluster": _about(made.job)}
        shape = made.chosen.shape
        return PlanMade(GKE, None, plan_of(made.job), requests, notes, environment=shape, more=more)

    def prepare(
        self, desk: Desk, spec: JobSpec, env: Mapping[str, str], path: Path, wish: Wish, stack: ExitStack
    ) -> Prepared:
        fetched = buckets.lines_of(desk, spec) if wish.sweep is None else []
        desk.recover(look=True)
        run, attempt = records.new_run(spec, path, GKE, desk.runs_directory, desk.now(GKE), sweep=wish.sweep)
        _, lease_id = _new_ids()
        env = {**env, **bucket.variables(spec)}
        made = prepare(desk, spec, path, run=run.id, lease_id=lease_id, env=env, stack=stack)
        target = made.job.target
        project = clusters.identity(target.context, target.cluster, os.environ)
        draft = draft_of(desk, spec, made, project, detach=wish.detach)
        about = made.job.program.request["record"]["run"]["spec"]["cluster"]
        run = replace(run, spec=run.spec.having(cluster=about))  # for later commands
        wish.check_workers(made.job.pods)
        bucket.check(desk, spec, target.location or clusters.location(project))
        cast("ClusterCloud", desk.cloud(GKE)).check(project, draft.request.manifests)
        if wish.sweep is None:  # of a sweep, it was said before the first of its runs
            desk.reporter.notice("cloud", f"cluster {clusters.short_name(project)}: `on: gke`")
            for line in (*cluster_plan_lines(made.job, _results_at(run)), program_line(made.job.program), *fetched):
                desk.reporter.notice("plan", line)
            made.chosen.tell(desk.reporter)
        upload = None
        if made.upload is not None:
            upload = partial(bucket.upload, desk.reporter, made.upload, made.code_object)
        stay = ClusterStay((draft,), upload, _results_at(run), made.job.pods, bucket.starts(run))
        files = {MANIFEST: to_yaml(_shown(draft.request.manifests)), **made.chosen.files}
        return Prepared(run, attempt, stay, _phases(run.spec.cluster.phases), shipped=made.shipment, files=files)

    def attached(self, run: RunRecord, lease: Lease) -> tuple[Stay, tuple[Phase, ...]]:
        about = run.spec.cluster
        stay = ClusterStay(bucket=_results_at(run), pods=about.pods or 0, starts=bucket.starts(run))
        return stay, _phases(about.phases)

    def tidy(self, desk: Desk, run: RunRecord) -> None:
        bucket.remove_code(desk.reporter, run)

    def rest(self, desk: Desk, project: str, names: Sequence[str]) -> str:
        found = cast("ClusterCloud", desk.cloud(GKE)).nodes(project, tuple(names))
        return in_words([node for node in found if not node.busy])

    def stored(self, desk: Desk, run: RunRecord, order: CollectRequest) -> Collection | None:
        read, pods, starts = bucket.results(run), run.spec.cluster.pods, bucket.starts(run)
        if starts is not None:  # the last one has left them, whether or not a command has seen it
            order = replace(order, attempt=f"{run.id}-{min(len(starts()), starts.most) or 1}")
        return collected_from(read, pods, order) if read is not None and pods else None

    def open_cloud(self, lines: Lines, cloud: str) -> Cloud:
        return ClusterCloud(lambda identity: clusters.open_api(identity, os.environ))

    def compiles_for(self, desk: Desk, spec: JobSpec) -> CompileTarget:
        shape = preparation.shape_of(spec, desk.target.gke)
        return CompileTarget((shape.slice.kind.name,), pods_of(shape.target.image), shape.slices)

    def reach(self, desk: Desk, cloud: str) -> PodReach:
        return PodReach(lambda: cast("ClusterCloud", desk.cloud(cloud)), desk.run_of)


def _new_ids() -> tuple[str, str]:
    run, lease_id = (names.new_run_id(secrets.randbits(names.RUN_BITS)) for _ in range(2))
    return run, lease_id


def _phases(found: tuple[str, ...]) -> tuple[Phase, ...]:
    return tuple(Phase(name, STATES[name]) for name in found)


def _results_at(run: RunRecord) -> str | None:
    """Return where the results of a run are in its bucket; None for a run without one."""
    return f"{run.spec.bucket}/{run.id}" if run.spec.bucket else None


def _shown(documents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the objects without the values of secrets."""
    return [each for each in documents if each["kind"] != "Secret"]


def _request(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The call that creates an object. Its host is that of the cluster, which is not asked."""
    collection = path_of(f"{str(document['kind']).lower()}s", document["metadata"]["namespace"])
    return {"method": "POST", "url": collection, "body": document}


def _about(job: ClusterJob) -> dict[str, Any]:
    """What the plan of a job has as JSON values of its cluster."""
    return {
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
    }


PLACE = Cluster()


@dataclass(frozen=True, slots=True)
class PodReach(NoReach):
    """`cloud`: opens the connection to the cluster, if there is none yet."""

    cloud: Callable[[], ClusterCloud]
    run_of: Callable[[Lease], RunRecord | None]  # whose bucket may have the results

    def fleet(
        self, lease: Lease, workers: Sequence[WorkerAddress], notice: Callable[[str], None], now: Callable[[], float]
    ) -> PodFleet:
        """Return the pods of a lease as its workers. Raises Vanished if its JobSet does not exist any more."""
        results = None
        with suppress(UnknownRun):  # of a run that another machine began, there are only its pods
            results = None if (run := self.run_of(lease)) is None else bucket.results(run)
        pods = self.cloud().pods(lease.name)
        return PodFleet(pods, workers, on_notice=notice, now=now, results=results, record=pods.record)
