"""What a simulated cluster stores: JobSets with their pods, ConfigMaps and Secrets; and each as its API shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any

from tests.unit.places.gke.api import store
from tests.unit.places.gke.api.store import condition

if TYPE_CHECKING:
    from tests.simulation.oracle.clusters import ClusterClaim

QUEUE, MAX_EXEC = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/max-exec-time-seconds"
LATE = "DeadlineExceeded"
NAMESPACE = "team"


@dataclass(eq=False)
class Pod:
    """One pod. Its container holds a TPU from when it has a node until it has ended."""

    uid: str
    name: str
    worker: int
    host: int
    slice: int
    epoch: int  # which run of its JobSet it is of
    created_at: float
    node: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    rc: int | None = None
    note: str = ""  # why the program in it ended the job, if that did not end by itself: `deadline`, `stopped`
    reason: str = ""  # of the kubelet
    disruption: str = ""
    no_image: bool = False
    deleting_at: float | None = None
    is_lost: bool = False  # with its node
    gone: bool = False

    @property
    def holds_tpu(self) -> bool:
        return bool(self.node) and self.ended_at is None and not self.gone and not self.is_lost

    def as_json(self, labels: Mapping[str, str]) -> dict[str, Any]:
        phase = "Pending" if self.started_at is None else "Running"
        state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}} if self.node else {}
        if self.no_image:
            state = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
        if self.started_at is not None:
            state = {"running": {"startedAt": date(self.started_at)}}
        if self.ended_at is not None:
            phase, ended = (
                "Failed" if self.rc else "Succeeded",
                {"exitCode": self.rc, "finishedAt": date(self.ended_at)},
            )
            state = {"terminated": state["running"] | ended} if self.started_at is not None else {}
        conditions = [condition("DisruptionTarget", reason=self.disruption)] if self.disruption else []
        if not self.node:
            conditions.append(condition("PodScheduled", status="False", reason="Unschedulable", message="no node"))
        status = {"phase": phase, "conditions": conditions} | ({"reason": self.reason} if self.reason else {})
        made = store.pod(self.host, state, slice=self.slice, node=self.node, **status)
        made["metadata"] |= _metadata(self) | {"labels": made["metadata"]["labels"] | labels}
        return made


class Stored:
    """An object as it was posted. `kind`: such as `configmaps`."""

    deleting_at: float | None = None

    def __init__(self, kind: str, uid: str, body: Mapping[str, Any], created_at: float) -> None:
        self.kind, self.uid, self.body, self.created_at = kind, uid, body, created_at
        metadata = body["metadata"]
        self.name: str = metadata["name"]
        self.labels: dict[str, str] = metadata.get("labels", {})
        self.lease_id = self.labels.get("tpujob-lease-id", "")
        self.owners = [each["uid"] for each in metadata.get("ownerReferences", ())]

    def as_json(self) -> dict[str, Any]:
        return {"metadata": self.body["metadata"] | _metadata(self)}


class JobSet(Stored):
    """One JobSet, its Jobs and its pods, also once the JobSet itself is gone."""

    exists = has_jobs = True
    epoch = 0
    admitted_at: float | None = None
    used_s = 0.0  # admitted time before the last eviction
    deactivated = False  # by Kueue, for good
    failing = False
    job_reason = ""
    finished = ""  # Failed or Completed
    last_words = "waits for quota"  # of Kueue
    # What became of it, for the oracle.
    claim: ClusterClaim | None = None  # None: tpujob did not make it
    lost_at: float | None = None
    known_at = inf  # when that can be known
    why_lost = ""
    deleted_outside = False
    at_limit = False  # a pod, or the JobSet, reached a limit
    node_at: float | None = None  # the first of its pods got a node
    ran_at: float | None = None  # every pod ran at once
    ended_at: float | None = None  # since then none of these does
    settled_at: float | None = None  # it is deleted, or over
    # What `periods.finish` reads of a resource.
    failed_deletes, slow_s, ready_at = 0, 0.0, None

    def __init__(self, uid: str, body: Mapping[str, Any], created_at: float) -> None:
        super().__init__("jobsets", uid, body, created_at)
        (replicated,) = body["spec"]["replicatedJobs"]
        self.job: Mapping[str, Any] = replicated["template"]["spec"]
        self.hosts: int = self.job["parallelism"]
        self.workers: int = self.hosts * replicated["replicas"]
        self.queued, self.suspended = QUEUE in self.labels, bool(body["spec"].get("suspend"))
        self.labels_of_pods = {key: value for key, value in self.labels.items() if key.startswith("tpujob")}
        self.pods: list[Pod] = []  # that exist
        self.codes: dict[int, int] = {}  # by worker: with which its last pod ended

    @property
    def ends(self) -> bool:
        """Whether it ended, or will, whatever holds a TPU still."""
        return bool(self.finished) or self.failing or self.deactivated

    @property
    def going_on(self) -> bool:
        return self.exists and self.deleting_at is None and not self.ends

    @property
    def over(self) -> bool:
        """Whether nothing of it holds a TPU, or will."""
        return not self.going_on and not any(pod.holds_tpu for pod in self.pods)

    @property
    def left(self) -> bool:
        """Whether anything of it exists."""
        return self.exists or self.has_jobs or bool(self.pods)

    def admitted_s(self, now: float) -> float:
        """Return for how long it was admitted, in all."""
        return self.used_s + (0.0 if self.suspended or self.admitted_at is None else now - self.admitted_at)

    def jobset_json(self, finalizers: list[str]) -> dict[str, Any]:
        made = self.as_json()
        if self.deleting_at is not None:
            made["metadata"]["finalizers"] = ["foregroundDeletion", *finalizers]
        ended = [condition(self.finished, message=f"a Job failed: {self.job_reason}")] if self.finished else []
        spec = {**self.body["spec"], "suspend": self.suspended}
        return {**made, "spec": spec, "status": {"conditions": ended}}

    def jobs_json(self) -> list[dict[str, Any]]:
        if not self.has_jobs:
            return []
        conditions = [condition("Failed", reason=self.job_reason)] if self.failing and self.job_reason else []
        metadata = {"name": f"{self.name}-slice-0", "namespace": NAMESPACE, "uid": f"{self.uid}-job"}
        return [{"metadata": {**metadata, "labels": self.labels_of_pods}, "status": {"conditions": conditions}}]

    def workload_json(self) -> dict[str, Any]:
        said = condition("QuotaReserved", status="False", message=self.last_words)
        if self.deactivated:
            said = condition("Evicted", reason="DeactivatedDueToMaximumExecutionTimeExceeded")
        return {"metadata": {"name": f"jobset-{self.name}"}, "status": {"conditions": [said]}}


def _metadata(of: Stored | Pod) -> dict[str, Any]:
    dates = {"creationTimestamp": date(of.created_at)}
    if of.deleting_at is not None:
        dates["deletionTimestamp"] = date(of.deleting_at)
    return {"name": of.name, "namespace": NAMESPACE, "uid": of.uid, **dates}


def date(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
