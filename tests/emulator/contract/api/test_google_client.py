"""Google's clients over REST: nodes and queued resources from create to absence, and the API from discovery."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2
from google.oauth2.credentials import Credentials
from google.protobuf.field_mask_pb2 import FieldMask

from cloud_tpu_emulator.api import api_call
from cloud_tpu_emulator.daemon.control import DaemonRefused
from tests.emulator.contract.conftest import ZONE, Create, client_for, fetch, finish, node_body, numbers
from tests.emulator.fixture import Emulator, running_emulator
from tests.waiting import until

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


discovery = pytest.importorskip("googleapiclient.discovery", reason="google-api-python-client is not installed")
errors = pytest.importorskip("googleapiclient.errors")
discovery_cache = pytest.importorskip("googleapiclient.discovery_cache")
PROJECT = "projects/emulated"


def locations(emulator: Emulator, version: str) -> Any:
    """The client, from the document in its package: no call to Google."""
    options = {"api_endpoint": emulator.url}
    service = discovery.build("tpu", version, credentials=Credentials(emulator.token), client_options=options)
    return service.projects().locations()


@pytest.mark.parametrize("version", ["v2", "v2alpha1"])
def test_every_method_has_the_query_parameters_of_googles_document(shared_emulator: Emulator, version: str) -> None:
    document = json.loads(discovery_cache.get_static_doc("tpu", version))
    assert {name for name in document["parameters"] if not name.startswith("$")} == api_call.SYSTEM
    places, found = document["resources"]["projects"]["resources"]["locations"], {}
    for collection, resource in {"locations": places, **places["resources"]}.items():
        for verb, method in resource["methods"].items():
            names = {name for name, row in method["parameters"].items() if row["location"] == "query"}
            found[f"{collection}.{verb}"] = names
            assert api_call.known(f"{collection}.{verb}", version) == names, (collection, verb)
    assert {method for method in api_call.QUERY if api_call.known(method, version)} - {*found} <= {"reservations.list"}


@pytest.mark.parametrize("version", ["v1", "v2", "v2alpha1"])
def test_catalogs_are_the_same_in_every_version(shared_emulator: Emulator, version: str) -> None:
    api = locations(shared_emulator, version)
    assert ZONE in [place["name"] for place in api.list(name=PROJECT).execute()["locations"]]
    assert api.get(name=ZONE).execute()["locationId"] == "us-central1-a"
    types = api.acceleratorTypes().list(parent=ZONE).execute()["acceleratorTypes"]
    assert api.acceleratorTypes().get(name=types[0]["name"]).execute() == types[0]
    collection = api.tensorflowVersions() if version == "v1" else api.runtimeVersions()
    rows = collection.list(parent=ZONE).execute()
    first = rows["tensorflowVersions" if version == "v1" else "runtimeVersions"][0]
    assert collection.get(name=first["name"]).execute() == first
    assert isinstance(api.operations().list(name=ZONE).execute(), dict)


def test_v1_refuses_to_create_tpu_nodes(shared_emulator: Emulator) -> None:
    api = locations(shared_emulator, "v1")
    assert api.nodes().list(parent=ZONE).execute() == {}
    with pytest.raises(errors.HttpError, match="Please migrate to TPU VM Architecture") as denied:
        api.nodes().create(parent=ZONE, nodeId="old", body={"acceleratorType": "v2-8"}).execute()
    assert denied.value.status_code == 400
    with pytest.raises(errors.HttpError, match="was not found"):
        api.nodes().get(name=f"{ZONE}/nodes/old").execute()


RequestState = tpu_v2.QueuedResourceState.State
QUICK = {"accept_s": 0, "queue_s": 0, "suspend_s": 0, "refuse_s": 0.1}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with running_emulator(tmp_path_factory.mktemp("queue")) as started:
        started.patch_settings(**QUICK)
        yield started


@pytest.fixture
def queued_api(cloud: Emulator) -> Iterator[tpu_v2.TpuClient]:
    client = client_for(cloud)
    yield client
    cloud.request("DELETE", "/_emulator/faults")
    cloud.patch_settings(no_capacity=[], provision_s=0, vm_may=["get", "delete"])
    for row in client.list_queued_resources(parent=ZONE):
        until(
            lambda row=row: client.get_queued_resource(name=row.name).state.state,
            wanted=lambda s: s != RequestState.PROVISIONING,
        )
        finish(client.delete_queued_resource(request={"name": row.name, "force": True}))
    assert not list(client.list_nodes(parent=ZONE))


def body(*node_ids: str, several: int = 0, **fields: Any) -> tpu_v2.QueuedResource:
    specs = [{"parent": ZONE, "node_id": name, "node": node_body()} for name in node_ids]
    if several:
        specs = [{"parent": ZONE, "multislice_params": {"node_count": several}, "node": node_body()}]
    return tpu_v2.QueuedResource(tpu={"node_spec": specs}, **fields)


def ask(queued_api: tpu_v2.TpuClient, queued: tpu_v2.QueuedResource, **more: Any) -> tpu_v2.QueuedResource:
    queue_id = f"q{next(numbers)}"
    output = {"parent": ZONE, "queued_resource_id": queue_id, "queued_resource": queued} | more
    return finish(queued_api.create_queued_resource(request=output))


def becomes(queued_api: tpu_v2.TpuClient, name: str, state: tpu_v2.QueuedResourceState.State) -> tpu_v2.QueuedResource:
    return until(lambda: queued_api.get_queued_resource(name=name), wanted=lambda row: row.state.state == state)


# -- google-cloud-tpu ---------------------------------------------------------------------------------------------


def test_a_request_from_create_to_absence(queued_api: tpu_v2.TpuClient) -> None:
    made = ask(queued_api, body("alone", spot={}, queueing_policy={"valid_until_duration": {"seconds": 600}}))
    assert made.state.state in (RequestState.WAITING_FOR_RESOURCES, RequestState.PROVISIONING, RequestState.ACTIVE)
    row = becomes(queued_api, made.name, RequestState.ACTIVE)
    assert (row.queueing_policy.valid_until_duration.seconds, "spot" in row) == (600, True)
    assert [spec.node_id for spec in row.tpu.node_spec] == ["alone"]
    node = queued_api.get_node(name=f"{ZONE}/nodes/alone")
    assert (node.queued_resource, node.scheduling_config.spot, node.multislice_node) == (made.name, True, False)
    assert made.name in [
        other.name for other in queued_api.list_queued_resources(parent="projects/emulated/locations/-")
    ]
    with pytest.raises(exceptions.BadRequest, match="has nodes"):
        queued_api.delete_queued_resource(name=made.name)
    finish(queued_api.delete_queued_resource(request={"name": made.name, "force": True}))
    for gone in (lambda: queued_api.get_queued_resource(name=made.name), lambda: queued_api.get_node(name=node.name)):
        with pytest.raises(exceptions.NotFound):
            gone()


def test_a_reset_restarts_the_nodes(queued_api: tpu_v2.TpuClient) -> None:
    made = ask(queued_api, body("again"))
    becomes(queued_api, made.name, RequestState.ACTIVE)
    before = queued_api.get_node(name=f"{ZONE}/nodes/again")
    assert finish(queued_api.reset_queued_resource(request={"name": made.name})).state.state == RequestState.ACTIVE
    after = queued_api.get_node(name=before.name)
    assert (after.id, after.state) == (before.id, tpu_v2.Node.State.READY)


# -- raw JSON -----------------------------------------------------------------------------------------------------


def test_v2alpha1_has_its_own_fields_for_several_nodes_and_models(
    cloud: Emulator, queued_api: tpu_v2.TpuClient
) -> None:
    parent = f"/v2alpha1/{ZONE}/queuedResources"
    node = {"accelerator_type": "v5litepod-4", "runtime_version": "v2-alpha-tpuv5-lite"}  # as in old scripts
    spec = {"node": node, "multiNodeParams": {"nodeCount": "2", "nodeIdPrefix": "m", "workloadType": 1}}
    asked = {"tpu": {"nodeSpec": [spec]}, "provisioningModel": "STANDARD", "spot": {}, "bestEffort": None}
    operation = cloud.request("POST", f"{parent}?queued_resource_id=alpha", asked)
    assert operation["metadata"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2alpha1.OperationMetadata"
    becomes(queued_api, f"{ZONE}/queuedResources/alpha", RequestState.ACTIVE)
    row = cloud.request("GET", f"{parent}/alpha?alt=json")
    assert row["state"] == {"state": "ACTIVE", "activeData": {}}
    assert (row["provisioningModel"], row["spot"]) == ("STANDARD", {})
    assert [shown["nodeId"] for shown in row["tpu"]["nodeSpec"]] == ["m-0", "m-1"]
    assert cloud.request("GET", f"/v2/{ZONE}/queuedResources/alpha").keys() == row.keys() - {"provisioningModel"}
    with pytest.raises(DaemonRefused, match="has nodes"):
        cloud.request("DELETE", f"{parent}/alpha?alt=json")
    cloud.request("DELETE", f"{parent}/alpha?alt=json&force=True")  # gcloud's capital letter
    until(lambda: list(queued_api.list_queued_resources(parent=ZONE)), wanted=lambda rows: rows == [])


def test_faults_and_the_request_log_name_queued_resources(queued_api: tpu_v2.TpuClient, cloud: Emulator) -> None:
    fault = {"kind": "status", "status": 503, "operation": "queuedResources.create", "when": {"first": 1}}
    [added] = cloud.request("POST", "/_emulator/faults", fault)["faults"]
    with pytest.raises(exceptions.ServiceUnavailable):
        ask(queued_api, body("unlucky"))
    [refused] = cloud.request("GET", "/_emulator/requests")["requests"][-1:]
    assert (refused["operation"], refused["faults"]) == ("queuedResources.create", [added["id"]])
    assert refused["resource"] == f"{ZONE}/queuedResources/q{next(numbers) - 1}"
    cloud.request("POST", "/_emulator/faults", {"kind": "unreachable", "operation": "queuedResources.list"})
    page = next(iter(queued_api.list_queued_resources(parent=ZONE).pages))
    assert (list(page.queued_resources), list(page.unreachable)) == ([], [ZONE])


# -- on the VM ----------------------------------------------------------------------------------------------------


def test_a_vm_reads_the_name_of_its_request_and_may_delete_it(queued_api: tpu_v2.TpuClient, cloud: Emulator) -> None:
    made = ask(queued_api, body("selfish"))
    becomes(queued_api, made.name, RequestState.ACTIVE)
    [ports] = [row["ports"] for row in cloud.processes() if row["name"].endswith("/selfish")]
    metadata = f"http://127.0.0.1:{ports[1]}/computeMetadata/v1/instance"
    assert fetch(f"{metadata}/attributes/queued-resource-name")[1] == made.name
    token = json.loads(fetch(f"{metadata}/service-accounts/default/token")[1])["access_token"]
    output = fetch(f"{cloud.url}/v2/{made.name}?force=true", "DELETE", Authorization=f"Bearer {token}")
    assert '"verb": "delete"' in output[1]
    until(lambda: list(queued_api.list_queued_resources(parent=ZONE)), wanted=lambda rows: rows == [])
