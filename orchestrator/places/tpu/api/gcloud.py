"""The gcloud commands that tpujob prints where it cannot prove or delete something itself."""

import shlex

from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.core.text import names


def delete_command(name: SliceName) -> str:
    """Return the gcloud command that deletes the slice; of a queued one the request and its node."""
    return _gcloud(name, "delete", name.node, *_place(name), *(["--force"] if name.queued else []), "--quiet")


def list_command(name: SliceName, lease_id: str | None = None) -> str:
    """Return the gcloud command that lists the slice's zone: nodes of one lease, by label, or all of tpujob."""
    wanted = f"labels.{names.LEASE_ID}={lease_id}" if lease_id else f"labels.{names.PREFIX}=1"
    if name.queued:  # the labels are those of the nodes in it
        wanted = f"name~/{name.node if lease_id else names.PREFIX}"
    return _gcloud(name, "list", *_place(name), f"--filter={wanted}")


def describe_command(name: SliceName) -> str:
    """Return the gcloud command that shows the slice."""
    return _gcloud(name, "describe", name.node, *_place(name))


def _place(name: SliceName) -> tuple[str, str]:
    return f"--zone={name.zone}", f"--project={name.project}"


def _gcloud(name: SliceName, *arguments: str) -> str:
    return shlex.join(["gcloud", "compute", "tpus", "queued-resources" if name.queued else "tpu-vm", *arguments])
