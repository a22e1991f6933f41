"""Why a job on a cluster waits, in the words of Kueue, the scheduler and the autoscaler, without what does not help. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

# Of the clauses of Kueue, those about flavors of other accelerators: a cluster has one for each.
_OTHER_FLAVOR = re.compile(r"flavor \S+ doesn't match node affinity")
# Of the words of the scheduler, what preemption would not change.
_NO_PREEMPTION = re.compile(r"\.? (no new claims to deallocate, )?preemption: .*", re.DOTALL)
_REFUSED = "FailedCreate"  # by an admission rule, a quota, or for a service account that does not exist
_FOLLOWER = "follower pod node selector"
_AUTOSCALER = ("NotTriggerScaleUp", "FailedScaleUp", "TriggeredScaleUp")
NOT_SEEN = "Kueue has not seen it: is there a LocalQueue of that name in this namespace?"


def for_kueue(workload: Mapping[str, Any] | None, unread: str = "") -> str:
    """Return why Kueue has not admitted a job. None: it made no Workload of it, or `unread` says why that is not known."""
    if workload is None:
        return unread or NOT_SEEN
    evicted, quota, admitted = (
        _message(workload, kind, status)
        for kind, status in (("Evicted", "True"), ("QuotaReserved", "False"), ("Admitted", "False"))
    )
    said = [evicted, _of_flavors(quota or admitted)]  # why it was sent back comes before why it still waits
    return "; ".join(dict.fromkeys(filter(None, said))) or "waits for Kueue"


def _message(workload: Mapping[str, Any], kind: str, status: str) -> str:
    for condition in workload.get("status", {}).get("conditions") or ():
        if condition.get("type") == kind and condition.get("status") == status:
            return str(condition.get("message") or "")
    return ""


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
    asked = [event for event in events if event.get("reason") in (*_AUTOSCALER, _REFUSED) and not _passes(event)]
    if asked:
        said.append(str(max(asked, key=_time).get("message") or ""))
    return "; ".join(filter(None, said))


def _passes(event: Mapping[str, Any]) -> bool:
    """Whether JobSet refused a pod only because the first pod of its slice had no node yet: each large slice begins so."""
    return _FOLLOWER in str(event.get("message"))


def for_start(events: Sequence[Mapping[str, Any]]) -> str:
    """Return why a pod that has a node does not start, such as a volume that cannot be mounted; empty if nothing is said."""
    warned = [event for event in events if event.get("type") == "Warning" and event.get("reason") != "FailedScheduling"]
    return str(max(warned, key=_time).get("message") or "") if warned else ""


def _time(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or "")
