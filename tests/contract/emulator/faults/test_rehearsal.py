"""Capacity, quota and whole rehearsals through the real daemon, for clients and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

from tests.cli_fixture import Tpujob
from tests.contract.emulator.conftest import ZONE, client_for, finish, node_body
from tests.emulator_fixture import Emulator

REHEARSAL = """\
settings: {provision_s: 0, accept_s: 0, queue_s: 0}
locations: [us-central1-*, us-east5-b]
capacity:
  - {zone: us-central1-a, type: v5litepod-8}                    # none, for ever
  - {zone: us-central1, type: v5e, chips: 4, tier: on-demand}   # one node of four chips
quotas:
  - {name: TPUV6EPerProjectPerRegionForTPUAPI, type: v6e, per: region, limit: 0}
reservations:
  - {name: ours, zone: us-east5-b, type: v6e-*, chips: 8}
closed_queues:
  - {zone: us-east5-b, type: v6e, tier: spot}
creates_per_minute: 91
faults:
  - {kind: lost_reply, operation: nodes.create, when: {calls: 100}}
"""


@pytest.fixture
def api(emulator: Emulator) -> Iterator[tpu_v2.TpuClient]:
    import yaml

    emulator.request("PUT", "/_emulator/rehearsal", yaml.safe_load(REHEARSAL))
    yield client_for(emulator)


def test_clients_meet_a_rehearsal(api: tpu_v2.TpuClient, emulator: Emulator) -> None:
    east = ZONE.replace("us-central1-a", "us-east5-b")
    assert [place.location_id for place in api.list_locations({"name": "projects/emulated"}).locations] == [
        *("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-east5-b")
    ]
    for parent in ("europe-west4-a", "us-east5-a"):
        with pytest.raises(exceptions.Forbidden, match="Permission denied on 'locations/") as denied:
            api.list_nodes(parent=f"projects/emulated/locations/{parent}")
        assert denied.value.reason == "LOCATION_POLICY_VIOLATED"

    finish(api.create_node(parent=ZONE, node_id="one", node=node_body()))
    with pytest.raises(exceptions.ResourceExhausted, match="There is no more capacity in the zone") as stockout:
        finish(api.create_node(parent=ZONE, node_id="two", node=node_body()))
    assert stockout.value.code == 429  # google-cloud-tpu has one exception for both: hence the message
    finish(api.create_node(parent=ZONE, node_id="spot", node=node_body(scheduling_config={"spot": True})))

    wanted = tpu_v2.Node(accelerator_type="v6e-8", runtime_version="v2-alpha-tpuv6e")
    with pytest.raises(
        exceptions.TooManyRequests, match=r"Quota limit 'TPUV6EPerProject.* Limit: 0 in region us-east5"
    ):
        api.create_node(parent=east, node_id="three", node=wanted)
    emulator.request("PUT", "/_emulator/rehearsal", {"closed_queues": [{"type": "v6e"}]})
    row = {"tpu": {"node_spec": [{"parent": east, "node_id": "q", "node": wanted}]}}
    with pytest.raises(exceptions.PermissionDenied, match="permission to submit requests into this queue"):
        finish(api.create_queued_resource(parent=east, queued_resource_id="q", queued_resource=row))


def test_reservations_are_listed(emulator: Emulator, api: tpu_v2.TpuClient) -> None:
    listed = emulator.request("GET", "/v2alpha1/projects/emulated/locations/us-east5-b/reservations")
    assert [row["name"] for row in listed["reservations"]] == [
        "projects/emulated/locations/us-east5-b/reservations/ours"
    ]


def test_the_commands_set_capacity_and_begin_and_end_rehearsals(tpujob: Tpujob) -> None:
    def says(*words: str, **more: Any) -> str:
        done = tpujob("emulator", *words, **more)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    assert says("capacity", "list") == "enough of everything\n"
    assert says("capacity", "set", "us-central1-a/v5litepod-8", "none", "--until", "2m").startswith(
        "us-central1-a/v5litepod-8\tany\tnone\tnow for "
    )
    lines = says("capacity", "set", "*/*", "8", "--tier", "spot", "--from", "30m").splitlines()
    assert lines[1].startswith("*/*\tspot\t0 of 8 chips\tin 30 m")
    says("capacity", "set", "us-east5/v6e", "all")
    assert [row["chips"] for row in json.loads(says("capacity", "list", "--json"))["capacity"]] == [0, 8, None]
    assert says("capacity", "clear") == "enough of everything\n"

    path = tpujob.directory / "rehearsal.yaml"
    path.write_text(REHEARSAL)
    assert "capacity\t2\n" in says("rehearse", str(path))
    assert json.loads(says("rehearse", "--json"))["creates_per_minute"] == 91
    assert says("rehearse", "--end") == "faults\t0\n"
