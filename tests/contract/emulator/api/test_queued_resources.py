"""Queued resources for clients: google-cloud-tpu over REST, raw JSON where that client has no fields, and the VM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tpu_v2

from orchestrator.emulator.daemon import control
from orchestrator.emulator.daemon.control import DaemonRefused
from tests.contract.emulator.conftest import ZONE, client_for, fetch, finish, node_body
from tests.emulator_fixture import Emulator, running_emulator
from tests.waiting import until

State = tpu_v2.QueuedResourceState.State
QUICK = {"accept_s": 0, "queue_s": 0, "suspend_s": 0, "refuse_s": 0.1}
numbers = count(1)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with running_emulator(tmp_path_factory.mktemp("queue")) as started:
        started.patch_settings(**QUICK)
        yield started


@pytest.fixture
def api(cloud: Emulator) -> Iterator[tpu_v2.TpuClient]:
    client = client_for(cloud)
    yield client
    cloud.request("DELETE", "/_emulator/faults")
    cloud.patch_settings(no_capacity=[], provision_s=0, vm_may=["get", "delete"])
    for row in client.list_queued_resources(parent=ZONE):
        until(
            lambda row=row: client.get_queued_resource(name=row.name).state.state,
            wanted=lambda s: s != State.PROVISIONING,
        )
        finish(client.delete_queued_resource(request={"name": row.name, "force": True}))
    assert not list(client.list_nodes(parent=ZONE))


def body(*node_ids: str, several: int = 0, **fields: Any) -> tpu_v2.QueuedResource:
    specs = [{"parent": ZONE, "node_id": name, "node": node_body()} for name in node_ids]
    if several:
        specs = [{"parent": ZONE, "multislice_params": {"node_count": several}, "node": node_body()}]
    return tpu_v2.QueuedResource(tpu={"node_spec": specs}, **fields)


def ask(api: tpu_v2.TpuClient, queued: tpu_v2.QueuedResource, **more: Any) -> tpu_v2.QueuedResource:
    queue_id = f"q{next(numbers)}"
    output = {"parent": ZONE, "queued_resource_id": queue_id, "queued_resource": queued} | more
    return finish(api.create_queued_resource(request=output))


def becomes(api: tpu_v2.TpuClient, name: str, state: State) -> tpu_v2.QueuedResource:
    return until(lambda: api.get_queued_resource(name=name), wanted=lambda row: row.state.state == state)


# -- google-cloud-tpu ---------------------------------------------------------------------------------------------


def test_a_request_from_create_to_absence(api: tpu_v2.TpuClient) -> None:
    made = ask(api, body("alone", spot={}, queueing_policy={"valid_until_duration": {"seconds": 600}}))
    assert made.state.state in (State.WAITING_FOR_RESOURCES, State.PROVISIONING, State.ACTIVE)
    row = becomes(api, made.name, State.ACTIVE)
    assert (row.queueing_policy.valid_until_duration.seconds, "spot" in row) == (600, True)
    assert [spec.node_id for spec in row.tpu.node_spec] == ["alone"]
    node = api.get_node(name=f"{ZONE}/nodes/alone")
    assert (node.queued_resource, node.scheduling_config.spot, node.multislice_node) == (made.name, True, False)
    assert made.name in [other.name for other in api.list_queued_resources(parent="projects/emulated/locations/-")]
    with pytest.raises(exceptions.BadRequest, match="has nodes"):
        api.delete_queued_resource(name=made.name)
    finish(api.delete_queued_resource(request={"name": made.name, "force": True}))
    for gone in (lambda: api.get_queued_resource(name=made.name), lambda: api.get_node(name=node.name)):
        with pytest.raises(exceptions.NotFound):
            gone()


def test_a_reset_restarts_the_nodes(api: tpu_v2.TpuClient) -> None:
    made = ask(api, body("again"))
    becomes(api, made.name, State.ACTIVE)
    before = api.get_node(name=f"{ZONE}/nodes/again")
    assert finish(api.reset_queued_resource(request={"name": made.name})).state.state == State.ACTIVE
    after = api.get_node(name=before.name)
    assert (after.id, after.state) == (before.id, tpu_v2.Node.State.READY)


def test_lists_of_requests_are_complete_over_pages(api: tpu_v2.TpuClient) -> None:
    names = {ask(api, body(f"paged{index}")).name for index in range(3)}
    for name in names:
        becomes(api, name, State.ACTIVE)
    pages = list(api.list_queued_resources(request={"parent": ZONE, "page_size": 1}).pages)
    assert {row.name for page in pages for row in page.queued_resources} == names


# -- raw JSON -----------------------------------------------------------------------------------------------------


def test_v2alpha1_has_its_own_fields_for_several_nodes_and_models(cloud: Emulator, api: tpu_v2.TpuClient) -> None:
    parent = f"/v2alpha1/{ZONE}/queuedResources"
    node = {"accelerator_type": "v5litepod-4", "runtime_version": "v2-alpha-tpuv5-lite"}  # as in old scripts
    spec = {"node": node, "multiNodeParams": {"nodeCount": "2", "nodeIdPrefix": "m", "workloadType": 1}}
    asked = {"tpu": {"nodeSpec": [spec]}, "provisioningModel": "STANDARD", "spot": {}, "bestEffort": None}
    operation = cloud.request("POST", f"{parent}?queued_resource_id=alpha", asked)
    assert operation["metadata"]["@type"] == "type.googleapis.com/google.cloud.tpu.v2alpha1.OperationMetadata"
    becomes(api, f"{ZONE}/queuedResources/alpha", State.ACTIVE)
    row = cloud.request("GET", f"{parent}/alpha?alt=json")
    assert row["state"] == {"state": "ACTIVE", "activeData": {}}
    assert (row["provisioningModel"], row["spot"]) == ("STANDARD", {})
    assert [shown["nodeId"] for shown in row["tpu"]["nodeSpec"]] == ["m-0", "m-1"]
    assert cloud.request("GET", f"/v2/{ZONE}/queuedResources/alpha").keys() == row.keys() - {"provisioningModel"}
    with pytest.raises(DaemonRefused, match="has nodes"):
        cloud.request("DELETE", f"{parent}/alpha?alt=json")
    cloud.request("DELETE", f"{parent}/alpha?alt=json&force=True")  # gcloud's capital letter
    until(lambda: list(api.list_queued_resources(parent=ZONE)), wanted=lambda rows: rows == [])


def test_faults_and_the_request_log_name_queued_resources(api: tpu_v2.TpuClient, cloud: Emulator) -> None:
    fault = {"kind": "status", "status": 503, "operation": "queuedResources.create", "when": {"first": 1}}
    [added] = cloud.request("POST", "/_emulator/faults", fault)["faults"]
    with pytest.raises(exceptions.ServiceUnavailable):
        ask(api, body("unlucky"))
    [refused] = cloud.request("GET", "/_emulator/requests")["requests"][-1:]
    assert (refused["operation"], refused["faults"]) == ("queuedResources.create", [added["id"]])
    assert refused["resource"] == f"{ZONE}/queuedResources/q{next(numbers) - 1}"
    cloud.request("POST", "/_emulator/faults", {"kind": "unreachable", "operation": "queuedResources.list"})
    page = next(iter(api.list_queued_resources(parent=ZONE).pages))
    assert (list(page.queued_resources), list(page.unreachable)) == ([], [ZONE])


# -- on the VM ----------------------------------------------------------------------------------------------------


def test_a_vm_reads_the_name_of_its_request_and_may_delete_it(api: tpu_v2.TpuClient, cloud: Emulator) -> None:
    made = ask(api, body("selfish"))
    becomes(api, made.name, State.ACTIVE)
    [ports] = [row["ports"] for row in cloud.processes() if row["name"].endswith("/selfish")]
    metadata = f"http://127.0.0.1:{ports[1]}/computeMetadata/v1/instance"
    assert fetch(f"{metadata}/attributes/queued-resource-name")[1] == made.name
    token = json.loads(fetch(f"{metadata}/service-accounts/default/token")[1])["access_token"]
    output = fetch(f"{cloud.url}/v2/{made.name}?force=true", "DELETE", Authorization=f"Bearer {token}")
    assert '"verb": "delete"' in output[1]
    until(lambda: list(api.list_queued_resources(parent=ZONE)), wanted=lambda rows: rows == [])


@pytest.mark.exhaustive
def test_the_queue_survives_a_restart_of_the_daemon(emulator: Emulator) -> None:
    emulator.patch_settings(**QUICK, no_capacity=["*/*"])
    made = ask(client_for(emulator), body("patient"))
    control.stop(emulator.state_dir)
    again = emulator.restarted()
    assert [row["state"] for row in again.status()["queued_resources"]] == ["WAITING_FOR_RESOURCES"]
    again.patch_settings(no_capacity=[])
    becomes(client_for(again), made.name, State.ACTIVE)
