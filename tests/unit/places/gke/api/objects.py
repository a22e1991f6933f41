"""Objects of Kubernetes as its API shows them, with the fields that `places.gke.api.views` reads."""

from typing import Any

LEASE, NODE = "0123456789", "tpujob-abc123-0123456789"
SERVER_NOW = 1_790_000_300.0
CREATED = "2026-09-21T14:13:20Z"  # 1,790,000,000 in unix seconds


def condition(kind: str, *, status: str = "True", reason: str = "Because", message: str = "said why") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": CREATED}


def jobset(*conditions: dict[str, Any], hosts: int = 2, slices: int = 1, **changes: Any) -> dict[str, Any]:
    """Return a JobSet. `changes`: `suspend`, or fields of its metadata."""
    suspend = changes.pop("suspend", False)
    pod = {"nodeSelector": {}, "containers": [{"name": "job"}]}
    job = {"parallelism": hosts, "completions": hosts, "template": {"spec": pod}}
    return {
        "metadata": {
            "name": NODE,
            "namespace": "team",
            "uid": "uid-1",
            "creationTimestamp": CREATED,
            "labels": {"tpujob": "1", "tpujob-lease-id": LEASE},
            "annotations": {"tpujob-life-seconds": "3600", "tpujob-accelerator": "v5litepod-8"},
            **changes,
        },
        "spec": {
            "suspend": suspend,
            "replicatedJobs": [{"name": "slice", "replicas": slices, "template": {"spec": job}}],
        },
        "status": {"conditions": list(conditions)},
    }


def pod(host: int = 0, state: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a pod of that JobSet. `state`: of its container. `changes`: fields of its status, or `slice`, `node`."""
    index, node = changes.pop("slice", 0), changes.pop("node", f"node-{host}")
    return {
        "metadata": {
            "name": f"{NODE}-slice-{index}-{host}-abcde",
            "namespace": "team",
            "uid": f"uid-pod-{index}-{host}",
            "creationTimestamp": CREATED,
            "labels": {
                "tpujob": "1",
                "tpujob-lease-id": LEASE,
                "jobset.sigs.k8s.io/job-index": str(index),
                "batch.kubernetes.io/job-completion-index": str(host),
            },
        },
        "spec": {"nodeName": node} if node else {},
        "status": {
            "phase": "Pending",
            "containerStatuses": [{"name": "job", "state": state}] if state else [],
            **changes,
        },
    }


def running(host: int = 0, **changes: Any) -> dict[str, Any]:
    return pod(host, {"running": {"startedAt": CREATED}}, phase="Running", **changes)


def ended(host: int = 0, rc: int = 0, **changes: Any) -> dict[str, Any]:
    state = {"terminated": {"exitCode": rc, "startedAt": CREATED, "finishedAt": CREATED, "reason": "Completed"}}
    return pod(host, state, phase="Failed" if rc else "Succeeded", **changes)


def waiting(host: int = 0, reason: str = "ContainerCreating", message: str = "", **changes: Any) -> dict[str, Any]:
    return pod(host, {"waiting": {"reason": reason, "message": message}}, **changes)


def homeless(host: int = 0, message: str = "0/3 nodes are available") -> dict[str, Any]:
    return pod(
        host, node="", conditions=[condition("PodScheduled", status="False", reason="Unschedulable", message=message)]
    )
