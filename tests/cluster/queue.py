"""What the admin of a cluster sets up for TPU jobs: a user's rights, Kueue's flavors, priorities and queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cluster.plane.control_plane import ControlPlane

NAMESPACE, QUEUE = "default", "tpu"
ACCELERATORS = ("tpu-v4-podslice", "tpu-v5-lite-podslice", "tpu-v5p-slice", "tpu-v6e-slice", "tpu7x")
QUOTA = 64  # chips of each accelerator
PRIORITIES = {"low": 100, "high": 1000}
COVERED = ("google.com/tpu", "cpu", "memory")
KUEUE = "kueue.x-k8s.io/v1beta1"
GROUP = "tpujob-users"


def install(plane: ControlPlane) -> None:
    """Create flavors, priorities, the queue of the namespace `default`, and give the users' group its rights."""
    binding = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": GROUP}],
    }
    plane.apply(_object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", GROUP) | binding)
    for accelerator in ACCELERATORS:
        labels = {"nodeLabels": {"cloud.google.com/gke-tpu-accelerator": accelerator}}
        tolerations = {"tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]}
        plane.apply(_object(KUEUE, "ResourceFlavor", accelerator) | {"spec": labels | tolerations})
    for name, value in PRIORITIES.items():
        plane.apply(_object(KUEUE, "WorkloadPriorityClass", name) | {"value": value, "description": f"{name} priority"})
    for document in queues(NAMESPACE, QUOTA):
        plane.apply(document)


def queues(namespace: str, chips: int) -> tuple[dict[str, Any], ...]:
    """Return the ClusterQueue and the LocalQueue `tpu` of a namespace, with so many chips of each accelerator."""
    quota = {"google.com/tpu": str(chips), "cpu": "10000", "memory": "100Ti"}
    flavors = [
        {"name": accelerator, "resources": [{"name": name, "nominalQuota": quota[name]} for name in COVERED]}
        for accelerator in ACCELERATORS
    ]
    spec = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceGroups": [{"coveredResources": list(COVERED), "flavors": flavors}],
        "preemption": {"withinClusterQueue": "LowerPriority"},
    }
    return (
        _object(KUEUE, "ClusterQueue", f"tpu-{namespace}") | {"spec": spec},
        _object(KUEUE, "LocalQueue", QUEUE, namespace) | {"spec": {"clusterQueue": f"tpu-{namespace}"}},
    )


def _object(version: str, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
    place = {"namespace": namespace} if namespace else {}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **place}}
