"""Objects of Kubernetes as values of `promise.lease`: a JobSet with its pods and its Workload as a slice, a Pod as a worker.

Pure translation. A field that is missing or of another type counts as not said.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import BadRequest, CloudError, Preempted, QuotaError, SliceLost
from orchestrator.places.gke.api import refusals, words
from orchestrator.places.gke.api.fields import as_dict, at, condition, dicts, number, texts, time_of
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
SETTLES_S = 3.0  # until what refuses knows what was just made: Kueue looks up the owner of a Job in a cache
PATIENCE_S = 180.0  # for a registry that fails otherwise, and for a Secret that the node does not see


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
    annotations = texts(at(jobset, "metadata", "annotations"))
    created = time_of(at(jobset, "metadata", "creationTimestamp"))
    state, native, error = _state(seen)
    # The control plane keeps its limits, and its pods have all that they need: no process here claims it.
    labels = {**texts(at(jobset, "metadata", "labels")), names.MODE: str(Mode.DETACHED)}
    life_s = number(annotations.get(LIFE))
    deadline = None
    if created is not None and life_s:
        # Once it has ended, its results may be collected until it is deleted.
        kept_s = number(at(jobset, "spec", "ttlSecondsAfterFinished")) if _ended(jobset) else 0
        deadline = created + life_s + kept_s
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
        spot="cloud.google.com/gke-spot" in texts(at(_replicated(jobset), *_POD_SPEC, "nodeSelector")),
        deadline=deadline,
        hosts=tuple(str(at(pod, "metadata", "name")) for pod in seen.pods),
        error=error,
        nodes=tuple(dict.fromkeys(node for pod in seen.pods if (node := str(at(pod, "spec", "nodeName") or "")))),
        running_s=_running_s(seen) if state is SliceState.READY else None,
        ran=_has_run(seen),
    )


def _has_run(seen: Seen) -> bool:
    """Return whether its pods were taken away, and are to come again: JobSet has restarted it, or Kueue sent it back."""
    sent_back = any(each.get("type") == "Evicted" for each in dicts(at(seen.workload, "status", "conditions")))
    return _may_start_again(seen.jobset) and (number(at(seen.jobset, "status", "restarts")) > 0 or sent_back)


def _running_s(seen: Seen) -> float | None:
    """Seconds since the last of the pods that are there started, by the server's clock."""
    started = [pod.started_at for pod in (pod_view(each, 1) for each in seen.pods) if pod.started_at is not None]
    return max(seen.server_now - max(started), 0.0) if started and seen.server_now is not None else None


def leftovers_view(name: SliceName, left: Mapping[str, Sequence[Mapping[str, Any]]], lease_id: str) -> SliceView:
    """Return what is left of a JobSet that does not exist any more. `left`: objects by kind, of each at least one."""
    text = ", ".join(f"{len(found)} {kind[: -1 if len(found) == 1 else None]}" for kind, found in left.items())
    labels = {names.PREFIX: "1", names.LEASE_ID: lease_id}
    made = [time_of(at(each, "metadata", "creationTimestamp")) for found in left.values() for each in found]
    created = max((at for at in made if at is not None), default=None)
    if created is not None:  # without a JobSet there is no claim: gc deletes it
        labels |= {names.DEADLINE: str(int(created)), names.CLAIMED_UNTIL: str(int(created))}
    return SliceView(name, SliceState.DELETING, f"gone but for {text}", "", "", labels, created_at=created)


def pod_view(pod: Mapping[str, Any], hosts: int) -> PodView:
    """Return a pod as a worker. `hosts`: of a slice."""
    labels = texts(at(pod, "metadata", "labels"))
    status = as_dict(pod.get("status"))
    containers = dicts(status.get("containerStatuses"))  # a mesh or an admin's webhook may add some
    container = next((each for each in containers if each.get("name") == CONTAINER), {})
    state = as_dict(container.get("state"))
    ended, running, to_start = (as_dict(state.get(each)) for each in ("terminated", "running", "waiting"))
    phase = str(status.get("phase") or "Unknown")
    reason, message = _why(pod, ended, to_start)
    rc = ended.get("exitCode")
    return PodView(
        name=str(at(pod, "metadata", "name") or ""),
        worker=number(labels.get(SLICE_LABEL)) * hosts + number(labels.get(HOST_LABEL)),
        phase=PodPhase(phase) if phase in set(PodPhase) else PodPhase.UNKNOWN,
        node=str(at(pod, "spec", "nodeName") or ""),
        rc=rc if isinstance(rc, int) and not isinstance(rc, bool) else None,
        reason=reason,
        message=message,
        note=str(ended.get("message") or ""),
        started_at=time_of(ended.get("startedAt") or running.get("startedAt")),
        ended_at=time_of(ended.get("finishedAt")),
    )


def node_view(node: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> NodeView:
    """Return a node; `pods`: every pod of the cluster, of which those count that ask for TPUs on it and have not ended."""
    name, labels = str(at(node, "metadata", "name")), texts(at(node, "metadata", "labels"))
    created, limit_s = time_of(at(node, "metadata", "creationTimestamp")), number(labels.get(MAX_RUN))
    return NodeView(
        name=name,
        pool=labels.get("cloud.google.com/gke-nodepool", ""),
        ends_at=created + limit_s if created is not None and limit_s else None,
        busy=any(at(pod, "spec", "nodeName") == name and _uses_tpus(pod) for pod in pods),
    )


def _uses_tpus(pod: Mapping[str, Any]) -> bool:
    if at(pod, "status", "phase") in ("Succeeded", "Failed"):
        return False
    containers = dicts(at(pod, "spec", "containers"))
    return any("google.com/tpu" in as_dict(at(each, "resources", "requests")) for each in containers)


def hosts_of(jobset: Mapping[str, Any]) -> int:
    """Return how many pods a slice of the JobSet has."""
    return number(at(_replicated(jobset), "template", "spec", "parallelism"), 1)


def pods_of(jobset: Mapping[str, Any]) -> int:
    """Return how many pods the JobSet has altogether."""
    return hosts_of(jobset) * number(_replicated(jobset).get("replicas"), 1)


def is_suspended(jobset: Mapping[str, Any]) -> bool:
    """Return whether the JobSet waits for Kueue."""
    return bool(at(jobset, "spec", "suspend"))


def has_failed(jobset: Mapping[str, Any]) -> bool:
    """Return whether the JobSet says that it failed."""
    return condition(jobset, "Failed") is not None


def _ended(jobset: Mapping[str, Any]) -> bool:
    return condition(jobset, "Completed") is not None or has_failed(jobset)


def _may_start_again(jobset: Mapping[str, Any]) -> bool:
    """Return whether JobSet starts the job again if a pod of it is taken away."""
    return number(at(jobset, "spec", "failurePolicy", "maxRestarts")) > 0 and not _ended(jobset)


def _is_current(pod: Mapping[str, Any], jobset: Mapping[str, Any]) -> bool:
    """Return whether the pod is of the current start of the JobSet."""
    start = number(at(pod, "metadata", "labels", RESTART_LABEL))
    return start == number(at(jobset, "status", "restarts")) and not at(pod, "metadata", "deletionTimestamp")


def waiting_pod(pods: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the name of a pod that has no node, or else of one that has not started; None: all have."""
    late = [pod for pod in pods if pod_view(pod, 1).started_at is None]
    late.sort(key=lambda pod: bool(at(pod, "spec", "nodeName")))
    return str(at(late[0], "metadata", "name")) if late else None


def uid_of(found: Mapping[str, Any]) -> str:
    """Return the uid of an object; empty if it has none."""
    return str(at(found, "metadata", "uid") or "")


def _state(seen: Seen) -> tuple[SliceState, str, CloudError | None]:
    jobset = seen.jobset
    if at(jobset, "metadata", "deletionTimestamp"):
        left = f", {len(seen.pods)} pod{'s'[: len(seen.pods) != 1]} left" if seen.pods else ""
        finalizers = [str(each) for each in at(jobset, "metadata", "finalizers") or []]
        held = [each for each in finalizers if each != "foregroundDeletion"]
        return SliceState.DELETING, f"Deleting{left}{' held by finalizer ' + ', '.join(held) if held else ''}", None
    again = _may_start_again(jobset)
    pods = [pod_view(pod, hosts_of(jobset)) for pod in seen.pods if not again or _is_current(pod, jobset)]
    if not again and (taken := next((pod for pod in pods if pod.reason in words.TAKEN), None)) is not None:
        text = f"worker{taken.worker} was taken away: {taken.reason}{': ' + taken.message if taken.message else ''}"
        return SliceState.TOMBSTONE, taken.reason, Preempted(text)
    ended = _ended(jobset)
    if not ended and (refusal := _refusal(seen)) is not None:
        return SliceState.TOMBSTONE, "Refused", refusal
    if is_suspended(jobset) and not ended:  # also of pods that Kueue is stopping
        if (over := condition(seen.workload or {}, "Evicted")) and MAX_EXECUTION in str(over.get("reason")):
            lost = SliceLost(f"Kueue ended it: {over.get('message')}", reason="deadline")
            return SliceState.TOMBSTONE, str(over.get("reason")), lost
        if too_large := words.exceeds_quota(seen.workload):
            never = QuotaError(f"Kueue can never admit it: {too_large}", hint=words.RAISE)
            return SliceState.TOMBSTONE, "Suspended", never
        return SliceState.QUEUED, f"Suspended: {_unqueued(seen) or words.for_kueue(seen.workload, seen.unread)}", None
    started = [pod for pod in pods if pod.started_at is not None]
    if len(started) >= pods_of(jobset):
        return SliceState.READY, "Finished" if all(pod.phase.ended for pod in pods) else "Running", None
    if has_failed(jobset):
        return _failed(seen, pods)
    if ended:
        return SliceState.READY, "Completed", None
    return _waiting(seen, pods)


def _failed(seen: Seen, pods: Sequence[PodView]) -> tuple[SliceState, str, CloudError | None]:
    """A JobSet that failed. If its pods have ended, they tell how; a Job whose time is over has deleted them."""
    over = next(
        (found for job in seen.jobs or () if (found := condition(job, "Failed")) and found.get("reason") == LATE), None
    )
    if over is not None:
        return SliceState.TOMBSTONE, LATE, SliceLost(f"the cluster ended it: {over.get('message')}", reason="deadline")
    if any(pod.phase.ended and pod.started_at is not None for pod in pods):
        return SliceState.READY, words.FAILED, None
    refused = next((pod for pod in pods if pod.phase is PodPhase.FAILED and pod.reason), None)
    if refused is not None:  # by its node, before it started
        text = f"worker{refused.worker} never started ({refused.reason}){': ' + refused.message if refused.message else ''}"
        return SliceState.TOMBSTONE, refused.reason, SliceLost(text)
    message = (condition(seen.jobset, "Failed") or {}).get("message")
    text = f"the JobSet failed, and its pods were deleted, or are gone with their nodes: {message}"
    return SliceState.TOMBSTONE, words.FAILED, SliceLost(text)


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
        why = words.for_nodes(next((pod.message for pod in homeless if pod.message), ""), seen.events)
        run = f", {started} run" if started else ""
        late = f"{total - len(pods) + len(homeless)} of {total} pods have no node{run}"
        if seen.jobs is not None and not seen.jobs and not pods:
            late, why = "", why or words.NO_JOB
        return SliceState.CREATING, ": ".join(filter(None, (words.PENDING, late, why))), None
    slow = next((pod for pod in pods if pod.started_at is None), None)
    why = slow.reason if slow is not None and slow.reason else "ContainerCreating"
    if said := words.for_start(seen.events):
        why = f"{why}: {said}"
    return SliceState.CREATING, f"Starting ({started} of {total} pods run: {why})", None


def _refusal(seen: Seen) -> CloudError | None:
    """Return what admission refuses for good of the Jobs and pods that are missing.

    A refusal is over if it is from before the JobSet was resumed, or before what it is about was made after all. One that is
    new is not believed: what refuses may only not know yet what was just made, and the cluster tries again.
    """
    pods, slices = pods_of(seen.jobset), number(_replicated(seen.jobset).get("replicas"), 1)
    if len(seen.pods) >= pods:
        return None
    resumed = time_of(at(condition(seen.jobset, "Suspended", "False"), "lastTransitionTime")) or 0.0

    def stands(event: Mapping[str, Any]) -> bool:
        named = refusals.JOB.search(str(event.get("message")))
        job = named[1] if named else str(at(event, "involvedObject", "name"))
        if named and any(at(each, "metadata", "name") == job for each in seen.jobs or ()):
            return False
        said = time_of(words.time_seen(event))
        of_job = [pod for pod in seen.pods if str(at(pod, "metadata", "name")).startswith(f"{job}-")]
        made = [time_of(at(pod, "metadata", "creationTimestamp")) or 0.0 for pod in of_job]
        if said is None:
            return not made
        settled = seen.server_now is None or said + SETTLES_S <= seen.server_now
        # The time of a pod is cut to a whole second.
        return settled and said >= max([resumed, *(each + 1.0 for each in made)])

    events = sorted(filter(stands, seen.events), key=words.time_seen)
    return refusals.of_events(events, pods, slices)


def _unqueued(seen: Seen) -> str:
    """Return that Kueue takes no notice of a job that names a priority; empty if it does, or it names none."""
    named = [" ".join(each) for each in refusals.classes(seen.jobset).items()]
    return f"{words.NO_WORKLOAD}: is there a {named[0]}?" if named and seen.workload is None and not seen.unread else ""


def _cannot_start(pod: PodView, seen: Seen) -> bool:
    if pod.reason in _BAD_IMAGE:
        return True
    if pod.reason in _PULL_FAILS:
        return any(each in pod.message.lower() for each in _FINAL_PULL) or _is_late(pod, seen)
    return pod.reason == _BAD_CONFIG and (_NOT_YET.search(pod.message) is None or _is_late(pod, seen))


def _is_late(pod: PodView, seen: Seen) -> bool:
    """Whether it has had its node for so long that waiting longer does not help."""
    raw = next((each for each in seen.pods if at(each, "metadata", "name") == pod.name), {})
    scheduled = time_of((condition(raw, "PodScheduled") or {}).get("lastTransitionTime"))
    return scheduled is not None and seen.server_now is not None and seen.server_now - scheduled > PATIENCE_S


def _why(pod: Mapping[str, Any], ended: Mapping[str, Any], to_start: Mapping[str, Any]) -> tuple[str, str]:
    """Why a pod waits or how it ended, and the same in a sentence. A disruption comes before what it led to."""
    status, taken = as_dict(pod.get("status")), condition(pod, "DisruptionTarget")
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
    if (homeless := condition(pod, "PodScheduled", "False")) is not None:
        return str(homeless.get("reason") or "Unschedulable"), str(homeless.get("message") or "")
    return "", ""


def _replicated(jobset: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(dicts(at(jobset, "spec", "replicatedJobs"))), {})
