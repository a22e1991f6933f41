"""google-cloud-tpu over REST: a node from create to absence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2
from google.protobuf.field_mask_pb2 import FieldMask

from tests.contract.emulator.conftest import ZONE, finish, node_body
from tests.emulator_fixture import Emulator

Create = Callable[..., tpu_v2.Node]
State = tpu_v2.Node.State


def test_a_created_node_is_ready_as_requested(api: tpu_v2.TpuClient, create: Create) -> None:
    made = create(labels={"owner": "ada"}, scheduling_config={"spot": True}, metadata={"a": "b"})
    node = api.get_node(name=made.name)
    assert node == made
    assert (node.state, node.health) == (State.READY, tpu_v2.Node.Health.HEALTHY)
    assert (node.labels["owner"], node.metadata["a"]) == ("ada", "b")
    assert node.scheduling_config.spot
    assert node.accelerator_config.type_ == tpu_v2.AcceleratorConfig.Type.V5LITE_POD
    assert node.accelerator_config.topology == "2x2"
    assert node.api_version == tpu_v2.Node.ApiVersion.V2
    assert node.create_time.timestamp() > 1.7e9
    assert [endpoint.ip_address for endpoint in node.network_endpoints] == ["127.0.0.1"]


def test_a_slice_of_sixteen_chips_has_four_workers_in_order(api: tpu_v2.TpuClient, create: Create) -> None:
    node = create(accelerator_type="v5litepod-16")
    attributes = api.get_guest_attributes(request={"name": node.name}).guest_attributes
    hostnames = [item.value for worker in attributes for item in worker.query_value.items if item.key == "hostname"]
    assert len(node.network_endpoints) == len(attributes) == 4
    assert [name.rpartition("-")[2] for name in hostnames] == ["0", "1", "2", "3"]
    one = api.get_guest_attributes(request={"name": node.name, "query_path": "hostkeys/hostname", "worker_ids": ["2"]})
    assert [[item.value for item in one.guest_attributes[0].query_value.items]] == [[hostnames[2]]]


def test_a_type_may_be_requested_by_number_and_topology(create: Create) -> None:
    config = tpu_v2.AcceleratorConfig(type_=tpu_v2.AcceleratorConfig.Type.V5LITE_POD, topology="2x2")
    assert create(accelerator_type=None, accelerator_config=config).accelerator_type == "v5litepod-4"


def test_lists_are_complete_over_pages_and_zones(api: tpu_v2.TpuClient, create: Create) -> None:
    here, there, everywhere = (f"projects/many-pages/locations/{zone}" for zone in ("us-central1-a", "us-east5-b", "-"))
    names = {create(here).name for _ in range(3)} | {create(there).name}
    pages = list(api.list_nodes(request={"parent": everywhere, "page_size": 1}).pages)
    assert all(len(page.nodes) == 1 for page in pages)
    assert names == {page.nodes[0].name for page in pages}
    assert {node.name for node in api.list_nodes(parent=there)} < names
    assert names.isdisjoint(node.name for node in api.list_nodes(parent=ZONE)), "projects do not see each other"


def test_labels_are_patched_by_mask_and_nothing_else(api: tpu_v2.TpuClient, create: Create) -> None:
    node = create(labels={"keep": "no"}, description="before")
    change = tpu_v2.Node(name=node.name, labels={"held": "yes"}, description="after")
    patched = finish(api.update_node(node=change, update_mask=FieldMask(paths=["labels"])))
    assert dict(patched.labels) == {"held": "yes"}
    assert api.get_node(name=node.name).description == "before"
    with pytest.raises(exceptions.BadRequest, match='Field "acceleratorType" can not be updated'):
        api.update_node(node=change, update_mask=FieldMask(paths=["accelerator_type"]))


def test_external_addresses_can_be_turned_off_and_the_rest_of_the_network_config_stays(
    api: tpu_v2.TpuClient, create: Create
) -> None:
    node = create(network_config=tpu_v2.NetworkConfig(network="mine", enable_external_ips=True))
    change = tpu_v2.Node(name=node.name, network_config=tpu_v2.NetworkConfig(enable_external_ips=False))
    mask = FieldMask(paths=["network_config.enable_external_ips"])
    patched = finish(api.update_node(node=change, update_mask=mask))
    assert (patched.network_config.enable_external_ips, patched.network_config.network) == (
        False,
        node.network_config.network,
    )


def test_disks_are_attached_as_gcloud_does_it(api: tpu_v2.TpuClient, create: Create, shared_emulator: Emulator) -> None:
    node = create()
    disk = {"sourceDisk": "projects/p/zones/z/disks/d", "mode": "READ_ONLY", "workerIds": ["0"]}
    path = f"/v2alpha1/{node.name}"
    shared_emulator.request("PATCH", f"{path}?updateMask=data_disks", {"dataDisks": [disk]})
    assert shared_emulator.request("GET", path)["dataDisks"] == [disk]
    assert [each.source_disk for each in api.get_node(name=node.name).data_disks] == [disk["sourceDisk"]]
    detached = finish(api.update_node(node=tpu_v2.Node(name=node.name), update_mask=FieldMask(paths=["data_disks"])))
    assert not detached.data_disks


def test_locations_types_and_runtimes_are_those_of_the_catalog(api: tpu_v2.TpuClient) -> None:
    from orchestrator import catalog

    listed = api.list_locations({"name": "projects/emulated"})
    assert {place.location_id for place in listed.locations} == set(catalog.zones())
    assert api.get_location({"name": ZONE}).location_id == "us-central1-a"
    types = [kind.type_ for kind in api.list_accelerator_types(request={"parent": ZONE, "page_size": 3})]
    assert types == list(catalog.types_in_zone("us-central1-a"))
    assert api.get_accelerator_type(name=f"{ZONE}/acceleratorTypes/v5litepod-16").type_ == "v5litepod-16"
    runtimes = [runtime.version for runtime in api.list_runtime_versions(parent=ZONE)]
    assert "v2-alpha-tpuv5-lite" in runtimes
    assert api.get_runtime_version(name=f"{ZONE}/runtimeVersions/{runtimes[0]}").version == runtimes[0]


@pytest.mark.parametrize(("node_id", "fields", "message"), [
    ("Bad_Name", {}, 'Invalid node ID "Bad_Name"'), ("", {}, 'Invalid node ID ""'),
    ("n" * 64, {}, "Invalid node ID"),
    ("x", {"accelerator_type": "v2-8"}, "the accelerator v2-8 was not found in zone us-central1-a"),
    ("x", {"accelerator_type": "v99-1"}, 'accelerator type, "v99-1", could not be found'),
    ("x", {"accelerator_type": ""}, "an accelerator type or an accelerator configuration is required"),
    ("x", {"runtime_version": "v0"}, 'The runtime version "v0" could not be found'),
    ("x", {"runtime_version": "v2-alpha-tpuv6e"},
     'The runtime version "v2-alpha-tpuv6e" does not support "v5litepod-4"'),
    ("x", {"runtime_version": "tpu-ubuntu2204-base"}, 'does not support "v5litepod-4"'),
    ("x", {"accelerator_config": {"type": "V6E", "topology": "2x2"}}, "the accelerator config (V6E) differ"),
    ("x", {"accelerator_config": {"type": "V5LITE_POD", "topology": "2x4"}}, "the accelerator config (2x4) differ"),
    ("x", {"labels": {"Big": "a"}}, 'Invalid label key "Big"'),
    ("x", {"labels": {"a": "A b"}}, 'Invalid value "A b" of label "a"'),
])  # fmt: skip
def test_a_wrong_create_is_refused_and_creates_nothing(
    api: tpu_v2.TpuClient, node_id: str, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(exceptions.BadRequest) as refusal:
        api.create_node(parent=ZONE, node_id=node_id, node=node_body(**fields))
    assert message in refusal.value.message
    assert not [node for node in api.list_nodes(parent=ZONE) if node.name == f"{ZONE}/nodes/{node_id}"]
