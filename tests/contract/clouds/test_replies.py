"""The client against literal replies: what Cloud TPU, proxies and accidents answer, and what becomes of it."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.places.google.credentials import EmulatorToken
from orchestrator.places.google.error_translation import NotFound
from orchestrator.places.tpu.api import calls
from orchestrator.places.tpu.api.client import TpuApi
from orchestrator.places.tpu.api.create_request import create_request
from orchestrator.promise.lease.cloud_api import SliceRequest, SliceState, WorkerAddress
from orchestrator.promise.lease.lease import SliceName
from tests.fakes.api import FixedToken, StubApi, StubReply, failure, stub_api
from tests.waiting import until

NAME = SliceName("acme-project", "us-central1-a", "tpujob-k3f9ab-7q2m4x1pzt")
ZONE = "projects/acme-project/locations/us-central1-a"
PATH = f"{ZONE}/nodes/{NAME.node}"
OPERATION = {"name": f"{ZONE}/operations/operation-1669841256413-5eeb636eb799d-6070f791-4abbb44a"}
REQUEST = SliceRequest(
    NAME,
    "v5litepod-4",
    "v2-alpha-tpuv5-lite",
    spot=True,
    labels={"tpujob": "1", "tpujob-lease-id": "7q2m4x1pzt"},
    metadata={"ssh-keys": "tpujob:ssh-ed25519 AAAA tpujob", "enable-oslogin": "FALSE"},
    service_account="vm@acme-project.iam.gserviceaccount.com",
    secure_boot=True,
)
HTML_404 = StubReply(404, "<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>")
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAI" + "B" * 43


def node(state: Any = "READY", name: str = PATH, **fields: Any) -> dict[str, Any]:
    shown = {"name": name, "state": state, "acceleratorType": "v5litepod-4", "apiVersion": "V2"}
    return shown | {"networkEndpoints": [{"ipAddress": "10.0.0.2"}]} | fields


NO_SUCH_NODE = failure(404, "NOT_FOUND", f"Resource '{PATH}' was not found")


@pytest.fixture
def api(stub: StubApi) -> TpuApi:
    return TpuApi(stub.url, EmulatorToken("the-token"), emulated=True)


@pytest.fixture
def google_like(stub: StubApi) -> TpuApi:
    """The behaviour for Google's endpoint, with a credential that can be renewed, against the stub."""
    return TpuApi(stub.url, FixedToken(*(f"token-{number}" for number in range(9))), emulated=False)


# -- create ------------------------------------------------------------------------------------------------------------


def test_a_create_sends_exactly_what_the_preview_showed(stub: StubApi, api: TpuApi) -> None:
    stub.answers(StubReply(200, OPERATION))
    shown = api.preview(REQUEST)
    assert not stub.asked, "a preview sends nothing"
    api.create(REQUEST)
    [asked] = stub.asked
    assert (shown["method"], shown["url"]) == (asked.method, stub.url + asked.path)
    assert shown["body"] == json.loads(asked.body)


def test_the_body_of_a_create_says_everything_that_matters() -> None:
    shown = create_request(REQUEST)
    assert shown["url"].startswith(f"https://tpu.googleapis.com/v2/{ZONE}/nodes?")
    assert f"nodeId={NAME.node}" in shown["url"]
    assert shown["body"] == {
        "acceleratorType": "v5litepod-4",
        "runtimeVersion": "v2-alpha-tpuv5-lite",
        "labels": dict(REQUEST.labels),
        "metadata": dict(REQUEST.metadata),
        "networkConfig": {"network": "default", "enableExternalIps": True},
        "schedulingConfig": {"spot": True},
        "serviceAccount": {
            "email": "vm@acme-project.iam.gserviceaccount.com",
            "scope": ["https://www.googleapis.com/auth/cloud-platform"],
        },
        "shieldedInstanceConfig": {"enableSecureBoot": True},
    }
    plain = create_request(SliceRequest(NAME, "v5litepod-4", "v2-alpha-tpuv5-lite"))
    assert "shieldedInstanceConfig" not in plain["body"], "secure boot is a wish"


def test_a_reply_that_the_generated_parser_refuses_is_still_an_operation(stub: StubApi, api: TpuApi) -> None:
    """A type name newer than the library, in the metadata, must not make us forget a create that was accepted."""
    metadata = {"@type": "type.googleapis.com/google.cloud.tpu.v3.OperationMetadata", "verb": "create", "target": PATH}
    stub.answers(StubReply(200, OPERATION | {"metadata": metadata}))
    assert api.create(REQUEST).target == PATH
    stub.answers(StubReply(200, {"operations": [OPERATION | {"metadata": metadata}]}))
    assert [row.target for row in api.operations(NAME.project, NAME.zone).rows] == [PATH]
    response = {"@type": "type.googleapis.com/google.cloud.tpu.v2.Node", "name": PATH, "upcomingMaintenance": {}}
    stub.answers(StubReply(200, OPERATION | {"done": True, "response": response}))
    done = api.operation(OPERATION["name"])
    assert done.done


@pytest.mark.parametrize(
    "body", ["{}", '{"name": "operation-1"}', "[]", "null", "", '{"name": "proj', "<html>Sign in</html>"]
)
def test_a_create_answered_by_something_else_is_an_unexpected_reply(stub: StubApi, api: TpuApi, body: str) -> None:
    stub.answers(StubReply(200, body))
    with pytest.raises(errors.UnexpectedReply):
        api.create(REQUEST)


@pytest.mark.parametrize(("reply", "kind"), [
    (failure(409, "ALREADY_EXISTS", f"Resource '{PATH}' already exists"), errors.AlreadyExists),
    (failure(403, "PERMISSION_DENIED", "Permission denied on 'locations/us-central1-a'."), errors.AuthError),
    (failure(404, "NOT_FOUND", "Project 'acme-project' not found or deleted."), errors.BadRequest),
    (failure(503, "UNAVAILABLE", "try later"), errors.CloudUnavailable),
    (StubReply(502, "<html><title>502 Bad Gateway</title></html>"), errors.CloudUnavailable),
    (StubReply(500, '{"error": {"code": 500, "mess'), errors.CloudUnavailable),
    (StubReply(403, '{"error": {"code": 403, "mess'), errors.UnexpectedReply),
    (StubReply(200, "[" * 200_000), errors.UnexpectedReply), (StubReply(403, "[" * 200_000), errors.UnexpectedReply),
])  # fmt: skip
def test_a_refused_create_was_sent_once(
    stub: StubApi, api: TpuApi, reply: StubReply, kind: type[errors.CloudError]
) -> None:
    stub.answers(reply)
    with pytest.raises(kind) as caught:
        api.create(REQUEST)
    assert type(caught.value) is kind
    assert len(stub.asked) == 1


def test_a_name_that_would_change_the_path_never_leaves(stub: StubApi, api: TpuApi) -> None:
    for bad in (
        SliceName("acme-project", "us-central1-a", "../../other"),
        SliceName("acme-project", "us-central1-a", "a?force=true"),
        SliceName("acme-project", "us-central1-a/nodes/x", "a"),
        SliceName("a/b", "us-central1-a", "a"),
        SliceName("acme-project", "us-central1-a", ""),
    ):
        with pytest.raises(errors.BadRequest):
            api.delete(bad)
        with pytest.raises(errors.BadRequest):
            api.get(bad)
    assert not stub.asked


# -- absence -----------------------------------------------------------------------------------------------------------


def test_only_a_404_of_the_resource_itself_means_absent(stub: StubApi, api: TpuApi) -> None:
    stub.answers(NO_SUCH_NODE)
    assert api.get(NAME) is None
    assert api.delete(NAME) is None
    assert api.operation(OPERATION["name"]) is None
    asked = [(each.method, each.path.partition("?")[0]) for each in stub.asked]
    assert asked == [("GET", f"/v2/{PATH}"), ("DELETE", f"/v2/{PATH}"), ("GET", f"/v2/{OPERATION['name']}")]


@pytest.mark.parametrize(("reply", "kind"), [
    (HTML_404, errors.UnexpectedReply), (StubReply(404, ""), errors.UnexpectedReply),
    (StubReply(404, {"error": {"code": 404, "message": "no status"}}), errors.UnexpectedReply),
    (StubReply(404, {"error": "not_found"}), errors.UnexpectedReply),
    (failure(404, "NOT_FOUND", "Location us-east1-d is not found or access is unauthorized."), errors.AuthError),
    (failure(403, "PERMISSION_DENIED", "Permission 'tpu.nodes.get' denied on 'x' (or it may not exist)."),
     errors.AuthError),
    (failure(403, "NOT_FOUND", "odd"), errors.UnexpectedReply),
    (failure(503, "UNAVAILABLE", "try later"), errors.CloudUnavailable),
    (failure(410, "NOT_FOUND", "odd"), errors.UnexpectedReply), (StubReply(200, ""), errors.UnexpectedReply),
    (StubReply(200, "[" * 200_000), errors.UnexpectedReply), (StubReply(404, "[" * 200_000), errors.UnexpectedReply),
    (StubReply(200, "<html>Welcome to the airport's wireless network</html>"), errors.UnexpectedReply),
    (StubReply(200, {}), errors.UnexpectedReply),
    *((StubReply(200, node() | {"name": name}), errors.UnexpectedReply)
      for name in (f"{ZONE}/nodes/another", f"{PATH}x", "", None, 5)),
    (StubReply(204, ""), errors.UnexpectedReply),
    (StubReply(302, "", (("Location", "http://127.0.0.1:1/"),)), errors.UnexpectedReply),
])  # fmt: skip
def test_nothing_else_does(stub: StubApi, api: TpuApi, reply: StubReply, kind: type[errors.CloudError]) -> None:
    stub.answers(reply)
    with pytest.raises(kind) as caught:
        api.get(NAME)
    assert type(caught.value) is kind
    assert not isinstance(caught.value, NotFound)
    assert len(stub.asked) == 1


@pytest.mark.parametrize("reply", [HTML_404, failure(403, "PERMISSION_DENIED", "no"), StubReply(404, "")])
def test_a_delete_is_not_taken_as_done_for_it_either(stub: StubApi, api: TpuApi, reply: StubReply) -> None:
    stub.answers(reply)
    with pytest.raises(errors.CloudError):
        api.delete(NAME)


def test_to_start_or_stop_what_is_gone_says_so(stub: StubApi, api: TpuApi) -> None:
    stub.answers(NO_SUCH_NODE)
    for call in (api.start, api.stop, api.workers):
        with pytest.raises(errors.Vanished, match=NAME.node):
            call(NAME)


def test_a_list_of_a_place_that_is_not_found_proves_nothing(stub: StubApi, api: TpuApi) -> None:
    stub.answers(failure(404, "NOT_FOUND", f"Resource '{ZONE}' was not found"))
    with pytest.raises(errors.CloudError):
        api.list(NAME.project, NAME.zone)
    with pytest.raises(errors.CloudError):
        api.operations(NAME.project, NAME.zone)


# -- what is there -----------------------------------------------------------------------------------------------------

STATES = {
    SliceState.CREATING: ["CREATING", "STARTING", "RESTARTING", "REIMAGING"],
    SliceState.READY: ["READY"],
    SliceState.STOPPING: ["STOPPING"],
    SliceState.STOPPED: ["STOPPED"],
    SliceState.DELETING: ["DELETING"],
    SliceState.TOMBSTONE: ["PREEMPTED", "TERMINATED"],
    SliceState.UNKNOWN: ["REPAIRING", "HIDING", "HIDDEN", "UNHIDING", "UNKNOWN", "STATE_UNSPECIFIED"],
}


def test_every_state_of_the_api_has_a_meaning(stub: StubApi, api: TpuApi) -> None:
    from google.cloud import tpu_v2

    meaning = {native: state for state, natives in STATES.items() for native in natives}
    assert set(meaning) == {state.name for state in tpu_v2.Node.State}
    for state in tpu_v2.Node.State:
        for written in (state.name, int(state)):
            stub.answers(StubReply(200, node(written)))
            view = api.get(NAME)
            assert (view.state, view.native_state) == (meaning[state.name], state.name)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("written", "shown"), [("HIBERNATING", "HIBERNATING"), (77, "77")])
def test_a_state_newer_than_this_program_is_unknown_by_its_own_name(
    stub: StubApi, api: TpuApi, written: Any, shown: str
) -> None:
    stub.answers(StubReply(200, node(written, health=written)))
    view = api.get(NAME)
    assert (view.state, view.native_state, view.health) == (SliceState.UNKNOWN, shown, shown)
    other = node(name=f"{ZONE}/nodes/other")
    stub.answers(StubReply(200, {"nodes": [other, node(written)]}))
    rows = api.list(NAME.project, NAME.zone).rows
    assert [row.native_state for row in rows] == ["READY", shown]


def test_a_node_is_read_whole(stub: StubApi, api: TpuApi) -> None:
    endpoints = [{"ipAddress": "10.0.0.2", "accessConfig": {"externalIp": "34.1.2.3"}}, {"ipAddress": "10.0.0.3"}]
    stub.answers(
        StubReply(
            200,
            node(
                runtimeVersion="v2-alpha-tpuv5-lite",
                labels={"tpujob": "1"},
                createTime="2026-11-21T12:00:00.500000123Z",
                schedulingConfig={"preemptible": True},
                health="UNHEALTHY_MAINTENANCE",
                networkEndpoints=endpoints,
                aFieldFromTheFuture={"x": 1},
            ),
        )
    )
    view = api.get(NAME)
    assert (view.name, view.accelerator_type, view.runtime_version) == (NAME, "v5litepod-4", "v2-alpha-tpuv5-lite")
    assert (view.labels, view.spot, view.health) == ({"tpujob": "1"}, True, "UNHEALTHY_MAINTENANCE")
    assert view.created_at == pytest.approx(1795262400.5)
    assert view.hosts == ("34.1.2.3", "10.0.0.3")


def test_a_list_goes_through_all_pages_and_keeps_what_was_unreachable(stub: StubApi, api: TpuApi) -> None:
    names = [f"{ZONE}/nodes/n{number}" for number in range(4)]
    stub.answers(
        StubReply(
            200, {"nodes": [node(name=names[0]), node(name=names[1])], "nextPageToken": "2", "unreachable": ["a"]}
        ),
        StubReply(200, {"nextPageToken": "3"}),
        StubReply(
            200, {"nodes": [node(name=names[1]), node(name=names[2]), node(name=names[3])], "unreachable": ["a", "b"]}
        ),
    )
    listing = api.list(NAME.project, NAME.zone)
    assert [row.name.node for row in listing.rows] == ["n0", "n1", "n2", "n3"], "a row on two pages is one row"
    assert listing.unreachable == ("a", "b")
    assert not listing.complete
    assert ["pageToken=2" in stub.asked[1].path, "pageToken=3" in stub.asked[2].path] == [True, True]


def test_operations_are_listed_the_same_way(stub: StubApi, api: TpuApi) -> None:
    def row(number: int) -> dict[str, Any]:
        return {"name": f"{ZONE}/operations/operation-{number}", "metadata": {"verb": "create", "target": PATH}}

    stub.answers(
        StubReply(200, {"operations": [row(1)], "nextPageToken": "2"}),
        StubReply(
            200, {"operations": [row(2) | {"done": True, "error": {"code": 13, "message": "x"}}], "unreachable": ["z"]}
        ),
    )
    listing = api.operations(NAME.project, NAME.zone)
    assert [(row.target, row.verb, row.done) for row in listing.rows] == [
        (PATH, "create", False),
        (PATH, "create", True),
    ]
    assert isinstance(listing.rows[1].error, errors.CloudUnavailable)
    assert listing.unreachable == ("z",)


def test_an_empty_list_is_complete(stub: StubApi, api: TpuApi) -> None:
    stub.answers(StubReply(200, {}))
    assert api.list(NAME.project, NAME.zone).complete
    assert api.operations(NAME.project, NAME.zone).rows == ()


@pytest.mark.parametrize("pages", [["again"], ["a", "b"]])
def test_a_list_that_goes_in_circles_is_given_up(
    stub: StubApi, api: TpuApi, pages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_PAGES", 20)
    for call in (api.list, api.operations):
        # With one token the second page names itself, with two the third names the first.
        stub.answers(*(StubReply(200, {"nextPageToken": token}) for token in pages * 3))
        with pytest.raises(errors.UnexpectedReply, match="does not end"):
            call(NAME.project, NAME.zone)


def test_a_list_without_end_is_given_up(stub: StubApi, api: TpuApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_PAGES", 5)
    stub.answers(*(StubReply(200, {"nextPageToken": str(number)}) for number in range(9)))
    with pytest.raises(errors.UnexpectedReply, match="more than 5 pages"):
        api.list(NAME.project, NAME.zone)


@pytest.mark.parametrize(
    "page", ['{"nodes": 5}', '{"nodes": [{"name": 5}]}', '{"nodes": [{"name": "x"}]}', '{"nodes": [5]}']
)
def test_a_list_of_something_else_is_an_unexpected_reply(stub: StubApi, api: TpuApi, page: str) -> None:
    stub.answers(StubReply(200, page))
    with pytest.raises(errors.UnexpectedReply):
        api.list(NAME.project, NAME.zone)
    stub.answers(StubReply(200, page.replace("nodes", "operations")))
    with pytest.raises(errors.UnexpectedReply):
        api.operations(NAME.project, NAME.zone)


# -- workers -----------------------------------------------------------------------------------------------------------


def endpoints(*hosts: str) -> dict[str, Any]:
    return {"networkEndpoints": [{"ipAddress": "10.0.0.9", "accessConfig": {"externalIp": host}} for host in hosts]}


def published(**values: str) -> dict[str, Any]:
    known = {
        "key": ("hostkeys", "ssh-ed25519"),
        "name": ("hostkeys", "hostname"),
        "port": ("tpujob-emulator", "ssh-port"),
    }
    items = [{"namespace": known[k][0], "key": known[k][1], "value": value} for k, value in values.items()]
    return {"queryPath": "", "queryValue": {"items": items}}


def attributes(*entries: dict[str, Any]) -> StubReply:
    return StubReply(200, {"guestAttributes": list(entries)})


def test_emulated_workers_have_their_own_ports_and_keys(stub: StubApi, api: TpuApi) -> None:
    stub.answers(
        StubReply(200, node(**endpoints("127.0.0.1", "127.0.0.1"))),
        attributes(published(key=KEY, port="40001"), published(key=f"ssh-ed25519 {KEY} root@w1", port="40002")),
    )
    assert api.workers(NAME) == (
        WorkerAddress(0, "127.0.0.1", 40001, f"ssh-ed25519 {KEY}", "10.0.0.9"),
        WorkerAddress(1, "127.0.0.1", 40002, f"ssh-ed25519 {KEY}", "10.0.0.9"),
    )


def test_what_workers_publish_is_theirs_by_their_host_names_wherever_the_api_lists_it(
    stub: StubApi, google_like: TpuApi
) -> None:
    keys = [KEY[:-2] + f"{number:02}" for number in range(4)]
    stub.answers(
        StubReply(200, node(**endpoints("34.1.2.3", "34.1.2.4", "34.1.2.5", "34.1.2.6"))),
        attributes(
            published(key=keys[2], name="t1v-n-0a-w-2"),
            published(key=keys[0], name="t1v-n-0a-w-0"),
            published(key=keys[1], name="t1v-n-0a-w-1"),
        ),
    )
    assert [worker.host_key for worker in google_like.workers(NAME)] == [
        *(f"ssh-ed25519 {key}" for key in keys[:3]),
        None,
    ]


@pytest.mark.parametrize("names", [("t1v-n-0a-w-1.us-central1-a.c.p-w-0.internal", "t1v-n-0a-w-0.x"), ("odd", "p.w-1")])
def test_a_key_is_pinned_whatever_form_the_host_names_have(
    stub: StubApi, google_like: TpuApi, names: tuple[str, str]
) -> None:
    """With the domain the number still counts; where no name has a number, the place does."""
    keys = [KEY[:-2] + f"{number:02}" for number in range(2)]
    sets = [published(key=key, name=name) for key, name in zip(keys, names, strict=True)]
    stub.answers(StubReply(200, node(**endpoints("34.1.2.3", "34.1.2.4"))), attributes(*sets))
    in_order = reversed(keys) if "w-1" in names[0] else keys
    assert [worker.host_key for worker in google_like.workers(NAME)] == [f"ssh-ed25519 {key}" for key in in_order]


@pytest.mark.parametrize(
    "address", ["10.0.0.1;id", "$(id)", "-oProxyCommand=id", "a\nProxyCommand id", "fe80::1%;id", "host"]
)
@pytest.mark.parametrize("kind", ["internal", "external"])
def test_an_address_that_is_none_never_becomes_a_word_of_a_command(
    stub: StubApi, google_like: TpuApi, address: str, kind: str
) -> None:
    inner, outer = ("10.0.0.2", address) if kind == "external" else (address, "34.1.2.3")
    endpoint = {"ipAddress": inner, "accessConfig": {"externalIp": outer}}
    stub.answers(StubReply(200, node(networkEndpoints=[endpoint])), attributes(published(key=KEY)))
    with pytest.raises(errors.UnexpectedReply, match="address that is none"):
        google_like.workers(NAME)


def test_a_slice_on_which_two_say_that_they_are_one_worker_is_not_connected_to(
    stub: StubApi, google_like: TpuApi
) -> None:
    both = [published(key=KEY, name="t1v-n-0a-w-0"), published(key=KEY, name="t1v-n-0a-w-0")]
    stub.answers(StubReply(200, node(**endpoints("34.1.2.3", "34.1.2.4"))), attributes(*both))
    with pytest.raises(errors.UnexpectedReply, match="worker 0"):
        google_like.workers(NAME)


@pytest.mark.parametrize("port", [1, 65535])
def test_an_emulated_worker_may_have_any_port(stub: StubApi, api: TpuApi, port: int) -> None:
    stub.answers(StubReply(200, node(**endpoints("127.0.0.1"))), attributes(published(key=KEY, port=str(port))))
    assert [worker.port for worker in api.workers(NAME)] == [port]


@pytest.mark.parametrize("worker", [
    ("127.0.0.1", ""), ("127.0.0.1", "0"), ("127.0.0.1", "65536"), ("127.0.0.1", "x"), ("34.1.2.3", "22"),
])  # fmt: skip
def test_an_emulator_can_only_name_ports_of_this_machine(stub: StubApi, api: TpuApi, worker: tuple[str, str]) -> None:
    host, port = worker
    stub.answers(StubReply(200, node(**endpoints(host))), attributes(published(key=KEY, port=port)))
    with pytest.raises(errors.UnexpectedReply, match="no loopback address"):
        api.workers(NAME)


def test_a_port_that_a_real_worker_publishes_is_not_believed(stub: StubApi, google_like: TpuApi) -> None:
    stub.answers(StubReply(200, node(**endpoints("34.1.2.3"))), attributes(published(key=KEY, port="40001")))
    assert google_like.workers(NAME) == (WorkerAddress(0, "34.1.2.3", 22, f"ssh-ed25519 {KEY}", "10.0.0.9"),)


@pytest.mark.parametrize("reply", [
    attributes(), attributes(published(key=KEY)),
    failure(404, "NOT_FOUND", "no guest attributes"),
    failure(403, "PERMISSION_DENIED", "Permission 'tpu.nodes.getGuestAttributes' denied on 'x'"),
])  # fmt: skip
def test_workers_of_google_that_publish_no_keys_have_none(stub: StubApi, google_like: TpuApi, reply: StubReply) -> None:
    stub.answers(StubReply(200, node(**endpoints("34.1.2.3", "34.1.2.4"))), reply)
    assert [worker.host_key for worker in google_like.workers(NAME)] == [None, None]


def test_an_api_that_does_not_answer_about_keys_is_asked_again_within_its_limit(
    stub: StubApi, google_like: TpuApi
) -> None:
    stub.answers(StubReply(200, node(**endpoints("34.1.2.3"))), failure(503, "UNAVAILABLE", "try later"))
    with pytest.raises(errors.CloudUnavailable) as raised:
        google_like.workers(NAME)
    assert 60 / (raised.value.retry_after_s or 0.1) < 10, "documented are 10 queries a minute"


def test_a_host_key_that_is_none_is_refused(stub: StubApi, google_like: TpuApi) -> None:
    stub.answers(StubReply(200, node(**endpoints("34.1.2.3"))), attributes(published(key="x\n* ssh-ed25519 AAAA")))
    with pytest.raises(errors.UnexpectedReply, match="host key"):
        google_like.workers(NAME)


@pytest.mark.parametrize(("state", "hosts", "why"), [("CREATING", 0, "no"), ("READY", 0, "no"), ("READY", 3, "3 of 4")])
def test_a_node_without_all_addresses_is_not_ready_and_its_guest_attributes_are_not_asked_for(
    stub: StubApi, api: TpuApi, state: str, hosts: int, why: str
) -> None:
    slow = node(state, acceleratorType="v5litepod-16", **endpoints(*["34.1.2.3"] * hosts))
    stub.answers(StubReply(200, slow), StubReply(200, slow), attributes())
    with pytest.raises(errors.CloudUnavailable, match=f"has {why} addresses yet"):
        api.workers(NAME)
    assert [asked.method for asked in stub.asked] == ["GET"]
    view = api.get(NAME)
    assert view is not None and view.state is SliceState.CREATING


# -- the way there -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("accepted")
def test_a_server_that_does_not_answer_is_left_at_the_timeout(stub: StubApi) -> None:
    release = threading.Event()
    stub.answers(StubReply(200, OPERATION, hang_until=release))
    impatient = TpuApi(stub.url, EmulatorToken("t"), emulated=True, timeout_s=0.05, create_timeout_s=0.05)
    own = (impatient.get, impatient.delete, impatient.start, impatient.stop, impatient.workers)
    calls: list[tuple[Any, ...]] = [
        (impatient.create, REQUEST),
        *((call, NAME) for call in own),
        (impatient.operation, OPERATION["name"]),
    ]
    calls += [(call, NAME.project, NAME.zone) for call in (impatient.list, impatient.operations)]
    try:
        for call, *given in calls:
            with pytest.raises(errors.CloudUnavailable, match=r"127\.0\.0\.1:\d+ did not answer in time"):
                call(*given)
    finally:
        release.set()
    until(lambda: len(stub.asked) >= len(calls), "the last call to be read")
    assert len(stub.asked) == len(calls), "each call is tried once"


def test_a_reply_that_breaks_off_is_no_answer(stub: StubApi, api: TpuApi) -> None:
    stub.answers(StubReply(200, node(), claimed_bytes=5000))
    with pytest.raises(errors.CloudUnavailable, match="broke off"):
        api.get(NAME)


def test_a_port_on_which_no_server_listens_is_said_in_plain_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        port = taken.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(errors.CloudUnavailable) as caught:
            TpuApi(url, EmulatorToken("t"), emulated=True).get(NAME)
        assert caught.value.message == f"127.0.0.1:{port} cannot be reached: Connection refused"


def test_the_emulators_token_is_sent_and_a_wrong_one_is_said_at_once(stub: StubApi, api: TpuApi) -> None:
    stub.answers(failure(401, "UNAUTHENTICATED", "Request is missing required authentication credential."))
    with pytest.raises(errors.AuthError) as caught:
        api.get(NAME)
    assert "tpujob emulator stop" in (caught.value.hint or "")
    [asked] = stub.asked
    assert asked.headers["authorization"] == "Bearer the-token"


def test_an_expired_token_of_google_is_renewed_once_it_is_refused(stub: StubApi, google_like: TpuApi) -> None:
    refused = failure(401, "UNAUTHENTICATED", "Request had invalid authentication credentials.")
    stub.answers(refused, NO_SUCH_NODE)
    assert google_like.get(NAME) is None
    stub.answers(refused)
    with pytest.raises(errors.AuthError) as caught:
        google_like.get(NAME)
    assert "gcloud auth application-default login" in (caught.value.hint or "")
    stub.answers(StubReply(401, {"error": "invalid_token"}))
    with pytest.raises(errors.AuthError):
        google_like.get(NAME)


def test_no_redirection_is_followed(stub: StubApi, api: TpuApi) -> None:
    with stub_api() as elsewhere:
        elsewhere.answers(NO_SUCH_NODE)
        stub.answers(StubReply(307, "", (("Location", f"{elsewhere.url}/v2/{PATH}"),)))
        with pytest.raises(errors.UnexpectedReply, match="redirection"):
            api.get(NAME)
        assert not elsewhere.asked


def test_proxies_of_the_environment_do_not_see_the_emulators_token(
    stub: StubApi, api: TpuApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stub_api() as proxy:
        proxy.answers(NO_SUCH_NODE)
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.setenv("no_proxy", "")
        stub.answers(StubReply(200, node()))
        assert api.get(NAME) is not None
        assert not proxy.asked


def test_a_netrc_file_does_not_replace_the_token(
    stub: StubApi, google_like: TpuApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login somebody password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    stub.answers(NO_SUCH_NODE)
    google_like.get(NAME)
    assert stub.asked[0].headers.get("authorization", "none") in ("none", "Bearer token-0")
