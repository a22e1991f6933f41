"""Why a job on a cluster waits, in the words of Kueue, the scheduler and the autoscaler, without what does not help."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import CloudUnavailable
from orchestrator.places.gke.api import refusals
from orchestrator.places.gke.api.fields import at, condition
from orchestrator.places.gke.api.kube_api import of_admission

# Of the clauses of Kueue, those about flavors of other accelerators: a cluster has one for each.
_OTHER_FLAVOR = re.compile(r"flavor \S+ doesn't match node affinity")
# Of the words of the scheduler, what preemption would not change.
_NO_PREEMPTION = re.compile(r"\.? (no new claims to deallocate, )?preemption: .*", re.DOTALL)
_AUTOSCALER = ("NotTriggerScaleUp", "FailedScaleUp", "TriggeredScaleUp")
PENDING, FAILED = "Pending", "Failed"  # what begins, or is, the state of a JobSet
NO_JOB, NO_WORKLOAD = "JobSet has made no Job of it", "Kueue has made no Workload of it"
SILENT = (NO_JOB, NO_WORKLOAD)  # states that are given up soon: the cluster tells the user no more
# Reasons of Kubernetes for pods that it takes away, and how those for pods begin that a node refuses before they start.
TAKEN = ("Evicted", "Preempting", "NodeLost", "NodeShutdown", "Terminated", "Shutdown")
NO_ROOM = ("OutOf", "NodeAffinity", "TopologyAffinityError", "UnexpectedAdmissionError")
RAISE = "the admin of the cluster can give its ClusterQueue that quota"
_NEVER = r"insufficient quota for [^,]*, [^,]*> maximum capacity \([^)]*\)|resource \S+ unavailable in ClusterQueue"
NOT_SEEN = "Kueue has not seen it: is there a LocalQueue of that name in this namespace?"


def for_kueue(workload: Mapping[str, Any] | None, unread: str = "") -> str:
    """Return why Kueue has not admitted a job. None: it made no Workload of it, or `unread` says why that is not known."""
    if workload is None:
        return unread or NOT_SEEN
    evicted, quota, admitted = (
        str((condition(workload, kind, status) or {}).get("message") or "")
        for kind, status in (("Evicted", "True"), ("QuotaReserved", "False"), ("Admitted", "False"))
    )
    said = [evicted, _of_flavors(quota or admitted)]  # why it was sent back comes before why it still waits
    return "; ".join(dict.fromkeys(filter(None, said))) or "waits for Kueue"


def exceeds_quota(workload: Mapping[str, Any] | None) -> str:
    """Return Kueue's words if no flavor that fits a job has a quota as large as it asks for, however free; else empty."""
    waits = condition(workload or {}, "QuotaReserved", "False") or {}
    message = _of_flavors(str(waits.get("message") or ""))
    rest, found = re.subn(_NEVER, "", message.partition(": ")[2])  # before 0.19, the reason is that of any wait
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
        said.append(str(max(asked, key=time_seen).get("message") or ""))
    return "; ".join(filter(None, said))


def _passes(event: Mapping[str, Any]) -> bool:
    """Whether it is admitted later by itself: each large slice begins with pods whose first one has no node yet."""
    return isinstance(of_admission(str(event.get("message"))), CloudUnavailable)


def for_start(events: Sequence[Mapping[str, Any]]) -> str:
    """Return why a pod that has a node does not start, such as a volume that cannot be mounted; empty if nothing is said."""
    warned = [event for event in events if event.get("type") == "Warning" and event.get("reason") != "FailedScheduling"]
    return str(max(warned, key=time_seen).get("message") or "") if warned else ""


def time_seen(event: Mapping[str, Any]) -> str:
    """Return when an event was seen last."""
    seen = at(event, "series", "lastObservedTime")
    return str(seen or event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")
