"""What a person is told, and may type with gcloud, where tpujob cannot prove or delete something itself."""

import shlex

from orchestrator.promise.lease.lease import SliceName
from orchestrator.text import names

MAY = "may be billing"


def where(name: SliceName) -> str:
    """Return zone and project."""
    return f"{name.zone}, project {name.project}"


def delete_command(name: SliceName, lease_id: str | None = None) -> str:
    """Return the gcloud command that deletes the slice; of a queued one the request and its node."""
    return _gcloud(name, "delete", name.node, *_place(name), *(["--force"] if name.queued else []), "--quiet")


def look_commands(name: SliceName, lease_id: str) -> tuple[str, str]:
    """Return the gcloud commands that show the slice, and that list what its zone has of its lease, by label."""
    wanted = f"labels.{names.LEASE_ID}={lease_id}"
    if name.queued:  # the labels are those of the nodes in it
        wanted = f"name~/{name.node}"
    return (
        _gcloud(name, "describe", name.node, *_place(name)),
        _gcloud(name, "list", *_place(name), f"--filter={wanted}"),
    )


def _place(name: SliceName) -> tuple[str, str]:
    return f"--zone={name.zone}", f"--project={name.project}"


def _gcloud(name: SliceName, *arguments: str) -> str:
    return shlex.join(["gcloud", "compute", "tpus", "queued-resources" if name.queued else "tpu-vm", *arguments])
