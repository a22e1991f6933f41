"""Objects of Kubernetes as values of `promise.lease`: a JobSet with its pods and its Workload as a slice, a Pod as a worker.

Pure translation. A field that is missing or of another type counts as not said. Why a job waits is told in the words of Kueue,
the scheduler and the autoscaler, without what does not help.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.errors import BadRequest, CloudError, CloudUnavailable, Preempted, QuotaError, SliceLost
from orchestrator.places.gke.api import refusals
from orchestrator.places.gke.api.kube_api import of_admission
from orchestrator.places.gke.objects.manifest import ACCELERATOR, CONTAINER, LIFE
from orchestrator.places.gke.objects.nodes import NodeView
from orchestrator.places.gke.objects.pod_api import PodPhase, PodView
from orchestrator.promise.lease.cloud_api import SliceState, SliceView
from orchestrator.promise.lease.lease import Mode, SliceName
from orchestrator.text import names

SLICE_LABEL, HOST_LABEL = "jobset.sigs.k8s.io/job-index", "batch.kubernetes.io/job-completion-index"
RESTART_LABEL = "jobset.sigs.k8s.io/restart-attempt"
# Why the container of a pod waits, where waiting longer does not help.
_BAD_IMAGE = ("InvalidImageName", "ErrImageNeverPull")
_BAD_CONFIG = "CreateContainerConfigError"  # the image runs as root where it must not, or a Secret is not there (yet)
_NOT_YET = re.compile(r'(secret|configmap) "[^"]*" not found|object .* not registered|failed to sync .* cache')
_PULL_FAILS = ("ImagePullBackOff", "ErrImagePull")
_FINAL_PULL = ("not found", "notfound", "denied", "unauthorized", "forbidden", "manifest unknown")
MAX_RUN = "cloud.google.com/gke-max-run-duration-seconds"  # label of a node that the cloud ends after so long
LATE = "DeadlineExceeded"  # the reason of a Job, and of a pod, whose time is over
MAX_EXECUTION = "MaximumExecutionTime"  # in the reason of a Workload that Kueue suspends for good: its time is over
_POD_SPEC = ("template", "spec", "template", "spec")  # in a replicated Job
PATIENCE_S = 180.0  # for a registry that fails otherwise, and for a Secret that the node does not see
_TAKEN = ("Evicted", "Preempting", "NodeLost", "NodeShutdown", "Terminated", "NodeAffinity", "OutOfcpu", "Shutdown")


@dataclass(frozen=True, slots=True)
class Seen:
    """All that the control plane says of one JobSet. `server_now`: unix seconds, its clock; None: it did not say."""

    jobset: Mapping[str, Any]
    pods: Sequence[Mapping[str, Any]] = ()
    jobs: Sequence[Mapping[str, Any]] | None = None  # of a JobSet that failed, or has no pods; None: not asked for
    events: Sequence[Mapping[str, Any]] = ()  # about a pod that has not started, or about Jobs that get no pods
    workload: Mapping[str, Any] | None = None  # of Kueue; None: none, or Kueue is not used
    unread: str = ""  # why the Workload cannot be read
    server_now: float | None = None


def slice_view(seen: Seen, name: SliceName) -> SliceView:
    """Return the JobSet as a slice. READY: every pod has started, and none was taken away."""
    jobset = seen.jobset
    annotations = _texts(_at(jobset, "metadata", "annotations"))
    created = time_of(_at(jobset, "metadata", "creationTimestamp"))
    state, native, error = _state(seen)
    # The control plane keeps its limits, and its pods have all that they need: no process here claims it.
    labels = {**_texts(_at(jobset, "metadata", "labels")), names.MODE: str(Mode.DETACHED)}
    life_s = _number(annotations.get(LIFE))
    deadline = created + life_s if created is not None and life_s else None
    if deadline is not None and _ended(jobset):  # its results may be collected until it is deleted
        deadline += _number(_at(jobset, "spec", "ttlSecondsAfterFinished"))
    if deadline is not None:
        # The control plane ends it by then. No label holds a time, so that `export` and `run` make the same object.
        labels = {**labels, names.DEADLINE: str(int(deadline)), names.CLAIMED_UNTIL: str(int(deadline))}
    return SliceView(
        name=name,
        state=state,
        native_state=native,
        accelerator_type=annotations.get(ACCELERATOR, ""),
        runtime_version="",
        labels=labels,
        created_at=created,
        spot="cloud.google.com/gke-spot" in _texts(_at(_replicated(jobset), *_POD_SPEC, "nodeSelector")),
        deadline=deadline,
        hosts=tuple(str(_at(pod, "metadata", "name")) for pod in seen.pods),
        error=error,
        nodes=tuple(dict.fromkeys(node for pod in seen.pods if (node := str(_at(pod, "spec", "nodeName") or "")))),
        running_s=_running_s(seen) if state is SliceState.READY else None,
    )


def _running_s(seen: Seen) -> float | None:
    """Seconds since the last of the pods that are there started, by the server's clock."""
    started = [pod.started_at for pod in (pod_view(each, 1) for each in seen.pods) if pod.started_at is not None]
    return max(seen.server_now - max(started), 0.0) if started and seen.server_now is not None else None


def leftovers_view(name: SliceName, left: Mapping[str, Sequence[Mapping[str, Any]]], lease_id: str) -> SliceView:
    """Return what is left of a JobSet that does not exist any more. `left`: objects by kind, of each at least one."""
    text = ", ".join(f"{len(found)} {kind[: -1 if len(found) == 1 else None]}" for kind, found in left.items())
    labels = {names.PREFIX: "1", names.LEASE_ID: lease_id}
    made = [time_of(_at(each, "metadata", "creationTimestamp")) for found in left.values() for each in found]
    created = max((at for at in made if at is not None), default=None)
    if created is not None:  # without a JobSet there is no claim: gc deletes it
        labels |= {names.DEADLINE: str(int(created)), names.CLAIMED_UNTIL: str(int(created))}
    return SliceView(name, SliceState.DELETING, f"gone but for {text}", "", "", labels, created_at=created)


def pod_view(pod: Mapping[str, Any], hosts: int) -> PodView:
    """Return a pod as a worker. `hosts`: of a slice."""
    labels = _texts(_at(pod, "metadata", "labels"))
    status = _dict(pod.get("status"))
    containers = _dicts(status.get("containerStatuses"))  # a mesh or an admin's webhook may add some
    container = next((each for each in containers if each.get("name") == CONTAINER), {})
    state = _dict(container.get("state"))
    ended, running, to_start = (_dict(state.get(each)) for each in ("terminated", "running", "waiting"))
    phase = str(status.get("phase") or "Unknown")
    reason, message = _why(pod, ended, to_start)
    rc = ended.get("exitCode")
    return PodView(
        name=str(_at(pod, "metadata", "name") or ""),
        worker=_number(labels.get(SLICE_LABEL)) * hosts + _number(labels.get(HOST_LABEL)),
        phase=PodPhase(phase) if phase in set(PodPhase) else PodPhase.UNKNOWN,
        node=str(_at(pod, "spec", "nodeName") or ""),
        rc=rc if isinstance(rc, int) and not isinstance(rc, bool) else None,
        reason=reason,
        message=message,
        note=str(ended.get("message") or ""),
        started_at=time_of(ended.get("startedAt") or running.get("startedAt")),
        ended_at=time_of(ended.get("finishedAt")),
    )


def node_view(node: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> NodeView:
    """Return a node; `pods`: every pod of the cluster, of which those count that ask for TPUs on it and have not ended."""
    name, labels = str(_at(node, "metadata", "name")), _texts(_at(node, "metadata", "labels"))
    created, limit_s = time_of(_at(node, "metadata", "creationTimestamp")), _number(labels.get(MAX_RUN))
    return NodeView(
        name=name,
        pool=labels.get("cloud.google.com/gke-nodepool", ""),
        ends_at=created + limit_s if created is not None and limit_s else None,
        busy=any(_at(pod, "spec", "nodeName") == name and _uses_tpus(pod) for pod in pods),
    )


def _uses_tpus(pod: Mapping[str, Any]) -> bool:
    if _at(pod, "status", "phase") in ("Succeeded", "Failed"):
        return False
    containers = _dicts(_at(pod, "spec", "containers"))
    return any("google.com/tpu" in _dict(_at(each, "resources", "requests")) for each in containers)


def hosts_of(jobset: Mapping[str, Any]) -> int:
    """Return how many pods a slice of the JobSet has."""
    return _number(_at(_replicated(jobset), "template", "spec", "parallelism"), 1)


def pods_of(jobset: Mapping[str, Any]) -> int:
    """Return how many pods the JobSet has altogether."""
    return hosts_of(jobset) * _number(_replicated(jobset).get("replicas"), 1)


def is_suspended(jobset: Mapping[str, Any]) -> bool:
    """Return whether the JobSet waits for Kueue."""
    return bool(_at(jobset, "spec", "suspend"))


def has_failed(jobset: Mapping[str, Any]) -> bool:
    """Return whether the JobSet says that it failed."""
    return _condition(jobset, "Failed") is not None


def _ended(jobset: Mapping[str, Any]) -> bool:
    return _condition(jobset, "Completed") is not None or has_failed(jobset)


def _may_start_again(jobset: Mapping[str, Any]) -> bool:
    """Return whether JobSet starts the job again if a pod of it is taken away."""
    return _number(_at(jobset, "spec", "failurePolicy", "maxRestarts")) > 0 and not _ended(jobset)


def _is_current(pod: Mapping[str, Any], jobset: Mapping[str, Any]) -> bool:
    """Return whether the pod is of the current start of the JobSet."""
    number = _number(_at(pod, "metadata", "labels", RESTART_LABEL))
    return number == _number(_at(jobset, "status", "restarts")) and not _at(pod, "metadata", "deletionTimestamp")


def waiting_pod(pods: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the name of a pod that has no node, or else of one that has not started; None: all have."""
    late = [pod for pod in pods if pod_view(pod, 1).started_at is None]
    late.sort(key=lambda pod: bool(_at(pod, "spec", "nodeName")))
    return str(_at(late[0], "metadata", "name")) if late else None


def uid_of(found: Mapping[str, Any]) -> str:
    """Return the uid of an object; empty if it has none."""
    return str(_at(found, "metadata", "uid") or "")


def _state(seen: Seen) -> tuple[SliceState, str, CloudError | None]:
    jobset = seen.jobset
    if _at(jobset, "metadata", "deletionTimestamp"):
        left = f", {len(seen.pods)} pod{'s'[: len(seen.pods) != 1]} left" if seen.pods else ""
        finalizers = [str(each) for each in _at(jobset, "metadata", "finalizers") or []]
        held = [each for each in finalizers if each != "foregroundDeletion"]
        return SliceState.DELETING, f"Deleting{left}{' held by finalizer ' + ', '.join(held) if held else ''}", None
    again = _may_start_again(jobset)
    pods = [pod_view(pod, hosts_of(jobset)) for pod in seen.pods if not again or _is_current(pod, jobset)]
    if not again and (taken := next((pod for pod in pods if pod.reason in _TAKEN), None)) is not None:
        text = f"worker{taken.worker} was taken away: {taken.reason}{': ' + taken.message if taken.message else ''}"
        return SliceState.TOMBSTONE, taken.reason, Preempted(text)
    ended = _ended(jobset)
    if not ended and (refusal := _refusal(seen)) is not None:
        return SliceState.TOMBSTONE, "Refused", refusal
    if is_suspended(jobset) and not ended:  # also of pods that Kueue is stopping
        if (over := _condition(seen.workload or {}, "Evicted")) and MAX_EXECUTION in str(over.get("reason")):
            lost = SliceLost(f"Kueue ended it: {over.get('message')}", reason="deadline")
            return SliceState.TOMBSTONE, str(over.get("reason")), lost
        if too_large := exceeds_quota(seen.workload):
            return SliceState.TOMBSTONE, "Suspended", QuotaError(f"Kueue can never admit it: {too_large}", hint=_RAISE)
        return SliceState.QUEUED, f"Suspended: {_unqueued(seen) or for_kueue(seen.workload, seen.unread)}", None
    started = [pod for pod in pods if pod.started_at is not None]
    if len(started) >= pods_of(jobset):
        return SliceState.READY, "Finished" if all(pod.phase.ended for pod in pods) else "Running", None
    if _condition(jobset, "Failed") is not None:
        return _failed(seen, pods)
    if _condition(jobset, "Completed") is not None:
        return SliceState.READY, "Completed", None
    return _waiting(seen, pods)


def _failed(seen: Seen, pods: Sequence[PodView]) -> tuple[SliceState, str, CloudError | None]:
    """A JobSet that failed. If its pods have ended, they tell how; a Job whose time is over has deleted them."""
    over = next(
        (found for job in seen.jobs or () if (found := _condition(job, "Failed")) and found.get("reason") == LATE), None
    )
    if over is not None:
        return SliceState.TOMBSTONE, LATE, SliceLost(f"the cluster ended it: {over.get('message')}", reason="deadline")
    if any(pod.phase.ended and pod.started_at is not None for pod in pods):
        return SliceState.READY, FAILED, None
    refused = next((pod for pod in pods if pod.phase is PodPhase.FAILED and pod.reason), None)
    if refused is not None:  # by its node, before it started
        text = f"worker{refused.worker} never started ({refused.reason}){': ' + refused.message if refused.message else ''}"
        return SliceState.TOMBSTONE, refused.reason, SliceLost(text)
    message = (_condition(seen.jobset, "Failed") or {}).get("message")
    text = f"the JobSet failed, and its pods were deleted, or are gone with their nodes: {message}"
    return SliceState.TOMBSTONE, FAILED, SliceLost(text)


def _waiting(seen: Seen, pods: Sequence[PodView]) -> tuple[SliceState, str, CloudError | None]:
    """A JobSet that may run, and some of whose pods have not started."""
    total = pods_of(seen.jobset)
    for pod in pods:
        if _cannot_start(pod, seen):
            text = f"worker{pod.worker} cannot start ({pod.reason}): {pod.message}"
            hint = None if pod.reason == _BAD_CONFIG else "correct `gke: {image: …}`"
            return SliceState.TOMBSTONE, pod.reason, BadRequest(text, hint=hint)
    started = sum(pod.started_at is not None for pod in pods)
    homeless = [pod for pod in pods if not pod.node]
    if homeless or len(pods) < total:
        why = for_nodes(next((pod.message for pod in homeless if pod.message), ""), seen.events)
        late = (
            f"{total - len(pods) + len(homeless)} of {total} pods have no node{f', {started} run' if started else ''}"
        )
        if seen.jobs is not None and not seen.jobs and not pods:
            late, why = "", why or NO_JOB
        return SliceState.CREATING, ": ".join(filter(None, (PENDING, late, why))), None
    slow = next((pod for pod in pods if pod.started_at is None), None)
    why = slow.reason if slow is not None and slow.reason else "ContainerCreating"
    if said := for_start(seen.events):
        why = f"{why}: {said}"
    return SliceState.CREATING, f"Starting ({started} of {total} pods run: {why})", None


def _refusal(seen: Seen) -> CloudError | None:
    """Return what admission refuses for good of the Jobs and pods that are missing.

    A refusal from before the JobSet was resumed, or before a pod was made, is over.
    """
    pods, slices = pods_of(seen.jobset), _number(_replicated(seen.jobset).get("replicas"), 1)
    if len(seen.pods) >= pods:
        return None
    since = [_at(_condition(seen.jobset, "Suspended", "False"), "lastTransitionTime")]
    since += [_at(pod, "metadata", "creationTimestamp") for pod in seen.pods]
    begun = max((at for at in map(time_of, since) if at is not None), default=0.0)
    recent = [each for each in seen.events if (time_of(_time(each)) or begun) >= begun]
    return refusals.of_events(sorted(recent, key=_time), pods, slices)


def _unqueued(seen: Seen) -> str:
    """Return that Kueue takes no notice of a job that names a priority; empty if it does, or it names none."""
    named = [" ".join(each) for each in refusals.classes(seen.jobset).items()]
    return f"{NO_WORKLOAD}: is there a {named[0]}?" if named and seen.workload is None and not seen.unread else ""


def _cannot_start(pod: PodView, seen: Seen) -> bool:
    if pod.reason in _BAD_IMAGE:
        return True
    if pod.reason in _PULL_FAILS:
        return any(each in pod.message.lower() for each in _FINAL_PULL) or _is_late(pod, seen)
    return pod.reason == _BAD_CONFIG and (_NOT_YET.search(pod.message) is None or _is_late(pod, seen))


def _is_late(pod: PodView, seen: Seen) -> bool:
    """Whether it has had its node for so long that waiting longer does not help."""
    raw = next((each for each in seen.pods if _at(each, "metadata", "name") == pod.name), {})
    scheduled = time_of((_condition(raw, "PodScheduled") or {}).get("lastTransitionTime"))
    return scheduled is not None and seen.server_now is not None and seen.server_now - scheduled > PATIENCE_S


def _why(pod: Mapping[str, Any], ended: Mapping[str, Any], to_start: Mapping[str, Any]) -> tuple[str, str]:
    """Why a pod waits or how it ended, and the same in a sentence. A disruption comes before what it led to."""
    status, taken = _dict(pod.get("status")), _condition(pod, "DisruptionTarget")
    if taken is not None and status.get("phase") != "Succeeded":  # else it ended before it was taken away
        # Kubernetes names the cause: PreemptionByScheduler, DeletionByTaintManager, EvictionByEvictionAPI, …
        reason = str(taken.get("reason") or "DisruptionTarget")
        lost = "NodeLost" if "Taint" in reason or "PodGC" in reason else "Evicted"
        return "Preempting" if "Preemption" in reason else lost, str(taken.get("message") or reason)
    if status.get("reason"):
        return str(status["reason"]), str(status.get("message") or "")
    if to_start.get("reason"):
        return str(to_start["reason"]), str(to_start.get("message") or "")
    if ended.get("reason"):
        return str(ended["reason"]), ""
    if (homeless := _condition(pod, "PodScheduled", "False")) is not None:
        return str(homeless.get("reason") or "Unschedulable"), str(homeless.get("message") or "")
    return "", ""


def _replicated(jobset: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(_dicts(_at(jobset, "spec", "replicatedJobs"))), {})


def _condition(found: Mapping[str, Any], kind: str, status: str = "True") -> Mapping[str, Any] | None:
    """Return the condition of this type if it has this status."""
    listed = _dicts(_at(found, "status", "conditions"))
    return next((each for each in listed if each.get("type") == kind and each.get("status") == status), None)


def time_of(text: Any) -> float | None:
    """Return a time of the API in unix seconds; None if there is none."""
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) and text else None
    except ValueError:
        return None


def _at(found: Any, *keys: str) -> Any:
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _dict(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _dicts(found: Any) -> list[Mapping[str, Any]]:
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _texts(found: Any) -> dict[str, str]:
    return {key: value for key, value in _dict(found).items() if isinstance(value, str)}


def _number(found: Any, default: int = 0) -> int:
    text = str(found) if found is not None else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else default


# Of the clauses of Kueue, those about flavors of other accelerators: a cluster has one for each.
_OTHER_FLAVOR = re.compile(r"flavor \S+ doesn't match node affinity")
# Of the words of the scheduler, what preemption would not change.
_NO_PREEMPTION = re.compile(r"\.? (no new claims to deallocate, )?preemption: .*", re.DOTALL)
_AUTOSCALER = ("NotTriggerScaleUp", "FailedScaleUp", "TriggeredScaleUp")
PENDING, FAILED = "Pending", "Failed"  # what begins, or is, the state of a JobSet
NO_JOB, NO_WORKLOAD = "JobSet has made no Job of it", "Kueue has made no Workload of it"
SILENT = (NO_JOB, NO_WORKLOAD)  # states that are given up soon: the cluster tells the user no more
_RAISE = "its admin can raise the quota of the ClusterQueue"
_TOO_LARGE = r"insufficient quota for [^,]*, [^,]*> maximum capacity \([^)]*\)"
NOT_SEEN = "Kueue has not seen it: is there a LocalQueue of that name in this namespace?"


def for_kueue(workload: Mapping[str, Any] | None, unread: str = "") -> str:
    """Return why Kueue has not admitted a job. None: it made no Workload of it, or `unread` says why that is not known."""
    if workload is None:
        return unread or NOT_SEEN
    evicted, quota, admitted = (
        str((_condition(workload, kind, status) or {}).get("message") or "")
        for kind, status in (("Evicted", "True"), ("QuotaReserved", "False"), ("Admitted", "False"))
    )
    said = [evicted, _of_flavors(quota or admitted)]  # why it was sent back comes before why it still waits
    return "; ".join(dict.fromkeys(filter(None, said))) or "waits for Kueue"


def exceeds_quota(workload: Mapping[str, Any] | None) -> str:
    """Return Kueue's words if each flavor that fits a job has less quota than it asks for, however free; else empty."""
    waits = _condition(workload or {}, "QuotaReserved", "False") or {}
    message = _of_flavors(str(waits.get("message") or ""))
    rest, found = re.subn(_TOO_LARGE, "", message.partition(": ")[2])  # before 0.19, the reason is that of any wait
    return message if waits.get("reason") == "ExceedsMaxQuota" or (found and not rest.strip(", ")) else ""


def _of_flavors(message: str) -> str:
    head, found, rest = message.partition(": ")
    if not found:
        return message
    kept = [clause for clause in rest.split(", ") if not _OTHER_FLAVOR.search(clause)]
    return f"{head}: {', '.join(kept)}" if kept else message


def for_nodes(scheduler: str, events: Sequence[Mapping[str, Any]]) -> str:
    """Return why a pod has no node, or does not exist.

    `scheduler`: the message of its condition; `events`: about the pod, or about its Job, in any order.
    """
    said = [_NO_PREEMPTION.sub("", scheduler)] if scheduler else []
    asked = [
        event for event in events if event.get("reason") in (*_AUTOSCALER, *refusals.REASONS) and not _passes(event)
    ]
    if asked:
        said.append(str(max(asked, key=_time).get("message") or ""))
    return "; ".join(filter(None, said))


def _passes(event: Mapping[str, Any]) -> bool:
    """Whether it is admitted later by itself: each large slice begins with pods whose first one has no node yet."""
    return isinstance(of_admission(str(event.get("message"))), CloudUnavailable)


def for_start(events: Sequence[Mapping[str, Any]]) -> str:
    """Return why a pod that has a node does not start, such as a volume that cannot be mounted; empty if nothing is said."""
    warned = [event for event in events if event.get("type") == "Warning" and event.get("reason") != "FailedScheduling"]
    return str(max(warned, key=_time).get("message") or "") if warned else ""


def _time(event: Mapping[str, Any]) -> str:
    seen = _at(event, "series", "lastObservedTime")
    return str(seen or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")
