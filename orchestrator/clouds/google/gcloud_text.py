"""The exact gcloud commands that a person can type when tpujob cannot prove that a slice is gone. Pure text."""

from __future__ import annotations

import shlex

from orchestrator.core.lease.slices import SliceName
from orchestrator.core.text import names


def delete_node(name: SliceName) -> str:
    """Of a queued slice the request and its node, in one command."""
    return _line(name, "delete", name.node, *_place(name), *(["--force"] if name.queued else []), "--quiet")


def list_nodes(name: SliceName, run: str | None = None) -> str:
    """What is alive in the slice's zone: of one run (by its label), or of everything that tpujob made."""
    wanted = f"labels.tpujob-lease-id={run}" if run else "labels.tpujob=1"
    if name.queued:  # the labels are those of the nodes in it
        wanted = f"name~/{name.node if run else names.PREFIX}"
    return _line(name, "list", *_place(name), f"--filter={wanted}")


def describe_node(name: SliceName) -> str:
    return _line(name, "describe", name.node, *_place(name))


def _place(name: SliceName) -> tuple[str, str]:
    return f"--zone={name.zone}", f"--project={name.project}"


def _line(name: SliceName, *words: str) -> str:
    return shlex.join(["gcloud", "compute", "tpus", "queued-resources" if name.queued else "tpu-vm", *words])
