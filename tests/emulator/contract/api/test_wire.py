"""Plain HTTP: who is admitted, which spellings are accepted, what exactly the replies are."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.emulator.contract.conftest import ZONE, numbers
from tests.emulator.fixture import Emulator
from tests.waiting import HANG_S

BODY = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite"}


class Http:
    """Sends requests with exactly the given headers."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator

    def send(self, method: str, path: str, body: Any = None, **headers: str | None) -> tuple[int, Any]:
        address = urlsplit(self.emulator.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=HANG_S)
        sent = {"Authorization": f"Bearer {self.emulator.token}"} | headers
        text = body if isinstance(body, str | None) else json.dumps(body)
        connection.request(method, path, text, {name: value for name, value in sent.items() if value is not None})
        reply = connection.getresponse()
        content = reply.read().decode()
        connection.close()
        is_json = "json" in reply.headers.get("Content-Type", "")
        return reply.status, json.loads(content) if is_json else content

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        return self.emulator.request(method, path, body)

    def finish(self, operation: dict[str, Any], version: str = "v2") -> dict[str, Any]:
        while not operation["done"]:
            operation = self.ok("GET", f"/{version}/{operation['name']}")
        return operation


@pytest.fixture
def http_(shared_emulator: Emulator) -> Http:
    return Http(shared_emulator)


@pytest.fixture
def node_id(http_: Http) -> Iterator[str]:
    name = f"w{next(numbers)}"
    yield name
    status, operation = http_.send("DELETE", f"/v2/{ZONE}/nodes/{name}")
    if status == 200:
        http_.finish(operation)


@pytest.mark.parametrize("path", ["/v2/projects/p/locations", "/_emulator/status", "/nothing"])
@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", "Basic {token}", "Bearer {token}x", "{token}", "Bearer é"]
)
def test_every_path_needs_the_token(http_: Http, path: str, given: str | None) -> None:
    authorization = given and given.format(token=http_.emulator.token)
    status, answer = http_.send("GET", path, Authorization=authorization)
    assert (status, answer["error"]["status"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize("host", [
    *("evil.example", "127.0.0.1.evil.example", "127.0.0.1:80.evil.example", "localhost.evil.example", "10.0.0.1:80", ""),
    *("[::2]:80", "0.0.0.0", "[::1].evil.example", "[::1]evil", "::1", "[::1"),
])  # fmt: skip
def test_a_host_that_is_not_loopback_is_refused(http_: Http, host: str) -> None:
    status, answer = http_.send("GET", "/v2/projects/p/locations", Host=host)
    assert (status, answer["error"]["status"]) == (403, "PERMISSION_DENIED")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:80", "127.9.9.9", "[::1]:80", "[::1]"])
def test_every_name_of_loopback_is_accepted(http_: Http, host: str) -> None:
    assert http_.send("GET", "/v2/projects/p/locations", Host=host)[0] == 200


def test_a_path_of_no_api_is_an_html_404_and_not_an_absent_resource(http_: Http) -> None:
    status, answer = http_.send("GET", "/v3/projects/p/locations/us-central1-a/nodes/n")
    assert status == 404
    assert "<html" in answer


def test_an_absent_node_is_a_json_404(http_: Http) -> None:
    status, answer = http_.send("GET", f"/v2/{ZONE}/nodes/none")
    assert status == 404
    assert answer == {
        "error": {"code": 404, "message": f"Resource '{ZONE}/nodes/none' was not found", "status": "NOT_FOUND"}
    }


@pytest.mark.parametrize("version", ["v2", "v2alpha1"])
def test_operations_have_the_types_of_the_requested_version(http_: Http, node_id: str, version: str) -> None:
    operation = http_.ok("POST", f"/{version}/{ZONE}/nodes?nodeId={node_id}", BODY)
    done = http_.finish(operation, version)
    types = f"type.googleapis.com/google.cloud.tpu.{version}"
    assert done["metadata"]["@type"] == f"{types}.OperationMetadata"
    assert done["response"]["@type"] == f"{types}.Node"
    assert done["metadata"]["apiVersion"] == version
    gone = http_.finish(http_.ok("DELETE", f"/{version}/{ZONE}/nodes/{node_id}"), version)
    assert gone["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}


def test_snake_case_and_numbers_are_accepted_and_returned_as_camel_case_and_names(http_: Http, node_id: str) -> None:
    body = {
        "accelerator_config": {"type": 9, "topology": "2x2"},
        "runtime_version": "v2-alpha-tpuv5-lite",
        "scheduling_config": {"spot": True},
        "data_disks": [{"source_disk": "d", "mode": 2}],
        "network_config": {"enable_external_ips": True, "queue_count": "4"},
    }
    http_.finish(http_.ok("POST", f"/v2/{ZONE}/nodes?node_id={node_id}", body))
    node = http_.ok("GET", f"/v2/{ZONE}/nodes/{node_id}?$alt=json;enum-encoding=int")
    assert node["acceleratorConfig"] == {"type": "V5LITE_POD", "topology": "2x2"}
    assert node["dataDisks"] == [{"sourceDisk": "d", "mode": "READ_ONLY"}]
    assert (node["state"], node["networkConfig"]["queueCount"]) == ("READY", 4)
    assert isinstance(node["id"], str)
    assert int(node["id"]) > 0


def test_fields_of_v2alpha1_never_show_in_v2_where_strict_clients_read(http_: Http, node_id: str) -> None:
    body = BODY | {"autocheckpointEnabled": True, "schedulingConfig": {"provisioningModel": "SPOT", "spot": False}}
    http_.finish(http_.ok("POST", f"/v2alpha1/{ZONE}/nodes?nodeId={node_id}", body), "v2alpha1")
    alpha, stable = (http_.ok("GET", f"/{version}/{ZONE}/nodes/{node_id}") for version in ("v2alpha1", "v2"))
    assert alpha["schedulingConfig"] == {"provisioningModel": "SPOT", "spot": False}
    assert alpha["autocheckpointEnabled"] is True
    assert "autocheckpointEnabled" not in stable
    assert stable["schedulingConfig"] == {"spot": True}


@pytest.mark.parametrize(("body", "message"), [
    ("{", "The body is not JSON"), ("[]", "The body is not a JSON object"),
    (BODY | {"accelerator": "x"}, "Unknown name \"accelerator\" at 'node': Cannot find field."),
    (BODY | {"labels": {"a": 1}}, "Invalid value at 'node.labels'"),
    (BODY | {"schedulingConfig": {"spot": "yes"}}, "Invalid value at 'node.schedulingConfig.spot'"),
    (BODY | {"acceleratorConfig": {"type": 99}}, "Invalid value at 'node.acceleratorConfig.type'"),
    (BODY | {"autocheckpointEnabled": True}, 'Unknown name "autocheckpointEnabled"'),
    (BODY | {"tags": "a"}, "Invalid value at 'node.tags'"),
])  # fmt: skip
def test_a_malformed_body_is_refused_with_the_place_of_the_mistake(http_: Http, body: Any, message: str) -> None:
    status, answer = http_.send("POST", f"/v2/{ZONE}/nodes?nodeId=wrong", body)
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert message in answer["error"]["message"]


@pytest.mark.parametrize(("path", "name"), [
    ("nodes?pagesize=3", "pagesize"), ("nodes?filter=a", "filter"), ("nodes/none?force=true", "force"),
    ("queuedResources?nodeId=x", "nodeId"),
    ("nodes?alt=json&$alt=json;enum-encoding=int&key=k&prettyPrint=false&page_size=3&pageSize=3&requestId=x",
     "requestId"),
])  # fmt: skip
def test_an_unknown_query_parameter_is_refused(http_: Http, path: str, name: str) -> None:
    status, answer = http_.send("GET", f"/v2/{ZONE}/{path}")
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert f"Unknown name \"{name}\": Cannot bind query parameter. Field '{name}'" in answer["error"]["message"]


@pytest.mark.parametrize("query", ["pageToken=nonsense", "pageSize=many", "pageSize=-1"])
def test_wrong_paging_is_refused(http_: Http, query: str) -> None:
    assert http_.send("GET", f"/v2/{ZONE}/nodes?{query}")[0] == 400
