"""google-api-python-client, which reads the API from Google's discovery documents: v1, v2 and v2alpha1."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from orchestrator.emulator.api import api_call
from tests.contract.emulator.conftest import ZONE
from tests.emulator_fixture import Emulator
from tests.waiting import until

discovery = pytest.importorskip("googleapiclient.discovery", reason="google-api-python-client is not installed")
errors = pytest.importorskip("googleapiclient.errors")
discovery_cache = pytest.importorskip("googleapiclient.discovery_cache")
NODE = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}
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


def finish(api: Any, operation: dict[str, Any]) -> dict[str, Any]:
    found = dict(operation)

    def done() -> bool:
        found.update(api.operations().get(name=operation["name"]).execute())
        return bool(found["done"])

    until(done)
    return found


@pytest.mark.parametrize("version", ["v2", pytest.param("v2alpha1", marks=pytest.mark.exhaustive)])
def test_a_node_from_create_to_absence(shared_emulator: Emulator, version: str) -> None:
    api = locations(shared_emulator, version)
    node_id, name = f"disc-{version}", f"{ZONE}/nodes/disc-{version}"
    made = finish(api, api.nodes().create(parent=ZONE, nodeId=node_id, body=NODE | {"labels": {"a": "b"}}).execute())
    assert made["response"]["@type"] == f"type.googleapis.com/google.cloud.tpu.{version}.Node"
    listed = api.nodes().list(parent=f"{PROJECT}/locations/-", pageSize=1)
    names = []
    while listed is not None:
        page = listed.execute()
        names += [node["name"] for node in page["nodes"]]
        listed = api.nodes().list_next(listed, page)
    assert name in names
    finish(api, api.nodes().stop(name=name, body={}).execute())
    finish(api, api.nodes().start(name=name, body={}).execute())
    finish(api, api.nodes().patch(name=name, updateMask="labels", body={"labels": {"c": "d"}}).execute())
    assert api.nodes().get(name=name).execute()["labels"] == {"c": "d"}
    workers = api.nodes().getGuestAttributes(name=name, body={"workerIds": ["0"]}).execute()["guestAttributes"]
    assert len(workers) == 1
    finish(api, api.nodes().delete(name=name).execute())
    with pytest.raises(errors.HttpError) as gone:
        api.nodes().get(name=name).execute()
    assert (gone.value.status_code, gone.value.reason) == (404, f"Resource '{name}' was not found")


@pytest.mark.parametrize("version", ["v2", pytest.param("v2alpha1", marks=pytest.mark.exhaustive)])
def test_a_queued_resource_creates_a_node_and_is_deleted_with_it(shared_emulator: Emulator, version: str) -> None:
    api = locations(shared_emulator, version)
    name = f"{ZONE}/queuedResources/disc-{version}"
    body = {"tpu": {"nodeSpec": [{"parent": ZONE, "nodeId": f"disc-q-{version}", "node": NODE}]}, "spot": {}}
    finish(api, api.queuedResources().create(parent=ZONE, queuedResourceId=f"disc-{version}", body=body).execute())
    until(lambda: api.queuedResources().get(name=name).execute()["state"]["state"] == "ACTIVE")
    assert name in [row["name"] for row in api.queuedResources().list(parent=ZONE).execute()["queuedResources"]]
    finish(api, api.queuedResources().delete(name=name, force=True).execute())
    with pytest.raises(errors.HttpError, match="404"):
        api.queuedResources().get(name=name).execute()


def test_v2alpha1_has_flex_start(shared_emulator: Emulator) -> None:
    api = locations(shared_emulator, "v2alpha1")
    name = f"{ZONE}/queuedResources/disc-flex"
    body = {
        "tpu": {"nodeSpec": [{"parent": ZONE, "nodeId": "disc-flex", "node": NODE}]},
        "provisioningModel": "FLEX_START",
        "runDuration": {"maxRunDuration": "7200s"},
    }
    finish(api, api.queuedResources().create(parent=ZONE, queuedResourceId="disc-flex", body=body).execute())
    assert api.queuedResources().get(name=name).execute()["runDuration"] == {"maxRunDuration": "7200s"}
    finish(api, api.queuedResources().delete(name=name, force=True).execute())


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


def test_the_service_identity_is_that_of_the_project(shared_emulator: Emulator) -> None:
    output = locations(shared_emulator, "v2").generateServiceIdentity(parent=ZONE, body={}).execute()
    assert output["identity"]["email"].endswith("@cloud-tpu.iam.gserviceaccount.com")


def test_v1_refuses_to_create_tpu_nodes(shared_emulator: Emulator) -> None:
    api = locations(shared_emulator, "v1")
    assert api.nodes().list(parent=ZONE).execute() == {}
    with pytest.raises(errors.HttpError, match="Please migrate to TPU VM Architecture") as denied:
        api.nodes().create(parent=ZONE, nodeId="old", body={"acceleratorType": "v2-8"}).execute()
    assert denied.value.status_code == 400
    with pytest.raises(errors.HttpError, match="was not found"):
        api.nodes().get(name=f"{ZONE}/nodes/old").execute()


def test_a_refusal_carries_its_details(shared_emulator: Emulator) -> None:
    with pytest.raises(errors.HttpError) as denied:
        locations(shared_emulator, "v2").nodes().list(parent=f"{PROJECT}/locations/moon").execute()
    assert [detail["reason"] for detail in denied.value.error_details] == ["LOCATION_POLICY_VIOLATED"]
