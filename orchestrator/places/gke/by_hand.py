"""What a person is told, and may type with kubectl, where tpujob cannot prove that a job left nothing on its cluster."""

import shlex

from orchestrator.promise.lease.lease import SliceName
from orchestrator.text import names

MAY = "may still ask for TPUs,"
KINDS = "jobsets,jobs,pods,configmaps,secrets"  # the owner first


def where(name: SliceName) -> str:
    """Return namespace and cluster."""
    return f"JobSet in namespace {name.zone}, {name.project}"


def delete_command(name: SliceName, lease_id: str | None = None) -> str:
    """Return what deletes everything that has the label of the lease, also where the JobSet is gone already.

    Without the id of the lease it is that of the name, which ends with it.
    """
    return _command("delete", name, lease_id or name.node.rpartition("-")[2])


def look_commands(name: SliceName, lease_id: str) -> tuple[str]:
    """Return what lists everything that has the label of the lease."""
    return (_command("get", name, lease_id),)


def _command(verb: str, name: SliceName, lease_id: str) -> str:
    label = f"{names.LEASE_ID}={lease_id}"
    return shlex.join(["kubectl", verb, KINDS, "-n", name.zone, "-l", label, *_context(name)])


def _context(name: SliceName) -> list[str]:
    """The context of the kubeconfig, where the identity of the cluster has one (`places.gke.api.clusters`)."""
    context, at, _ = name.project.rpartition("@")
    return ["--context", context] if at else []
