"""JobSets as one would write them by hand, to see what the control plane makes of them."""

from typing import Any

from tests.cluster.fixture import Cluster
from tests.waiting import until

IMAGE = "registry.example/torch-xla:2.9"
API = "jobset.x-k8s.io/v1alpha2"


def jobset(
    name: str,
    script: str,
    *,
    slices: int = 1,
    hosts: int = 2,
    accelerator: str = "tpu-v5p-slice",
    topology: str = "2x2x2",
    chips: int = 4,
    queue: str = "",
) -> dict[str, Any]:
    """Return a JobSet whose pods run a shell script. With a `queue`, it is Kueue's."""
    place = {"cloud.google.com/gke-tpu-accelerator": accelerator, "cloud.google.com/gke-tpu-topology": topology}
    container = {
        "name": "job",
        "image": IMAGE,
        "command": ["sh", "-c", script],
        "resources": {"requests": {"google.com/tpu": chips}, "limits": {"google.com/tpu": chips}},
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": place,
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
    }
    job = {"parallelism": hosts, "completions": hosts, "completionMode": "Indexed", "backoffLimit": 0}
    return {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue} if queue else {}},
        "spec": {
            "suspend": bool(queue),
            "failurePolicy": {"maxRestarts": 0},
            "coordinator": {"replicatedJob": "slice", "jobIndex": 0, "podIndex": 0},
            "replicatedJobs": [
                {"name": "slice", "replicas": slices, "template": {"spec": job | {"template": {"spec": pod}}}}
            ],
        },
    }


def submit(cluster: Cluster, namespace: str, document: dict[str, Any]) -> None:
    cluster.kubectl("create", "-n", namespace, "-f", "-", given=document)


def ended(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    """Wait for the end of a JobSet, and return the condition that says it."""

    def end() -> dict[str, Any] | None:
        return condition(cluster.get("jobset", name, "-n", namespace), "Completed", "Failed")

    return until(end, f"the end of the JobSet {name}") or {}


def condition(found: dict[str, Any] | None, *kinds: str) -> dict[str, Any] | None:
    """Return the first condition of these kinds that is true."""
    conditions = ((found or {}).get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] in kinds and each["status"] == "True"), None)


def pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """Return the pods, ordered by name."""
    return list(cluster.get("pods", "-n", namespace, "--sort-by=.metadata.name"))


def running(cluster: Cluster, namespace: str, count: int = 2) -> list[dict[str, Any]]:
    """Wait until so many pods run or have ended, and return them."""

    def begun() -> list[dict[str, Any]]:
        return [pod for pod in pods(cluster, namespace) if pod["status"]["phase"] != "Pending"]

    return until(begun, "the pods to run", lambda found: len(found) == count)
