"""google-cloud-tpu over gRPC: the same cloud, errors and faults as over REST, by the rules of its own REST transport."""

import asyncio
import inspect
import re
import socket
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.api_core import exceptions, operations_v1
from google.api_core.operation_async import AsyncOperation
from google.cloud import tpu_v2, tpu_v2alpha1
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcAsyncIOTransport, TpuGrpcTransport, rest_base
from google.cloud.tpu_v2alpha1.services.tpu.transports import TpuGrpcTransport as AlphaTransport
from google.protobuf.field_mask_pb2 import FieldMask
from google.rpc import error_details_pb2

from cloud_tpu_emulator.daemon import control
from cloud_tpu_emulator.faults.api_errors import ApiError
from cloud_tpu_emulator.wire import transcoding
from cloud_tpu_emulator.wire.transcoding import RULES, error_of, http_call
from tests.emulator.contract.conftest import ZONE, finish, node_body
from tests.emulator.fixture import Emulator, Fault
from tests.waiting import until

State = tpu_v2.Node.State


@pytest.fixture
def channel(shared_emulator: Emulator) -> Iterator[grpc.Channel]:
    tpu = shared_emulator.published
    with grpc.secure_channel(tpu.grpc_target, tpu.channel_credentials()) as opened:
        yield opened


@pytest.fixture
def client(channel: grpc.Channel) -> tpu_v2.TpuClient:
    return tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))


def test_a_node_from_create_to_absence(client: tpu_v2.TpuClient, api: tpu_v2.TpuClient) -> None:
    body = node_body(labels={"owner": "ada"}, scheduling_config={"spot": True}, metadata={"a": "b"})
    operation = client.create_node(parent=ZONE, node_id="grpc1", node=body)
    node = finish(operation)
    assert (operation.metadata.verb, operation.metadata.target) == ("create", node.name)
    assert node == client.get_node(name=node.name) == api.get_node(name=node.name)
    assert (node.state, node.labels["owner"], node.scheduling_config.spot) == (State.READY, "ada", True)
    assert finish(client.stop_node(request={"name": node.name})).state == State.STOPPED
    assert finish(client.start_node(request={"name": node.name})).state == State.READY
    change = tpu_v2.Node(name=node.name, labels={"held": "yes"}, description="not in the mask")
    patched = finish(client.update_node(node=change, update_mask=FieldMask(paths=["labels"])))
    assert (dict(patched.labels), patched.description) == ({"held": "yes"}, "")
    workers = client.get_guest_attributes(request={"name": node.name, "worker_ids": ["0"]}).guest_attributes
    assert "ssh-port" in [item.key for item in workers[0].query_value.items]
    finish(client.delete_node(name=node.name))
    with pytest.raises(exceptions.NotFound, match="was not found"):
        api.get_node(name=node.name)


def test_the_async_client_works_too(shared_emulator: Emulator) -> None:
    async def ended(operation: AsyncOperation) -> tpu_v2.Node:
        while not await operation.done():  # its own first poll is a second later
            await asyncio.sleep(0.01)
        return await operation.result()

    async def live() -> tuple[tpu_v2.Node, list[str]]:
        tpu = shared_emulator.published
        async with grpc.aio.secure_channel(tpu.grpc_target, tpu.channel_credentials()) as channel:
            client = tpu_v2.TpuAsyncClient(transport=TpuGrpcAsyncIOTransport(channel=channel))
            creating = [client.create_node(parent=ZONE, node_id=f"aio{i}", node=node_body()) for i in range(3)]
            begun = await asyncio.gather(*creating)
            nodes = await asyncio.gather(*map(ended, begun))
            names = [node.name async for node in await client.list_nodes(request={"parent": ZONE, "page_size": 1})]
            for node in nodes:
                await ended(await client.delete_node(name=node.name))
            return nodes[0], names

    node, names = asyncio.run(live())
    assert node.state == State.READY
    assert {f"{ZONE}/nodes/aio{i}" for i in range(3)} <= set(names)


def test_v2alpha1_has_its_own_messages(channel: grpc.Channel, client: tpu_v2.TpuClient) -> None:
    alpha = tpu_v2alpha1.TpuClient(transport=AlphaTransport(channel=channel))
    body = tpu_v2alpha1.Node(
        accelerator_type="v5litepod-4", runtime_version="v2-alpha-tpuv5-lite", autocheckpoint_enabled=True
    )
    node = finish(alpha.create_node(parent=ZONE, node_id="alpha", node=body))
    assert isinstance(node, tpu_v2alpha1.Node)
    assert (node.state, node.autocheckpoint_enabled) == (tpu_v2alpha1.Node.State.READY, True)
    assert client.get_node(name=node.name).state == State.READY  # v2 has no such field, and reads the rest
    assert node.name in [each.name for each in alpha.list_nodes(parent=ZONE)]
    finish(alpha.delete_node(name=node.name))


@pytest.mark.parametrize("version", [pytest.param("v2", marks=pytest.mark.exhaustive), "v2alpha1"])
def test_a_queued_resource_from_create_to_absence(channel: grpc.Channel, version: str) -> None:
    module, transport = {"v2": (tpu_v2, TpuGrpcTransport), "v2alpha1": (tpu_v2alpha1, AlphaTransport)}[version]
    client = module.TpuClient(transport=transport(channel=channel))
    node = module.Node(accelerator_type="v5litepod-4", runtime_version="v2-alpha-tpuv5-lite")
    spec = module.QueuedResource.Tpu.NodeSpec(parent=ZONE, node_id=f"grpc-{version}", node=node)
    body = module.QueuedResource(tpu=module.QueuedResource.Tpu(node_spec=[spec]), spot=module.QueuedResource.Spot())
    name = f"{ZONE}/queuedResources/grpc-{version}"
    finish(client.create_queued_resource(parent=ZONE, queued_resource_id=f"grpc-{version}", queued_resource=body))
    active = module.QueuedResourceState.State.ACTIVE
    until(lambda: client.get_queued_resource(name=name).state.state == active)
    assert name in [row.name for row in client.list_queued_resources(parent=ZONE)]
    assert client.get_node(name=f"{ZONE}/nodes/grpc-{version}").queued_resource == name
    with pytest.raises(exceptions.FailedPrecondition, match="has nodes"):
        client.delete_queued_resource(name=name)
    finish(client.delete_queued_resource(request={"name": name, "force": True}))
    with pytest.raises(exceptions.NotFound):
        client.get_queued_resource(name=name)


@pytest.fixture
def slow_maintenance(shared_emulator: Emulator) -> Iterator[None]:
    with shared_emulator.settings(notice_s=3600, maintenance_s=3600):
        yield


@pytest.mark.usefixtures("slow_maintenance")
def test_the_customer_begins_maintenance_of_a_queued_resource(channel: grpc.Channel) -> None:
    alpha = tpu_v2alpha1.TpuClient(transport=AlphaTransport(channel=channel))
    node = tpu_v2alpha1.Node(accelerator_type="v6e-8", runtime_version="v2-alpha-tpuv6e")
    specs = [{"parent": ZONE, "node_id": each, "node": node} for each in ("kept1", "kept2")]
    name, (first, second) = f"{ZONE}/queuedResources/kept", (f"{ZONE}/nodes/kept1", f"{ZONE}/nodes/kept2")
    body = tpu_v2alpha1.QueuedResource(tpu={"node_spec": specs})
    finish(alpha.create_queued_resource(parent=ZONE, queued_resource_id="kept", queued_resource=body))
    until(lambda: alpha.get_queued_resource(name=name).state.state == tpu_v2alpha1.QueuedResourceState.State.ACTIVE)
    finish(alpha.simulate_maintenance_event(request={"name": first}))
    both: dict[str, Any] = {"name": name, "node_names": ["kept1", "kept2"]}
    with pytest.raises(exceptions.FailedPrecondition, match="kept2 cannot be started now"):
        alpha.perform_maintenance_queued_resource(request=both)
    status = tpu_v2alpha1.UpcomingMaintenance.MaintenanceStatus
    assert alpha.get_node(name=first).upcoming_maintenance.maintenance_status == status.PENDING  # both, or none
    finish(alpha.simulate_maintenance_event(request={"name": second}))
    both["node_names"].append(first)  # the same node by its full name
    finish(alpha.perform_maintenance_queued_resource(request=both))
    nodes = [alpha.get_node(name=each) for each in (first, second)]
    assert [node.upcoming_maintenance.maintenance_status for node in nodes] == [status.ONGOING] * 2
    with pytest.raises(exceptions.NotFound):
        alpha.perform_maintenance_queued_resource(request={"name": name, "node_names": ["stranger"]})
    assert list(alpha.list_reservations(request={"parent": ZONE})) == []
    finish(alpha.delete_queued_resource(request={"name": name, "force": True}))


def test_places_types_runtimes_and_operations_are_those_of_rest(
    client: tpu_v2.TpuClient, api: tpu_v2.TpuClient, channel: grpc.Channel
) -> None:
    assert client.list_locations({"name": "projects/emulated"}) == api.list_locations({"name": "projects/emulated"})
    assert client.get_location({"name": ZONE}).location_id == "us-central1-a"
    assert list(client.list_accelerator_types(request={"parent": ZONE, "page_size": 3})) == list(
        api.list_accelerator_types(parent=ZONE)
    )
    assert list(client.list_runtime_versions(parent=ZONE)) == list(api.list_runtime_versions(parent=ZONE))
    finish(client.create_node(parent=ZONE, node_id="operated2", node=node_body()))
    deleting = client.delete_node(name=f"{ZONE}/nodes/operated2")
    finish(deleting)
    name = deleting.operation.name
    assert name in [row.name for row in client.list_operations({"name": ZONE}).operations]
    assert operations_v1.OperationsClient(channel).get_operation(name).done


def test_refusals_carry_their_code_and_details(client: tpu_v2.TpuClient) -> None:
    with pytest.raises(exceptions.PermissionDenied, match="Permission denied on 'locations/moon'") as denied:
        list(client.list_nodes(parent="projects/emulated/locations/moon"))
    assert (denied.value.reason, denied.value.metadata["location"]) == ("LOCATION_POLICY_VIOLATED", "moon")
    node = finish(client.create_node(parent=ZONE, node_id="taken", node=node_body()))
    with pytest.raises(exceptions.AlreadyExists) as taken:
        client.create_node(parent=ZONE, node_id="taken", node=node_body())
    assert [detail.resource_name for detail in taken.value.details] == [node.name]
    assert isinstance(taken.value.details[0], error_details_pb2.ResourceInfo)
    with pytest.raises(exceptions.InvalidArgument, match='Invalid node ID "Bad_Name"'):
        client.create_node(parent=ZONE, node_id="Bad_Name", node=node_body())
    with pytest.raises(exceptions.FailedPrecondition, match="start is not supported while in state READY"):
        client.start_node(request={"name": node.name})
    finish(client.delete_node(name=node.name))


def test_a_stockout_arrives_inside_the_operation(client: tpu_v2.TpuClient, fault: Fault) -> None:
    fault("stockout", match={"node": "unlucky2"})
    operation = client.create_node(parent=ZONE, node_id="unlucky2", node=node_body())
    with pytest.raises(exceptions.ResourceExhausted, match="There is no more capacity in the zone"):
        finish(operation)
    assert operation.operation.error.code == 8


def test_calls_without_the_token_are_refused(shared_emulator: Emulator) -> None:
    with grpc.insecure_channel(shared_emulator.published.grpc_target) as channel:
        stranger = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        with pytest.raises(exceptions.Unauthenticated, match="the token of this emulator"):
            stranger.get_node(name=f"{ZONE}/nodes/stranger")
        bearer = [("authorization", f"Bearer {shared_emulator.token}")]
        with pytest.raises(exceptions.NotFound):
            stranger.get_node(name=f"{ZONE}/nodes/stranger", metadata=bearer)
    rows = shared_emulator.request("GET", "/_emulator/requests?node=stranger")["requests"]
    assert [(row["caller"], row["operation"], row["status"]) for row in rows] == [
        ("unauthenticated", "nodes.get", 401),
        ("client", "nodes.get", 404),
    ]


@pytest.mark.parametrize("header", [("origin", "http://127.0.0.1"), ("host", "[::1].evil.example")])
def test_web_pages_are_refused_even_with_the_token(
    client: tpu_v2.TpuClient, shared_emulator: Emulator, header: tuple[str, str]
) -> None:
    with pytest.raises(exceptions.PermissionDenied, match="web pages are refused"):
        client.get_node(name=f"{ZONE}/nodes/page", metadata=[header])
    assert (
        shared_emulator.request("GET", "/_emulator/requests?node=page")["requests"][-1]["caller"] == "unauthenticated"
    )


def test_a_malformed_request_is_a_client_error(channel: grpc.Channel) -> None:
    method = "/google.cloud.tpu.v2.Tpu/CreateQueuedResource"
    create = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
    never = tpu_v2.CreateQueuedResourceRequest.pb()(parent=ZONE, queued_resource_id="never")
    never.queued_resource.queueing_policy.valid_until_time.seconds = 10**15
    for sent in (b"\xff\xff", never.SerializeToString()):
        with pytest.raises(grpc.RpcError) as refused:
            create(sent)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, refused.value


@pytest.mark.parametrize(("kind", "fields", "error"), [
    ("drop", {}, exceptions.ServiceUnavailable), ("status", {"status": 503}, exceptions.ServiceUnavailable),
    ("status", {"status": 429}, exceptions.ResourceExhausted),
    ("status", {"status": 502}, exceptions.ServiceUnavailable),
    ("status", {"status": 403}, exceptions.PermissionDenied),
    ("status", {"status": 404}, exceptions.MethodNotImplemented),
    ("status", {"status": 504}, exceptions.DeadlineExceeded),
    ("garbage", {"form": "html"}, exceptions.InternalServerError),
    ("garbage", {"form": "types"}, exceptions.InternalServerError),
    ("garbage", {"form": "empty"}, exceptions.InternalServerError),
])  # fmt: skip
def test_faults_on_the_wire_have_their_grpc_form(
    client: tpu_v2.TpuClient, fault: Fault, kind: str, fields: dict[str, Any], error: type[Exception]
) -> None:
    place = "projects/emulated/locations/us-east5-b"
    fault(kind, operation="runtimeVersions.list", **fields)
    with pytest.raises(error):
        client.list_runtime_versions(parent=place)


def test_a_call_ends_at_the_deadline_of_the_client(client: tpu_v2.TpuClient, fault: Fault) -> None:
    fault("hang", operation="runtimeVersions.list", seconds=3600)
    with pytest.raises(exceptions.DeadlineExceeded):
        client.list_runtime_versions(parent=ZONE, timeout=0.2)


def test_the_server_starts_once_on_the_requested_port_and_stops_with_the_daemon(emulator: Emulator) -> None:
    assert emulator.request("GET", "/_emulator/grpc") == {"target": None}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(control.DaemonRefused, match="is not available"):
            emulator.request("POST", "/_emulator/grpc", {"port": taken.getsockname()[1]})
    with pytest.raises(control.DaemonRefused, match="port must be a whole number"):
        emulator.request("POST", "/_emulator/grpc", {"port": "x"})
    target = emulator.published.grpc_target
    assert emulator.published.grpc_target == target == emulator.request("GET", "/_emulator/grpc")["target"]
    with pytest.raises(control.DaemonRefused, match=f"runs at {target} already"):
        emulator.request("POST", "/_emulator/grpc", {"port": 1})
    host, _, port = target.partition(":")
    control.stop(emulator.state_dir)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=1)


V2, ALPHA = "google.cloud.tpu.v2.Tpu", "google.cloud.tpu.v2alpha1.Tpu"
NODE = "projects/p/locations/z/nodes/n"


def googles_rules() -> Iterator[tuple[str, dict[str, str]]]:
    base = rest_base._BaseTpuRestTransport
    for name in dir(base):
        if (options := getattr(getattr(base, name), "_get_http_options", None)) is not None:
            yield name.removeprefix("_Base"), options()[0]


@pytest.mark.parametrize(("method", "theirs"), list(googles_rules()))
def test_every_rule_of_v2_is_googles_own(method: str, theirs: dict[str, str]) -> None:
    ours = next(rules[method] for service, rules in RULES.items() if service != ALPHA and method in rules)
    assert (ours.verb.lower(), f"/v2/{ours.path}") == (theirs["method"], theirs["uri"])
    assert transcoding.camel(ours.body or "") == transcoding.camel(theirs.get("body", ""))


def test_every_method_of_both_services_has_a_rule() -> None:
    from google.cloud.tpu_v2.services.tpu.transports.grpc import TpuGrpcTransport
    from google.cloud.tpu_v2alpha1.services.tpu.transports.grpc import TpuGrpcTransport as Alpha

    for transport in (TpuGrpcTransport, Alpha):
        source = inspect.getsource(sys.modules[transport.__module__])
        found = re.findall(r'"/([a-z0-9.A-Z]+)/(\w+)"', source)
        assert len(found) > 20, "the generated transport has another form than this test expects"
        assert [row for row in found if row[1] not in RULES[row[0]]] == []


@pytest.mark.parametrize(
    "name", ["", "n", "projects/p/locations/z/nodes", f"{NODE}/x", "projects//locations/z/nodes/n"]
)
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(ApiError, match="expected projects/") as refusal:
        http_call(V2, "GetNode", {"name": name}, "v2")
    assert refusal.value.status == "INVALID_ARGUMENT"


def test_special_characters_of_urls_stay_part_of_the_name() -> None:
    assert http_call(V2, "GetNode", {"name": f"{NODE}?a=b#c"}, "v2")[1] == f"/v2/{NODE}%3Fa%3Db%23c"


@pytest.mark.parametrize(("http_status", "code"), [(400, 13), (404, 12), (429, 14), (502, 14), (418, 2)])
def test_an_error_page_is_translated_by_its_http_status(http_status: int, code: int) -> None:
    assert error_of(http_status, "<html>").code == code
