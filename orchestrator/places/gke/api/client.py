"""A cluster as a `Cloud`: a JobSet is a slice, its namespace the zone, and the cluster the project.

The control plane answers `get` and `list` from a quorum of its store, so what it has accepted is visible at once. Absence is
that of the JobSet and of everything that was made for it: Jobs, Pods, the ConfigMap and the Secret.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from orchestrator import errors
from orchestrator.places.gke.api import refusals, views
from orchestrator.places.gke.api.clusters import PLUGIN_S
from orchestrator.places.gke.api.kube_api import KUEUE, KubeApi, NotFound, Rows, path_of
from orchestrator.places.gke.api.pods import JobSetPods
from orchestrator.places.gke.objects.manifest import QUEUE
from orchestrator.places.gke.objects.nodes import NodeView
from orchestrator.promise.lease import periods
from orchestrator.promise.lease.cloud_api import (
    EVERYWHERE,
    Capabilities,
    Listing,
    Operation,
    SliceRequest,
    SliceView,
    WorkerAddress,
    always,
)
from orchestrator.promise.lease.lease import SliceName
from orchestrator.text import names

JOB_UID = "kueue.x-k8s.io/job-uid"  # of a Workload
OURS = f"{names.PREFIX}=1"
NEED_NO_TPU = ("configmaps", "secrets")
KINDS = ("jobsets", "jobs", "pods", "configmaps", "secrets")  # what a job makes, in the order of owners
BEGUN_WITHIN_S = 40.0  # of a create: a later request is left to the next try
# From the record of a create to the last effect that it can have: its last request begins, is signed, connects and is sent
# (15 s, twice), and the server drops it after 60 s.
SETTLES_S = BEGUN_WITHIN_S + PLUGIN_S + 30.0 + 60.0 + 20.0
# What a run does in its namespace, by kind; docs/gke.md has the Role.
RIGHTS = {
    "jobsets": ("create", "get", "list", "delete"),
    "jobs": ("list",),
    "pods": ("list",),
    "pods/log": ("get",),
    "configmaps": ("create", "get", "delete"),
    "secrets": ("create", "get", "delete"),
}


class ClusterCloud:
    """`open_api` connects to a cluster by its identity, as leases have it in the place of a project."""

    def __init__(self, open_api: Callable[[str], KubeApi]) -> None:
        self._open = open_api
        self._apis: dict[str, KubeApi] = {}
        self.capabilities = Capabilities(visible_within_s=SETTLES_S, settles_within_s=SETTLES_S, timings=periods.GOOGLE)

    def api(self, project: str) -> KubeApi:
        """Return the connection to a cluster. Raises CloudError, also where the kubeconfig has that cluster no more."""
        if project not in self._apis:
            try:
                self._apis[project] = self._open(project)
            except errors.ConfigError as error:  # of one lease: those on other clusters are not concerned
                raise errors.CloudError(error.message, hint=error.hint, exit_code=error.exit_code) from error
        return self._apis[project]

    def check(self, project: str, manifests: Sequence[Mapping[str, Any]]) -> None:
        """Raise what the cluster is known to refuse of these objects, and of what it makes of them. Creates nothing.

        AuthError names every right that is missing for a run. BadRequest and QuotaError have the words of what refuses it.
        Where the server does not say, the run finds out.
        """
        api, namespace = self.api(project), manifests[0]["metadata"]["namespace"]
        secrets = any(each["kind"] == "Secret" for each in manifests)
        asked = [(verb, kind) for kind, verbs in RIGHTS.items() if secrets or kind != "secrets" for verb in verbs]

        def is_refused(right: tuple[str, str]) -> bool:
            try:
                return not api.may(namespace, *right)
            except errors.CloudError:
                return False

        with ThreadPoolExecutor(len(asked)) as pool:
            refused = pool.map(is_refused, asked)
        missing = [" ".join(right) for right, is_so in zip(asked, refused, strict=True) if is_so]
        if missing:
            text = f"you may not {', '.join(missing)} in namespace {namespace} of {api.server}; nothing was created"
            raise errors.AuthError(text, hint="docs/gke.md has the Role that a run needs")
        refusals.check(api, manifests[0])

    def create(self, request: SliceRequest, in_time: Callable[[], bool] = always) -> Operation:
        """Create the JobSet, then what it needs, which it owns. Sent again, it continues where it was broken off."""
        began = time.monotonic()
        api, name = self.api(request.name.project), request.name
        jobset, *others = request.manifests
        if not in_time():
            raise errors.NotSent("the JobSet was not sent: this machine, or tpujob, stood still before it")
        try:
            made = api.post(path_of("jobsets", name.zone), jobset)
        except errors.AlreadyExists:
            made = api.get(path_of("jobsets", name.zone, name.node))
            if _label(made, names.LEASE_ID) != request.labels.get(names.LEASE_ID):
                raise
        except NotFound as error:  # of the namespace
            raise errors.BadRequest(f"the cluster has no namespace {name.zone}: {error.message}") from error
        for other in others:
            if time.monotonic() - began > BEGUN_WITHIN_S:
                raise errors.CloudUnavailable(f"{api.server} is slow: the {other['kind']} is not made yet")
            self._create_owned(api, name, other, made)
        return Operation(f"jobset/{views.uid_of(made)}", done=True, verb="create", target=name.node)

    def _create_owned(
        self, api: KubeApi, name: SliceName, manifest: Mapping[str, Any], owner: Mapping[str, Any]
    ) -> None:
        whose = {"kind": "JobSet", "name": owner["metadata"]["name"], "uid": views.uid_of(owner)}
        owners = [{"apiVersion": "jobset.x-k8s.io/v1alpha2", **whose}]
        metadata = {**manifest["metadata"], "ownerReferences": owners}
        try:
            api.post(path_of(_collection(manifest), name.zone), {**manifest, "metadata": metadata})
        except errors.AlreadyExists as error:
            found = api.get(path_of(_collection(manifest), name.zone, name.node))
            if not any(each.get("uid") == views.uid_of(owner) for each in found["metadata"].get("ownerReferences", [])):
                raise errors.WrongState(f"{error.message}, and is not of this JobSet") from error

    def get(self, name: SliceName) -> SliceView | None:
        """Return the JobSet, or what is left of it; None once nothing is."""
        api = self.api(name.project)
        try:
            jobset = api.get(path_of("jobsets", name.zone, name.node))
        except NotFound:
            left = {kind: found for kind, found in self._left(name).items() if found}
            return views.leftovers_view(name, left, _lease_of(name)) if left else None
        pods = api.list(path_of("pods", name.zone), labels=_of_lease(name))
        workload, unread = None, ""
        if _label(jobset, QUEUE):
            made, unread = self._workloads(name.project, name.zone, f"{JOB_UID}={views.uid_of(jobset)}")
            workload = next(iter(made), None)
        failed = views.has_failed(jobset)
        jobs = api.list(path_of("jobs", name.zone), labels=_of_lease(name)).items if failed or not pods.items else None
        events = () if failed else self._events_about_waiting(name, jobset, pods.items, jobs)
        seen = views.Seen(jobset, pods.items, jobs, events, workload, unread, pods.server_now)
        return views.slice_view(seen, name)

    def _events_about_waiting(
        self, name: SliceName, jobset: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], jobs: Sequence[Any] | None
    ) -> tuple[dict[str, Any], ...]:
        """The events about a pod that has not started, and about what is refused in place of Jobs and pods that are missing.

        None if they may not be read.
        """
        found: list[dict[str, Any]] = []
        events = partial(self.api(name.project).list, path_of("events", name.zone))
        with suppress(errors.AuthError, errors.BadRequest):
            if (late := views.waiting_pod(pods)) is not None:
                found += events(fields=f"involvedObject.kind=Pod,involvedObject.name={late}").items
            if len(pods) < views.pods_of(jobset) and not (views.is_suspended(jobset) and jobs):
                warned = events(fields="type=Warning,involvedObject.kind!=Pod").items
                found += (e for e in warned if f"{e['involvedObject'].get('name')}-".startswith(f"{name.node}-"))
        return tuple(found)

    def _workloads(self, project: str, namespace: str, labels: str = "") -> tuple[Sequence[dict[str, Any]], str]:
        """The Workloads that Kueue made, for JobSets and others; and why they cannot be read, else empty."""
        for version in KUEUE:
            try:
                return self.api(project).list(path_of("workloads", namespace, kueue=version), labels=labels).items, ""
            except errors.AuthError as error:
                return (), f"why may not be read: {error.message}"
            except (errors.BadRequest, NotFound):  # it does not serve this version
                continue
        return (), "the cluster does not know Workloads: is Kueue installed?"

    def _left(self, name: SliceName) -> dict[str, tuple[dict[str, Any], ...]]:
        """What carries the label of the lease though the JobSet is gone, by kind."""
        return {kind: self._listed(name.project, kind, name.zone, _of_lease(name)).items for kind in KINDS[1:]}

    def _listed(self, project: str, kind: str, namespace: str, labels: str) -> Rows:
        """Return the objects of a kind. Few may list Secrets: what needs no TPU and may not be read is taken for none.

        What it holds, a MiB each, is not fetched: where it is and whose it is stand in its metadata.
        """
        contents = kind not in NEED_NO_TPU
        try:
            return self.api(project).list(path_of(kind, namespace), labels=labels, contents=contents)
        except errors.AuthError:
            if kind in NEED_NO_TPU:
                return Rows((), None)
            raise

    def list(self, project: str, zone: str, queued: bool = False) -> Listing[SliceView]:
        """Return every JobSet of tpujob in the namespace, and what is left of those that are gone.

        JobSets are read last: what was made for one that is created meanwhile would count as left by one that is gone.
        """
        namespace = "" if zone == EVERYWHERE else zone
        lists = {kind: self._listed(project, kind, namespace, OURS) for kind in reversed(KINDS)}
        found: dict[tuple[str, str], SliceView] = {}
        left: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
        pods: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for pod in lists["pods"].items:
            pods.setdefault(_place(pod), []).append(pod)
        rows: Sequence[dict[str, Any]] = ()
        unread = ""
        if any(views.is_suspended(jobset) and _label(jobset, QUEUE) for jobset in lists["jobsets"].items):
            try:
                rows, unread = self._workloads(project, namespace)
            except errors.CloudError as error:  # of Kueue alone: what there is has to be seen all the same
                unread = f"why cannot be read: {error.message}"
        workloads = {_label(row, JOB_UID): row for row in rows}
        for jobset in lists["jobsets"].items:
            place = _place(jobset)
            name = SliceName(project, place[0], str(jobset["metadata"]["name"]), queued=True)
            workload, now = workloads.get(views.uid_of(jobset)), lists["jobsets"].server_now
            seen = views.Seen(jobset, pods.get(place, []), workload=workload, unread=unread, server_now=now)
            found[place] = views.slice_view(seen, name)
        for kind in KINDS[1:]:
            for each in lists[kind].items:
                if (place := _place(each)) not in found:
                    left.setdefault(place, {}).setdefault(kind, []).append(each)
        for place, objects in left.items():
            node = names.PREFIX + "-" + place[1]  # its own name is gone with it
            found[place] = views.leftovers_view(SliceName(project, place[0], node, queued=True), objects, place[1])
        return Listing(tuple(found.values()), (), lists["jobsets"].server_now)

    def delete(self, name: SliceName) -> Operation | None:
        """Delete the JobSet by its uid, in the foreground: it goes last, after its Jobs and Pods."""
        api = self.api(name.project)
        try:
            found = api.get(path_of("jobsets", name.zone, name.node))
            if _label(found, names.LEASE_ID) != _lease_of(name):
                text = f"a JobSet named {name.node} exists that is not of this lease: it is not deleted"
                raise errors.WrongState(text)
            api.delete(path_of("jobsets", name.zone, name.node), views.uid_of(found))
            return Operation(f"jobset/{views.uid_of(found)}", done=False, verb="delete", target=name.node)
        except NotFound:
            return self._delete_left(name)

    def _delete_left(self, name: SliceName) -> Operation | None:
        """Delete what the JobSet left: made after it was gone, or by `kubectl apply`, and owned by nothing."""
        api, deleted = self.api(name.project), False
        for kind, rows in self._left(name).items():
            for row in rows:
                if not row["metadata"].get("deletionTimestamp"):
                    try:
                        api.delete(
                            path_of(kind, name.zone, row["metadata"]["name"]), views.uid_of(row), foreground=False
                        )
                    except NotFound:
                        continue
                deleted = True
        return Operation(f"left/{name.node}", done=False, verb="delete", target=name.node) if deleted else None

    def operation(self, name: str) -> Operation | None:
        """Return a create as done: the server replies once it is. None for a delete: only a `get` tells how far it is."""
        kind, _, uid = name.partition("/")
        return Operation(name, done=True, verb="create") if kind == "jobset" and uid else None

    def operations(self, project: str, zone: str) -> Listing[Operation]:
        return Listing(())

    def workers(self, name: SliceName) -> tuple[WorkerAddress, ...]:
        """Return the pods in the order of workers; `host` is the pod's name, `instance` that of its node.

        Of a JobSet that failed, those that are left: they failed. Raises WrongState if others are missing.
        """
        jobset = self._jobset(name)
        found, count = self._pods(name, jobset).pods(), views.pods_of(jobset)
        if len(found) < (1 if views.has_failed(jobset) else count):
            raise errors.WrongState(f"{len(found)} of {count} pods of {name.node} exist")
        return tuple(WorkerAddress(pod.worker, pod.name, instance=pod.node) for pod in found)

    def pods(self, name: SliceName) -> JobSetPods:
        """Return what tells of the JobSet's pods, and gives their logs. Raises Vanished if there is no such JobSet."""
        return self._pods(name, self._jobset(name))

    def _pods(self, name: SliceName, jobset: Mapping[str, Any]) -> JobSetPods:
        return JobSetPods(self.api(name.project), name, views.hosts_of(jobset), _of_lease(name))

    def _jobset(self, name: SliceName) -> dict[str, Any]:
        try:
            return self.api(name.project).get(path_of("jobsets", name.zone, name.node))
        except NotFound as error:
            raise errors.Vanished(f"{name.node} does not exist in {name.zone} (any more)") from error

    def nodes(self, project: str, names: tuple[str, ...]) -> tuple[NodeView, ...]:
        """Return those of these nodes that exist, each with whether other pods on it ask for TPUs. Raises AuthError."""
        api = self.api(project)
        there = [row for row in api.list("/api/v1/nodes").items if str(row["metadata"]["name"]) in names]
        if not there:
            return ()
        users = api.list("/api/v1/pods").items
        return tuple(views.node_view(row, users) for row in there)

    def guest_attributes(self, name: SliceName) -> tuple[Mapping[str, str], ...]:
        return ()

    def zones(self, project: str) -> Listing[str]:
        rows = self.api(project).list("/api/v1/namespaces")
        return Listing(tuple(str(row["metadata"]["name"]) for row in rows.items), (), rows.server_now)

    def _refuse(self, *_: Any) -> NoReturn:
        raise errors.BadRequest("a JobSet is no TPU VM: it cannot be started, stopped or labeled anew")

    start = stop = set_labels = let_in = _refuse

    def preview(self, request: SliceRequest) -> dict[str, Any]:
        url = f"https://{self.api(request.name.project).server}{path_of('jobsets', request.name.zone)}"
        return {"method": "POST", "url": url, "body": request.manifests[0]}


def _collection(manifest: Mapping[str, Any]) -> str:
    return f"{str(manifest['kind']).lower()}s"


def _lease_of(name: SliceName) -> str:
    """The id of the lease, with which the name ends (`names.node_name`)."""
    return name.node.rpartition("-")[2]


def _of_lease(name: SliceName) -> str:
    return f"{names.LEASE_ID}={_lease_of(name)}"


def _label(found: Mapping[str, Any], key: str) -> str:
    return str((found.get("metadata", {}).get("labels") or {}).get(key) or "")


def _place(found: Mapping[str, Any]) -> tuple[str, str]:
    """Its namespace and its lease."""
    return str(found["metadata"].get("namespace") or ""), _label(found, names.LEASE_ID)
