"""gRPC calls as REST requests, checked against the rules of google-cloud-tpu's own REST transport."""

import inspect
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud.tpu_v2.services.tpu.transports import rest_base

from orchestrator.emulator.api_errors import ApiError
from orchestrator.emulator.wire import transcoding
from orchestrator.emulator.wire.transcoding import EMPTY, OPERATION, RULES, error_of, http_call

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


def test_types_are_those_of_the_services_own_package() -> None:
    package = "google.cloud.tpu.v2alpha1"
    assert transcoding.type_names(ALPHA, "CreateNode") == (f"{package}.CreateNodeRequest", OPERATION)
    assert transcoding.type_names(V2, "GetNode") == ("google.cloud.tpu.v2.GetNodeRequest", "google.cloud.tpu.v2.Node")
    assert transcoding.type_names(transcoding.OPERATIONS, "CancelOperation")[1] == EMPTY


@pytest.mark.parametrize(("service", "method", "request_", "verb", "target", "body"), [
    (V2, "GetNode", {"name": NODE}, "GET", f"/v2/{NODE}", None),
    (ALPHA, "GetNode", {"name": NODE}, "GET", f"/v2alpha1/{NODE}", None),
    (*(V2, "CreateNode", {"parent": "projects/p/locations/z", "nodeId": "n", "node": {"labels": {"a": "b"}}}),
     *("POST", "/v2/projects/p/locations/z/nodes?nodeId=n", {"labels": {"a": "b"}})),
    (*(V2, "UpdateNode", {"node": {"name": NODE, "tags": ["t"]}, "updateMask": "tags,labels"}),
     *("PATCH", f"/v2/{NODE}?updateMask=tags%2Clabels", {"name": NODE, "tags": ["t"]})),
    (*(V2, "DeleteQueuedResource", {"name": "projects/p/locations/z/queuedResources/q", "force": True}),
     *("DELETE", "/v2/projects/p/locations/z/queuedResources/q?force=true", None)),
    (V2, "GetGuestAttributes", {"name": NODE, "workerIds": ["1"]}, "POST", None, {"workerIds": ["1"]}),
    (V2, "StopNode", {"name": NODE}, "POST", f"/v2/{NODE}:stop", {}),
    (*(transcoding.LOCATIONS, "ListLocations", {"name": "projects/p", "pageSize": 5}),
     *("GET", "/v2/projects/p/locations?pageSize=5", None)),
])  # fmt: skip
def test_a_call_becomes_the_request_of_its_rule(
    service: str, method: str, request_: dict[str, Any], verb: str, target: str | None, body: Any
) -> None:
    found = http_call(service, method, request_, transcoding.TPU_VERSIONS.get(service, "v2"))
    assert (found[0], found[2]) == (verb, body)
    assert target in (None, found[1])


@pytest.mark.parametrize(
    "name", ["", "n", "projects/p/locations/z/nodes", f"{NODE}/x", "projects//locations/z/nodes/n"]
)
def test_a_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(ApiError, match="expected projects/") as refusal:
        http_call(V2, "GetNode", {"name": name}, "v2")
    assert refusal.value.status == "INVALID_ARGUMENT"


def test_special_characters_of_urls_stay_part_of_the_name() -> None:
    assert http_call(V2, "GetNode", {"name": f"{NODE}?a=b#c"}, "v2")[1] == f"/v2/{NODE}%3Fa%3Db%23c"


def test_an_error_keeps_its_code_message_and_details() -> None:
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "R"}]
    body = json.dumps({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": details}})
    assert error_of(429, body).in_operation() == {"code": 8, "message": "m", "details": details}


@pytest.mark.parametrize(("http_status", "code"), [(400, 13), (404, 12), (429, 14), (502, 14), (418, 2)])
def test_an_error_page_is_translated_by_its_http_status(http_status: int, code: int) -> None:
    assert error_of(http_status, "<html>").code == code
