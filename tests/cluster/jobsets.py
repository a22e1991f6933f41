"""JobSets that run a script without tpujob, to see what the control plane makes of them."""

from dataclasses import replace
from typing import Any

from orchestrator.places.gke.objects.manifest import documents
from tests.cluster.fixture import Cluster
from tests.fakes.cluster_jobs import job
from tests.waiting import until

IMAGE = "registry.example/torch-xla:2.9"


def jobset(name: str, script: str, accelerator: str = "v5p-16", **keys: Any) -> dict[str, Any]:
    """Return a JobSet of the product whose pods run a shell script alone. `keys`: as for `cluster_jobs.job`."""
    found = documents(replace(job(accelerator, **keys), name=name, labels={}))[0]
    del found["metadata"]["namespace"]
    pod = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod |= {"terminationGracePeriodSeconds": 5, "volumes": []}
    pod["containers"][0] |= {"image": IMAGE, "command": ["sh", "-c", script], "volumeMounts": []}
    return found


def submit(cluster: Cluster, namespace: str, document: dict[str, Any]) -> None:
    cluster.kubectl("create", "-n", namespace, "-f", "-", given=document)


def ended(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    """Wait for the end of a JobSet, and return the condition that says it."""
    kinds = ("Completed", "Failed")
    return until(lambda: condition(cluster.get("jobset", name, "-n", namespace), *kinds), f"the end of {name}") or {}


def condition(found: dict[str, Any] | None, *kinds: str) -> dict[str, Any] | None:
    """Return the first condition of these kinds that is true."""
    conditions = ((found or {}).get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] in kinds and each["status"] == "True"), None)


def pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """Return the pods, ordered by name."""
    return cluster.rows("pods", namespace)


def running(cluster: Cluster, namespace: str, count: int = 2) -> list[dict[str, Any]]:
    """Wait until so many pods run or have ended, and return them."""

    def begun() -> list[dict[str, Any]]:
        return [pod for pod in pods(cluster, namespace) if pod["status"]["phase"] != "Pending"]

    return until(begun, "the pods to run", lambda found: len(found) == count)
