"""The gcloud commands that hints contain."""

import shlex
from dataclasses import replace

from orchestrator.core.lease.cloud_api import SliceName
from orchestrator.places.tpu import by_hand

NAME = SliceName("acme", "us-west4-a", "tpujob-k3f9ab-7q2m4x1pzt-0")


def test_the_commands_are_valid_for_gcloud() -> None:
    assert by_hand.delete_command(NAME) == (
        "gcloud compute tpus tpu-vm delete tpujob-k3f9ab-7q2m4x1pzt-0 --zone=us-west4-a --project=acme --quiet"
    )
    assert by_hand.look_commands(NAME, "7q2m4x1pzt")[1] == (
        "gcloud compute tpus tpu-vm list --zone=us-west4-a --project=acme --filter=labels.tpujob-lease-id=7q2m4x1pzt"
    )


def test_shell_characters_are_quoted() -> None:
    command = by_hand.delete_command(SliceName("example.com:p", "us-west4-a", "a; rm -rf ~"))
    assert shlex.split(command)[5] == "a; rm -rf ~"
    assert "'a; rm -rf ~'" in command


def test_a_queued_slice_is_deleted_with_its_request() -> None:
    queued = replace(NAME, queued=True)
    place = "--zone=us-west4-a --project=acme"
    assert by_hand.delete_command(queued) == (
        f"gcloud compute tpus queued-resources delete {NAME.node} {place} --force --quiet"
    )
    assert by_hand.look_commands(queued, "7q2m4x1pzt") == (
        f"gcloud compute tpus queued-resources describe {NAME.node} {place}",
        f"gcloud compute tpus queued-resources list {place} '--filter=name~/{NAME.node}'",
    )
