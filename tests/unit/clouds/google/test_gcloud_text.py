"""The commands that a person is told to type."""

from __future__ import annotations

import shlex
from dataclasses import replace

from orchestrator.clouds.google import gcloud_text
from orchestrator.core.lease.slices import SliceName

NAME = SliceName("acme", "us-west4-a", "tpujob-k3f9ab-7q2m4x1pzt-0")


def test_the_commands_are_those_that_gcloud_takes() -> None:
    assert gcloud_text.delete_node(NAME) == (
        "gcloud compute tpus tpu-vm delete tpujob-k3f9ab-7q2m4x1pzt-0 --zone=us-west4-a --project=acme --quiet"
    )
    assert gcloud_text.list_nodes(NAME, run="7q2m4x1pzt") == (
        "gcloud compute tpus tpu-vm list --zone=us-west4-a --project=acme --filter=labels.tpujob-lease-id=7q2m4x1pzt"
    )
    assert gcloud_text.list_nodes(NAME).endswith("--filter=labels.tpujob=1")


def test_what_a_shell_would_act_on_is_quoted() -> None:
    command = gcloud_text.delete_node(SliceName("example.com:p", "us-west4-a", "a; rm -rf ~"))
    assert shlex.split(command)[5] == "a; rm -rf ~"
    assert "'a; rm -rf ~'" in command


def test_a_queued_slice_is_deleted_with_its_request() -> None:
    queued = replace(NAME, queued=True)
    place = "--zone=us-west4-a --project=acme"
    assert gcloud_text.delete_node(queued) == (
        f"gcloud compute tpus queued-resources delete {NAME.node} {place} --force --quiet"
    )
    assert gcloud_text.describe_node(queued) == f"gcloud compute tpus queued-resources describe {NAME.node} {place}"
    assert gcloud_text.list_nodes(queued, run="7q2m4x1pzt").endswith(f"list {place} '--filter=name~/{NAME.node}'")
    assert gcloud_text.list_nodes(queued).endswith("'--filter=name~/tpujob'")
