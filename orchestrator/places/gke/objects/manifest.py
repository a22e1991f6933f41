"""The objects of a job on a cluster: a JobSet, the ConfigMap with what its pods run, and a Secret. Pure and deterministic.

The same job with the same names gives the same objects: `export` prints what `run` submits. No field holds a time of day.
What ends the job when no process here is left is in the objects: deadlines of Job and Pod, how often it is started, and a time
to live.
What the pods run is the request, the agent and the code, as files that a ConfigMap holds; `vm.pod.pod` reads them, and lists
the keys of the request.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.catalog.gke import TPU, GkeSlice
from orchestrator.errors import UserError
from orchestrator.job.cluster import GRACE_S, ClusterTarget
from orchestrator.job.rules import pod as pod_rules
from orchestrator.job.rules.pod import CONTAINER
from orchestrator.places.gke.objects import nodes
from orchestrator.places.gke.objects.nodes import Capacity
from orchestrator.text import names
from orchestrator.text.units import format_size

DEFAULT_WAIT_S = 3600.0  # in a queue, of a job without `wait`
STARTS_WITHIN_S = 900.0  # from admission, or from the creation, to running pods: nodes are started, images pulled
ENDS_WITHIN_S = 120.0  # a pod, beyond the limit of its job: its image is pulled before, its results are sent after that
KEPT_S = 3600.0  # ended objects, of a job without `limits.linger`


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds. Kubernetes counts that of a Job while its pods are pending, but not while Kueue suspends it."""

    wait_s: float  # for admission, or for nodes without a queue; kept by this machine
    run_s: float  # of the job in a pod, kept by its own program
    pod_s: float  # from the start of a pod, by the kubelet
    job_s: float  # from the creation, or from the admission by Kueue
    kept_s: float  # from the end of the job until the JobSet and everything it owns is deleted
    life_s: float  # from the creation to the latest end of the job, if it waits no longer than `wait_s` each time
    starts: int = 1  # at most


def deadlines(
    max_duration_s: float,
    *,
    wait_s: float,
    linger_s: float | None,
    queued: bool,
    starts: int = 1,
    grace_s: float = GRACE_S,
) -> Deadlines:
    """Return the deadlines of a job. `wait_s`: 0 for the default; `queued`: Kueue admits it; `starts`: of it, at most."""
    waits = wait_s or (DEFAULT_WAIT_S if queued else STARTS_WITHIN_S)
    job_s = max_duration_s + (STARTS_WITHIN_S if queued else max(waits, STARTS_WITHIN_S)) + grace_s - GRACE_S
    pod_s, life_s = max_duration_s + ENDS_WITHIN_S, starts * (job_s + (waits if queued else 0.0))
    return Deadlines(waits, max_duration_s, pod_s, job_s, linger_s or KEPT_S, life_s, starts)


MAX_BYTES = 1 << 20  # of a ConfigMap, and of a Secret: the API server refuses more
# Of results in the log of a pod, packed. GKE sends a log to Cloud Logging, of which it promises 100 KiB/s for a node.
INLINE_BYTES = 1 << 20
REQUEST, AGENT, CODE = "request.json", "agent.zip", "code.tar.gz"


@dataclass(frozen=True, slots=True)
class PodProgram:
    """`code` is None where the job has none, or where `code_object` (gs://BUCKET/NAME) in the request names it."""

    request: Mapping[str, Any]
    agent: bytes
    code: bytes | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # variables of the job, for a Secret

    @property
    def request_text(self) -> str:
        """The request as the pods read it."""
        return json.dumps(self.request, indent=1, ensure_ascii=False) + "\n"

    @property
    def size_bytes(self) -> int:
        """How much of a ConfigMap it takes."""
        return len(self.request_text.encode()) + len(self.agent) + len(self.code or b"")

    def config_map_data(self) -> dict[str, Any]:
        """Return the fields of the ConfigMap. Raises UserError if they are larger than one may be."""
        if self.size_bytes > MAX_BYTES:
            raise UserError(
                f"the scripts and the code take {format_size(self.size_bytes)}, and a ConfigMap holds {format_size(MAX_BYTES)}",
                hint=TOO_LARGE,
            )
        files = {AGENT: self.agent} | ({} if self.code is None else {CODE: self.code})
        encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
        return {"data": {REQUEST: self.request_text}, "binaryData": encoded}


def room_for_code(request: Mapping[str, Any], agent: bytes) -> int:
    """Return how many bytes of code fit into the ConfigMap beside the rest; negative if the rest alone does not fit."""
    return MAX_BYTES - PodProgram(request, agent).size_bytes


TOO_LARGE = (
    "leave out files that the job does not need (.tpujobignore), put them into the image, or name a `bucket:`, "
    "which takes code of any size"
)


LIFE = "tpujob-life-seconds"  # annotation of the JobSet: from its creation to its end at the latest
ACCELERATOR = "tpujob-accelerator"  # annotation of the JobSet: the type that its job asked for
SLICE = "slice"  # the replicated job
IN, RUN = f"{pod_rules.OWN}/in", f"{pod_rules.OWN}/run"
COMMAND = ("python3", "-IS", f"{IN}/agent.zip", "pod", IN, RUN)
SENDING_S = 50  # after the grace of the job: its results are sent, with some to spare
AGAIN = (71, 143)  # codes of `vm/pod/pod.py` where tpujob or the cluster ended the job, and not the job itself
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
MAX_EXEC_TIME = "kueue.x-k8s.io/max-exec-time-seconds"
EXCLUSIVE, NODE_POOL = "alpha.jobset.sigs.k8s.io/exclusive-topology", "cloud.google.com/gke-nodepool"
PORTS = (8471, 8080, 8431)  # between the hosts of a slice; between slices; the metrics of libtpu
FIRST_PORT, PORTS_OF_JOBS = 20000, 5000  # two for each, below those that Linux gives out by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """What a job asks a cluster for, without what it runs there."""

    target: ClusterTarget
    slice: GkeSlice
    slices: int
    capacity: Capacity
    deadlines: Deadlines

    @property
    def pods(self) -> int:
        """How many pods the job has."""
        return self.slices * self.slice.hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob(ClusterShape):
    """One job as a JobSet. `name`: of every object, as `names.node_name` makes it; `labels`: of every object and pod."""

    name: str
    labels: Mapping[str, str]
    program: PodProgram

    @property
    def coordinator_port(self) -> int:
        """The port on which the first pod may be met: that of the JobSet's name, since pods may share a host's ports.

        The next one is tpujob's (`vm/pod/starts.py`).
        """
        return FIRST_PORT + 2 * (int(hashlib.sha256(self.name.encode()).hexdigest()[:8], 16) % PORTS_OF_JOBS)


def labels_of(*, lease_id: str, owner: str, name: str, run: str) -> dict[str, str]:
    """Return the labels of every object. `name` is the job's, for display."""
    return {
        names.PREFIX: "1",
        names.LEASE_ID: lease_id,
        names.OWNER: owner,
        names.NAME: names.to_label_value(name),
        names.RUN: run,
    }


def documents(job: ClusterJob) -> tuple[dict[str, Any], ...]:
    """Return the objects: the JobSet first, which is to own the others. Raises UserError for what no object can hold."""
    config_map = _object(job, "v1", "ConfigMap", **job.program.config_map_data())
    found = [_jobset(job)]
    if secrets := job.program.secrets:
        size_bytes = sum(len(value.encode()) for value in secrets.values())
        if size_bytes > MAX_BYTES:
            held = f"a Secret holds {format_size(MAX_BYTES)}"
            raise UserError(
                f"the values that `env:` takes from your variables have {format_size(size_bytes)}, and {held}"
            )
        found.append(_object(job, "v1", "Secret", type="Opaque", stringData=dict(sorted(secrets.items()))))
    # Last: a pod waits for the volume of its ConfigMap, and would fail for a Secret that is not there then.
    return (*found, config_map)


def _object(job: ClusterJob, version: str, kind: str, **fields: Any) -> dict[str, Any]:
    metadata = {"name": job.name, "namespace": job.target.namespace, "labels": dict(job.labels)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def _jobset(job: ClusterJob) -> dict[str, Any]:
    made = _object(job, "jobset.x-k8s.io/v1alpha2", "JobSet")
    metadata, queue = made["metadata"], job.target.queue
    if queue is not None:
        metadata["labels"] |= {QUEUE: queue, MAX_EXEC_TIME: _whole(job.deadlines.starts * job.deadlines.job_s)}
    if job.target.priority is not None:
        metadata["labels"][PRIORITY] = job.target.priority
    metadata["annotations"] = {LIFE: _whole(job.deadlines.life_s), ACCELERATOR: job.slice.kind.name}
    if job.capacity.together:
        metadata["annotations"][nodes.RUN_LIMIT] = _whole(min(job.deadlines.job_s, nodes.LONGEST_FLEX_S))
    if job.slice.hosts > 1:  # hosts of one slice are one node pool; a pool of single hosts is for many jobs
        metadata["annotations"][EXCLUSIVE] = NODE_POOL
    made["spec"] = {
        **({"suspend": True} if queue is not None else {}),  # until Kueue admits it
        "ttlSecondsAfterFinished": int(job.deadlines.kept_s),
        "failurePolicy": _failure_policy(job.deadlines.starts - 1),
        "coordinator": {"replicatedJob": SLICE, "jobIndex": 0, "podIndex": 0},
        "replicatedJobs": [
            {"name": SLICE, "replicas": job.slices, "template": {"metadata": _labeled(job), "spec": _job(job)}}
        ],
    }
    return made


def _failure_policy(restarts: int) -> dict[str, Any]:
    """JobSet starts all Jobs again, once none of their pods is left; not if the job itself has failed, or its time is over."""
    if not restarts:
        return {"maxRestarts": 0}
    over = {"name": "over", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"]}
    return {"maxRestarts": restarts, "restartStrategy": "BlockingRecreate", "rules": [over]}


def _pod_failure_policy() -> dict[str, Any]:
    taken = [{"type": "DisruptionTarget", "status": "True"}]
    own = {"containerName": CONTAINER, "operator": "NotIn", "values": [*AGAIN]}
    return {"rules": [{"action": "Count", "onPodConditions": taken}, {"action": "FailJob", "onExitCodes": own}]}


def _job(job: ClusterJob) -> dict[str, Any]:
    return {
        "parallelism": job.slice.hosts,
        "completions": job.slice.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        **({"podFailurePolicy": _pod_failure_policy()} if job.deadlines.starts > 1 else {}),
        "activeDeadlineSeconds": int(job.deadlines.job_s),
        "template": _pod_template(job),
    }


def _pod_template(job: ClusterJob) -> dict[str, Any]:
    """The pod, with what `gke.pod` of the settings and then of the job make of it."""
    pod = {"metadata": _labeled(job), **_pod(job)}
    for fragment in job.target.pod:
        pod = pod_rules.merged(pod, fragment)
    if job.target.pod and (lacking := list(pod_rules.incomplete(pod))):
        raise UserError(f"gke.pod: {lacking[0]}", hint="docs/gke.md says how `gke.pod` is merged")
    return {"metadata": pod.pop("metadata"), "spec": pod}


def _pod(job: ClusterJob) -> dict[str, Any]:
    account = job.target.service_account
    return {
        "restartPolicy": "Never",  # left out, JobSet writes OnFailure
        "terminationGracePeriodSeconds": int(job.target.grace) + SENDING_S,
        "activeDeadlineSeconds": int(job.deadlines.pod_s),
        **({} if account is None else {"serviceAccountName": account}),
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if job.target.host_network else {}),
        **nodes.placement(job.slice, job.capacity),
        "containers": [_container(job)],
        "volumes": [
            {"name": "in", "configMap": {"name": job.name}},
            {"name": "run", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},  # 64 MiB otherwise
        ],
    }


def _container(job: ClusterJob) -> dict[str, Any]:
    chips = {TPU: job.slice.chips_per_host}
    secret = {"envFrom": [{"secretRef": {"name": job.name}}]} if job.program.secrets else {}
    return {
        "name": CONTAINER,
        "image": job.target.image,
        "command": list(COMMAND),
        "env": _environment(job),
        **secret,
        "ports": [{"containerPort": port} for port in PORTS],
        "resources": {"requests": dict(chips), "limits": dict(chips)},
        **({"securityContext": {"privileged": True}} if job.target.privileged else {}),
        "volumeMounts": [
            {"name": "in", "mountPath": IN, "readOnly": True},
            {"name": "run", "mountPath": RUN},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - where it is
        ],
    }


def _environment(job: ClusterJob) -> list[dict[str, Any]]:
    """What a pod is told of its place. GKE adds TPU_WORKER_ID and TPU_WORKER_HOSTNAMES, and Kubernetes JOB_COMPLETION_INDEX."""
    found = [
        _of_field("TPUJOB_SLICE", "metadata.annotations['jobset.sigs.k8s.io/job-index']"),
        _of_field("TPUJOB_POD", "metadata.name"),
        _of_field("TPUJOB_POD_IP", "status.podIP"),
        _of_field("TPUJOB_COORDINATOR_NAME", "metadata.annotations['jobset.sigs.k8s.io/coordinator']"),
        {"name": "TPUJOB_COORDINATOR_PORT", "value": str(job.coordinator_port)},
        {"name": "TPUJOB_SLICES", "value": str(job.slices)},
        {"name": "TPUJOB_HOSTS_PER_SLICE", "value": str(job.slice.hosts)},
    ]
    if job.slices > 1:  # JobSet sets none of these
        found += [
            _of_field("MEGASCALE_NUM_SLICES", "metadata.annotations['jobset.sigs.k8s.io/global-replicas']"),
            _of_field("MEGASCALE_SLICE_ID", "metadata.annotations['jobset.sigs.k8s.io/job-global-index']"),
            _of_field("MEGASCALE_COORDINATOR_ADDRESS", "metadata.annotations['jobset.sigs.k8s.io/coordinator']"),
        ]
    return found


def _of_field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _labeled(job: ClusterJob) -> dict[str, Any]:
    return {"labels": dict(job.labels)}


def _whole(seconds: float) -> str:
    return str(int(seconds))
