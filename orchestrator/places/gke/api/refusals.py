"""What the admission of a cluster refuses of a job: whether waiting helps, and what it would refuse, asked before it is made.

The words are always those of what refuses it: a policy, a webhook, Pod Security, a quota, a priority that does not exist.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import BadRequest, CloudError, CloudUnavailable, QuotaError
from orchestrator.places.gke.api.kube_api import KubeApi, NotFound, of_admission, path_of
from orchestrator.places.gke.objects.manifest import PRIORITY

REASONS = ("FailedCreate", "JobCreationFailed")  # of events: no pod of a Job, no Job of a JobSet
JOB = re.compile(r'^job "([^"]+)" creation failed')  # in a message of JobSet
_QUOTA = re.compile(r"exceeded quota: \S+, requested: (\S+), used: \S+, limited: (\S+)")
_UNITS = {"": 1.0, "m": 1e-3, **{f"{unit}{i}": float(base**n) for i, base in (("", 1000), ("i", 1024))
    for n, unit in enumerate("KMGTPE", 1)}, "k": 1e3}  # fmt: skip


def of_events(events: Sequence[Mapping[str, Any]], pods: int, jobs: int) -> CloudError | None:
    """Return what admission refuses for good, by the newest event that says anything of it; None if nothing.

    `events`: the oldest first. `pods`, `jobs`: how many the JobSet has.
    """
    for event in reversed(events):
        if event.get("reason") in REASONS:
            said = str(event.get("message")).removeprefix("Error creating: ").partition("\n")[0]
            error = of_admission(said)
            if error is not None and not isinstance(error, CloudUnavailable):
                return error if for_good(error, pods if event["reason"] == REASONS[0] else jobs) else None
    return None


def for_good(error: CloudError | None, count: int) -> bool:
    """Return whether waiting does not help: also of a quota, if it has no room for so many objects however free it is."""
    if not isinstance(error, QuotaError):
        return isinstance(error, BadRequest) and "support dry run" not in error.message
    if (found := _QUOTA.search(error.message)) is None:
        return False
    asked, limits = (dict(each.partition("=")[::2] for each in part.split(",")) for part in found.groups())
    return any(count * _amount(asked[name]) > _amount(limits[name]) for name in asked.keys() & limits.keys())


def _amount(text: str) -> float:
    """Return a quantity of Kubernetes as a number; of another text NaN, which no number exceeds."""
    number = text.rstrip("mkKMGTPEi")
    try:
        return float(number) * _UNITS[text.removeprefix(number)]
    except (ValueError, KeyError):
        return float("nan")


def classes(jobset: Mapping[str, Any]) -> dict[str, str]:
    """Return the priorities that a JobSet names, by kind."""
    labels, job = jobset["metadata"].get("labels") or {}, jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    of_pod = job["template"]["spec"].get("priorityClassName")
    named = {"WorkloadPriorityClass": labels.get(PRIORITY), "PriorityClass": of_pod}
    return {kind: str(name) for kind, name in named.items() if name}


def check(api: KubeApi, jobset: Mapping[str, Any]) -> None:
    """Raise BadRequest or QuotaError for what the cluster would refuse for good of what JobSet makes. Makes nothing.

    Asks as far as this user may: few may read priorities, or create Jobs and Pods. The rest the events tell later.
    """
    for kind, name in classes(jobset).items():
        try:
            api.get(path_of(f"{kind.lower()}es", "", name))
        except NotFound as error:
            if f'"{name}"' in error.message:  # else the version is not served
                raise BadRequest(f"the cluster has no {kind} {name}: {error.message}", hint=_CORRECT[kind]) from error
        except CloudError:
            pass
    space, (replicated,) = jobset["metadata"]["namespace"], jobset["spec"]["replicatedJobs"]
    for kind, document, count in _made_of(jobset, replicated):
        try:
            if api.may(space, "create", kind):
                api.try_post(path_of(kind, space), document)
        except CloudError as error:
            if for_good(error, count):
                raise


_CORRECT = {
    "WorkloadPriorityClass": "correct `gke: {priority: …}`",
    "PriorityClass": "correct `gke: {pod: {priorityClassName: …}}`",
}


def _made_of(jobset: Mapping[str, Any], replicated: Mapping[str, Any]) -> tuple[tuple[str, dict[str, Any], int], ...]:
    """Return a Job and a pod as they are made, as far as admission rules look at them; each with its kind, and how many."""
    template, slices = replicated["template"], int(replicated["replicas"])
    node, part, space = jobset["metadata"]["name"], replicated["name"], jobset["metadata"]["namespace"]
    name, sets = f"{node}-{part}-0", "jobset.sigs.k8s.io"
    more = {f"{sets}/jobset-name": node, f"{sets}/replicatedjob-name": part, f"{sets}/job-index": "0"}
    # Rules against what no controller made look whether there is an owner. Kueue looks up those of the kinds that it knows.
    owners = [{"apiVersion": "batch/v1", "kind": "CronJob", "name": node, "uid": "0", "controller": True}]

    def made(version: str, kind: str, called: str, of: Mapping[str, Any]) -> dict[str, Any]:
        metadata = {**of["metadata"], "name": called, "namespace": space, "ownerReferences": owners}
        metadata["labels"] = {**metadata["labels"], **more}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": of["spec"]}

    job, pod = made("batch/v1", "Job", name, template), made("v1", "Pod", f"{name}-0", template["spec"]["template"])
    return ("jobs", job, slices), ("pods", pod, slices * int(template["spec"]["parallelism"]))
