"""What a simulated cluster stores: JobSets with their pods, ConfigMaps and Secrets; and each as its API shows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

QUEUE, MAX_EXEC = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/max-exec-time-seconds"
LATE = "DeadlineExceeded"
SHUTDOWN = "Terminated"  # by the kubelet of a node that is shut down


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
    scheduled_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    rc: int | None = None
    note: str = ""  # why the program in it ended the job, if that did not end by itself: `deadline`, `stopped`
    reason: str = ""  # of the kubelet
    disruption: str = ""
    no_image: bool = False
    deleting_at: float | None = None
    lost_at: float | None = None  # its node
    gone: bool = False

    @property
    def holds_tpu(self) -> bool:
        return self.scheduled_at is not None and self.ended_at is None and not self.gone and self.lost_at is None

    @property
    def failed(self) -> bool:
        return self.ended_at is not None and self.rc != 0

    def as_json(self, labels: Mapping[str, str]) -> dict[str, Any]:
        phase = "Pending" if self.started_at is None else "Running"
        state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}} if self.node else {}
        if self.no_image:
            state = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
        if self.started_at is not None:
            state = {"running": {"startedAt": date(self.started_at)}}
        if self.ended_at is not None:
            phase = "Failed" if self.rc else "Succeeded"
            began = self.started_at if self.started_at is not None else self.ended_at
            ended = {"exitCode": self.rc, "startedAt": date(began), "finishedAt": date(self.ended_at)}
            state = {"terminated": ended} if self.started_at is not None else {}
        conditions = []
        if self.disruption:
            conditions.append({"type": "DisruptionTarget", "status": "True", "reason": self.disruption, "message": "x"})
        if not self.node:
            conditions.append(
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
            )
        metadata: dict[str, Any] = {
            "name": self.name,
            "namespace": NAMESPACE,
            "uid": self.uid,
            "creationTimestamp": date(self.created_at),
            "labels": {
                **labels,
                "jobset.sigs.k8s.io/job-index": str(self.slice),
                "batch.kubernetes.io/job-completion-index": str(self.host),
            },
        }
        if self.deleting_at is not None:
            metadata["deletionTimestamp"] = date(self.deleting_at)
        status: dict[str, Any] = {"phase": phase, "conditions": conditions}
        status["containerStatuses"] = [{"name": "job", "state": state}] if state else []
        if self.reason:
            status["reason"] = self.reason
        return {"metadata": metadata, "spec": {"nodeName": self.node} if self.node else {}, "status": status}


NAMESPACE = "team"


@dataclass(eq=False)
class Stored:
    """An object as it was posted."""

    uid: str
    body: Mapping[str, Any]
    created_at: float

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def labels(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.body["metadata"].get("labels", {})
        return found

    @property
    def lease_id(self) -> str:
        return self.labels.get("tpujob-lease-id", "")


@dataclass(eq=False)
class JobSet(Stored):
    """One JobSet, its Jobs and its pods, also once the JobSet itself is gone."""

    suspended: bool = False
    exists: bool = True
    epoch: int = 0
    pods: list[Pod] = field(default_factory=list)  # that exist
    has_jobs: bool = True
    admitted_at: float | None = None
    used_s: float = 0.0  # admitted time before the last eviction
    deactivated: bool = False  # by Kueue, for good
    running_at: float | None = None  # every pod of this epoch has started
    failing: bool = False
    job_reason: str = ""
    failed_at: float | None = None
    completed_at: float | None = None
    deleting_at: float | None = None
    last_words: str = ""  # of Kueue

    @property
    def labels_of_pods(self) -> Mapping[str, str]:
        return {key: value for key, value in self.labels.items() if key.startswith("tpujob")}

    @property
    def queued(self) -> bool:
        return QUEUE in self.labels

    @property
    def job(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.body["spec"]["replicatedJobs"][0]["template"]["spec"]
        return found

    @property
    def hosts(self) -> int:
        return int(self.job["parallelism"])

    @property
    def slices(self) -> int:
        return int(self.body["spec"]["replicatedJobs"][0]["replicas"])

    @property
    def finished(self) -> bool:
        return self.failed_at is not None or self.completed_at is not None

    @property
    def over(self) -> bool:
        """Whether nothing of it holds a TPU, or will."""
        ended = self.finished or self.failing or self.deleting_at is not None or not self.exists or self.deactivated
        return ended and not any(pod.holds_tpu for pod in self.pods)

    @property
    def left(self) -> bool:
        """Whether anything of it exists."""
        return self.exists or self.has_jobs or bool(self.pods)

    def as_json(self, finalizers: list[str]) -> dict[str, Any]:
        metadata = {**self.body["metadata"], "uid": self.uid, "creationTimestamp": date(self.created_at)}
        if self.deleting_at is not None:
            metadata |= {"deletionTimestamp": date(self.deleting_at), "finalizers": ["foregroundDeletion", *finalizers]}
        conditions = []
        if self.failed_at is not None:
            conditions.append({"type": "Failed", "status": "True", "message": f"a Job failed: {self.job_reason}"})
        if self.completed_at is not None:
            conditions.append({"type": "Completed", "status": "True", "message": "done"})
        return {
            "metadata": metadata,
            "spec": {**self.body["spec"], "suspend": self.suspended},
            "status": {"conditions": conditions},
        }

    def jobs_json(self) -> list[dict[str, Any]]:
        if not self.has_jobs:
            return []
        conditions = []
        if self.failing and self.job_reason:
            conditions.append({"type": "Failed", "status": "True", "reason": self.job_reason, "message": "said why"})
        metadata = {"name": f"{self.name}-slice-0", "namespace": NAMESPACE, "uid": f"{self.uid}-job"}
        return [{"metadata": {**metadata, "labels": self.labels_of_pods}, "status": {"conditions": conditions}}]

    def workload_json(self) -> dict[str, Any]:
        if self.deactivated:
            reason = "DeactivatedDueToMaximumExecutionTimeExceeded"
            said = {"type": "Evicted", "status": "True", "reason": reason, "message": "exceeded its time"}
        else:
            said = {"type": "QuotaReserved", "status": "False", "message": self.last_words or "waits for quota"}
        return {"metadata": {"name": f"jobset-{self.name}"}, "status": {"conditions": [said]}}


@dataclass(eq=False)
class Owned(Stored):
    """A ConfigMap or a Secret."""

    kind: str  # such as `configmaps`

    @property
    def owner(self) -> str:
        owners = self.body["metadata"].get("ownerReferences", [])
        return str(owners[0]["uid"]) if owners else ""

    def as_json(self) -> dict[str, Any]:
        return {"metadata": {**self.body["metadata"], "namespace": NAMESPACE, "uid": self.uid}}


def date(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
