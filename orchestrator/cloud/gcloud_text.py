"""The exact gcloud commands that a person can type when tpujob cannot prove that a slice is gone. Pure text."""

from __future__ import annotations

import shlex

from orchestrator.core.slices import SliceName

_TPU_VM = ("gcloud", "compute", "tpus", "tpu-vm")


def delete_node(name: SliceName) -> str:
    return _line("delete", name.node, *_place(name), "--quiet")


def list_nodes(name: SliceName, run: str | None = None) -> str:
    """What is alive in the slice's zone: of one run (by its label), or of everything that tpujob made."""
    wanted = f"labels.tpujob-run={run}" if run else "labels.tpujob=1"
    return _line("list", *_place(name), f"--filter={wanted}")


def describe_node(name: SliceName) -> str:
    return _line("describe", name.node, *_place(name))


def _place(name: SliceName) -> tuple[str, str]:
    return f"--zone={name.zone}", f"--project={name.project}"


def _line(*words: str) -> str:
    return shlex.join([*_TPU_VM, *words])
