"""Objects of Kubernetes as its API shows them, and a store of them behind the transport of httpx, with faults by the call."""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

import httpx2

from orchestrator.places.gke.api.kube_api import KubeApi, Rights
from tests.fakes.cluster_jobs import NAME as NODE

Answer = httpx2.Response | Exception
KINDS = {"jobsets", "jobs", "pods", "configmaps", "secrets", "workloads", "namespaces", "events", "nodes"}


def refusal(code: int, reason: str, message: str = "said so") -> httpx2.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}
    return httpx2.Response(code, json=body)


class Store:
    """`instead` may answer a call before the store does; None lets it pass. `sent` has every request."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.instead: Callable[[httpx2.Request], Answer | None] = lambda request: None
        self.after: Callable[[httpx2.Request], Answer | None] = lambda request: None
        self.sent: list[httpx2.Request] = []
        self.page_rows = 500
        self._made = 0

    def api(self, rights: Rights | None = None) -> KubeApi:
        transport = httpx2.MockTransport(self._answer)
        return KubeApi(httpx2.Client(transport=transport, base_url="https://k8s.test"), "k8s.test", rights)

    @property
    def calls(self) -> list[str]:
        return [f"{each.method} {each.url.path}" for each in self.sent]

    def put(self, path: str, found: dict[str, Any]) -> None:
        self.objects[path] = found

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        self.sent.append(request)
        answer = self.instead(request)
        if answer is None:
            done: httpx2.Response = getattr(self, f"_{request.method.lower()}")(path, request)
            answer = self.after(request) or done
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _get(self, path: str, request: httpx2.Request) -> httpx2.Response:
        if path in self.objects:
            return httpx2.Response(200, json=self.objects[path])
        kind = path.rpartition("/")[2]
        if kind not in KINDS:
            return refusal(404, "NotFound", f'"{kind}" not found')
        query = parse_qs(request.url.query.decode())
        wanted = dict(each.split("=", 1) for each in query.get("labelSelector", [""])[0].split(",") if each)
        rows = [
            found
            for place, found in sorted(self.objects.items())
            if place.rpartition("/")[0] == path
            or (path.count("/") == 4 and place.endswith(f"/{kind}/" + place.rpartition("/")[2]))
            if all((found["metadata"].get("labels") or {}).get(key) == value for key, value in wanted.items())
        ]
        if "as=PartialObjectMetadataList" in request.headers.get("accept", "").replace(" ", ""):
            rows = [{"metadata": found["metadata"]} for found in rows]
        begin = int(query.get("continue", ["0"])[0])
        page, rest = rows[begin : begin + self.page_rows], rows[begin + self.page_rows :]
        metadata = {"continue": str(begin + self.page_rows)} if rest else {}
        date = {"date": "Mon, 21 Sep 2026 14:18:20 GMT"}
        return httpx2.Response(200, json={"items": page, "metadata": metadata}, headers=date)

    def _post(self, path: str, request: httpx2.Request) -> httpx2.Response:
        found = json.loads(request.content)
        place = f"{path}/{found['metadata']['name']}"
        if place in self.objects:
            return refusal(409, "AlreadyExists")
        if "dryRun" in request.url.params:
            return httpx2.Response(201, json=found)
        self._made += 1
        self.objects[place] = {**found, "metadata": {**found["metadata"], "uid": f"uid-{self._made}"}}
        return httpx2.Response(201, json=self.objects[place])

    def _delete(self, path: str, request: httpx2.Request) -> httpx2.Response:
        if path not in self.objects:
            return refusal(404, "NotFound")
        if json.loads(request.content)["preconditions"]["uid"] != self.objects[path]["metadata"]["uid"]:
            return refusal(409, "Conflict")
        del self.objects[path]
        return httpx2.Response(200, json={"kind": "Status", "status": "Success"})


LABELS = {"tpujob": "1", "tpujob-lease-id": NODE.rpartition("-")[2]}
NOW = 1_790_000_300.0
THEN = "2026-09-21T14:13:20Z"  # 1,790,000,000 in unix seconds


def condition(kind: str, *, status: str = "True", reason: str = "Because", message: str = "said why") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": THEN}


def jobset(*conditions: dict[str, Any], hosts: int = 2, slices: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a JobSet. `changes`: `suspend`, or fields of its metadata."""
    suspend = changes.pop("suspend", False)
    pod = {"nodeSelector": {}, "containers": [{"name": "job"}]}
    job = {"parallelism": hosts, "completions": hosts, "template": {"spec": pod}}
    replicated = {"name": "slice", "replicas": slices, "template": {"spec": job}}
    return {
        "metadata": {
            "name": NODE,
            "namespace": "team",
            "uid": "uid-1",
            "creationTimestamp": THEN,
            "labels": {**LABELS},
            "annotations": {"tpujob-life-seconds": "3600", "tpujob-accelerator": "v5litepod-8"},
            **changes,
        },
        "spec": {"suspend": suspend, "replicatedJobs": [replicated]},
        "status": {"conditions": list(conditions)},
    }


def pod(host: int = 0, state: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a pod of that JobSet. `state`: of its container. `changes`: fields of its status, or `slice`, `node`."""
    index, node = changes.pop("slice", 0), changes.pop("node", f"node-{host}")
    place = {"jobset.sigs.k8s.io/job-index": str(index), "batch.kubernetes.io/job-completion-index": str(host)}
    containers = [{"name": "job", "state": state}] if state else []
    return {
        "metadata": {
            "name": f"{NODE}-slice-{index}-{host}-abcde",
            "namespace": "team",
            "uid": f"uid-pod-{index}-{host}",
            "creationTimestamp": THEN,
            "labels": {**LABELS, **place},
        },
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": "Pending", "containerStatuses": containers, **changes},
    }


def running(host: int = 0, **changes: Any) -> dict[str, Any]:
    return pod(host, {"running": {"startedAt": THEN}}, phase="Running", **changes)


def ended(host: int = 0, rc: int = 0, **changes: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": rc, "startedAt": THEN, "finishedAt": THEN, "reason": "Completed"}}
    return pod(host, state, phase="Failed" if rc else "Succeeded", **changes)


def waiting(host: int = 0, reason: str = "ContainerCreating", message: str = "", **changes: Any) -> dict[str, Any]:
    return pod(host, {"waiting": {"reason": reason, "message": message}}, **changes)


def homeless(host: int = 0, message: str = "0/3 nodes are available") -> dict[str, Any]:
    return pod(
        host, node="", conditions=[condition("PodScheduled", status="False", reason="Unschedulable", message=message)]
    )
