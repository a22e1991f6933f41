"""Commands of kubectl that a person may type when tpujob cannot prove that a job left nothing on its cluster."""

import shlex

from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.core.text import names

KINDS = "jobsets,jobs,pods,configmaps,secrets"  # the owner first


def delete_command(name: SliceName, *, lease_id: str) -> str:
    """Return what deletes everything that has the label of the lease, also where the JobSet is gone already."""
    return _command("delete", name, lease_id)


def list_command(name: SliceName, *, lease_id: str) -> str:
    """Return what lists everything that has the label of the lease."""
    return _command("get", name, lease_id)


def _command(verb: str, name: SliceName, lease_id: str) -> str:
    label = f"{names.LEASE_ID}={lease_id}"
    return shlex.join(["kubectl", verb, KINDS, "-n", name.zone, "-l", label, *_context(name)])


def _context(name: SliceName) -> list[str]:
    """The context of the kubeconfig, where the identity of the cluster has one (`places.gke.api.clusters`)."""
    context, at, _ = name.project.rpartition("@")
    return ["--context", context] if at else []
