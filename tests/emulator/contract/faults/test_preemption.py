"""Preemption, maintenance, capacity, quota and whole rehearsals through the real daemon."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

from tests.cli_fixture import Tpujob
from tests.emulator.contract.conftest import ZONE, client_for, fetch, finish, node_body, numbers
from tests.emulator.fixture import Emulator
from tests.waiting import until

SPOT = {"scheduling_config": {"spot": True}}


class Vm:
    """The metadata server of the first worker of a READY spot node."""

    def __init__(self, cloud: Emulator, api: tpu_v2.TpuClient) -> None:
        self.cloud, self.api = cloud, api
        self.node_id = f"taken{next(numbers)}"
        self.name = finish(api.create_node(parent=ZONE, node_id=self.node_id, node=node_body(**SPOT))).name
        self.url = f"http://127.0.0.1:{self.ports()[1]}/computeMetadata/v1/instance"

    def text(self, path: str) -> str:
        return self.reply(path)[0]

    def reply(self, path: str) -> tuple[str, str]:
        status, text, headers = fetch(f"{self.url}/{path}")
        assert status == 200, text
        return text, headers["ETag"]

    def ports(self) -> list[int]:
        """Return the ports on which the node listens."""
        return next(row["ports"] for row in self.cloud.processes() if row["name"] == self.name)

    def act(self, action: str, **body: Any) -> None:
        self.cloud.request("POST", f"/_emulator/nodes/{self.node_id}:{action}", body)

    def shown(self, version: str = "v2") -> dict[str, Any]:
        return dict(self.cloud.request("GET", f"/{version}/{self.name}"))


@pytest.fixture
def vm(shared_emulator: Emulator) -> Iterator[Vm]:
    api = client_for(shared_emulator)
    made = Vm(shared_emulator, api)
    yield made
    shared_emulator.request("DELETE", "/_emulator/rehearsal")
    shared_emulator.patch_settings(notice_s=30, maintenance_s=2)
    if made.name in [node.name for node in api.list_nodes(parent=ZONE)]:
        finish(api.delete_node(name=made.name))


# -- on the VM ----------------------------------------------------------------------------------------------------


def test_a_preemption_is_announced_on_the_vm_before_its_processes_end(vm: Vm) -> None:
    assert vm.text("preempted") == "FALSE"
    _, etag = vm.reply("preempted")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(vm.text, f"preempted?wait_for_change=true&last_etag={etag}")
        vm.act("preempt", notice_s=3600)
    assert (waiting.result(), vm.text("preempted")) == ("TRUE", "TRUE")
    assert vm.api.get_node(name=vm.name).state == tpu_v2.Node.State.READY


def test_a_wait_for_a_change_returns_the_present_value_after_its_timeout_or_if_the_etag_differs(vm: Vm) -> None:
    text, etag = vm.reply("preempted")
    assert vm.reply("preempted?wait_for_change=true&timeout_sec=0") == (text, etag)
    assert vm.reply("preempted?wait_for_change=true&last_etag=0000") == (text, etag)


def test_waiting_for_a_change_does_not_delay_the_end_of_the_vm(vm: Vm) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(vm.text, "attributes/accelerator-type?wait_for_change=true")
        finish(vm.api.delete_node(name=vm.name))
    assert not isinstance(waiting.exception(), TimeoutError), "the wait ends with the VM"


def test_maintenance_is_announced_on_the_vm_and_in_the_api(vm: Vm) -> None:
    assert vm.text("maintenance-event") == "NONE"
    assert '"error"' in vm.text("upcoming-maintenance?alt=json")
    vm.act("maintain", notice_s=3600, lasts_s=5, kind="SCHEDULED")
    assert vm.text("maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE"
    assert '"maintenanceStatus": "PENDING"' in vm.text("upcoming-maintenance?recursive=true")
    for version in ("v2", "v2alpha1"):
        assert vm.shown(version)["upcomingMaintenance"]["type"] == "SCHEDULED"
    # google-cloud-tpu does not have the field, and is strict in operations only.
    change = tpu_v2.Node(name=vm.name, labels={"a": "b"})
    assert dict(finish(vm.api.update_node(node=change, update_mask="labels")).labels) == {"a": "b"}


def test_hosts_in_maintenance_are_off_and_boot_again_after_it(vm: Vm) -> None:
    vm.act("maintain", notice_s=0, lasts_s=1)
    assert vm.shown()["health"] == "UNHEALTHY_MAINTENANCE"
    until(lambda: vm.ports() == [])
    until(vm.shown, wanted=lambda node: node["health"] == "HEALTHY")
    until(lambda: len(vm.ports()) == 2)
    assert vm.text("maintenance-event") == "NONE"


# -- by schedule and by command -----------------------------------------------------------------------------------


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
