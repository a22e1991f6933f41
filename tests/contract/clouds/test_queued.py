"""Queued slices through both clients, against literal replies: the request and its node are one thing under one name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from orchestrator import errors
from orchestrator.core.lease.cloud_api import QueueTerms, SliceName, SliceRequest, SliceState, SliceView
from orchestrator.places.google.credentials import EmulatorToken, emulator_credentials
from orchestrator.places.tpu.api import client
from orchestrator.places.tpu.api.calls import ApiCalls
from orchestrator.places.tpu.api.client import TpuApi
from orchestrator.places.tpu.api.light_client import LightApi
from tests.unit.places.stub_api import Request, StubApi, StubReply, failure, stub_api

NAME = SliceName("acme-project", "us-central1-a", "tpujob-k3f9ab-7q2m4x1pzt", queued=True)
ZONE = "projects/acme-project/locations/us-central1-a"
NODE, REQUEST = f"{ZONE}/nodes/{NAME.node}", f"{ZONE}/queuedResources/{NAME.node}"
LABELS = {"tpujob": "1", "tpujob-lease-id": "7q2m4x1pzt"}
ID = "6f1c2d3e-0000-4000-8000-0123456789ab"
WANTED = SliceRequest(
    NAME, "v5litepod-4", "v2-alpha-tpuv5-lite", spot=True, labels=LABELS, queue=QueueTerms(3600.0, request_id=ID)
)


def operation(target: str) -> StubReply:
    return StubReply(200, {"name": f"{ZONE}/operations/o-1", "metadata": {"verb": "delete", "target": target}})


def request(state: Any = "WAITING_FOR_RESOURCES", name: str = REQUEST, **more: Any) -> dict[str, Any]:
    node = {"acceleratorType": "v5litepod-4", "runtimeVersion": "v2-alpha-tpuv5-lite", "labels": LABELS}
    return {
        "name": name,
        "createTime": "2026-11-21T12:00:00Z",
        "tpu": {"nodeSpec": [{"parent": ZONE, "nodeId": NAME.node, "node": node}]},
        "spot": {},
        "state": {"state": state, **more},
    }


def node(**fields: Any) -> dict[str, Any]:
    shown = {"name": NODE, "state": "READY", "acceleratorType": "v5litepod-4", "labels": LABELS}
    return shown | {"networkEndpoints": [{"ipAddress": "10.0.0.2"}]} | fields


@dataclass
class Api:
    """Answers by path, unless a test says otherwise: neither the request nor the node is there."""

    stub: StubApi
    replies: dict[str, StubReply] = field(default_factory=dict)

    def answer(self, asked: Request) -> StubReply:
        path = urlsplit(asked.path).path.removeprefix("/v2/")
        return self.replies.get(f"{asked.method} {path}", failure(404, "NOT_FOUND"))

    @property
    def asked(self) -> list[tuple[str, str]]:
        return [(each.method, urlsplit(each.path).path.removeprefix("/v2/")) for each in self.stub.asked]


@pytest.fixture
def cloud() -> Iterator[Api]:
    with stub_api() as stub:
        api = Api(stub)
        stub.answer_with = api.answer
        yield api


@pytest.fixture
def api(cloud: Api) -> TpuApi:
    return TpuApi(cloud.stub.url, emulator_credentials("the-token"), emulated=True)


@pytest.fixture(params=["google-cloud-tpu", "light"])
def asking(request: pytest.FixtureRequest, cloud: Api, api: TpuApi) -> ApiCalls:
    return LightApi(cloud.stub.url, EmulatorToken("the-token"), emulated=True) if request.param == "light" else api


# -- create ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flex_start_s", [None, 7200.0])
def test_a_create_sends_exactly_what_the_preview_showed(cloud: Api, api: TpuApi, flex_start_s: float | None) -> None:
    wanted = replace(WANTED, spot=False, queue=QueueTerms(3600.0, ID, flex_start_s))
    cloud.stub.answer_with = None
    cloud.stub.answers(operation(REQUEST))
    shown = api.preview(wanted)
    assert not cloud.stub.asked, "a preview sends nothing"
    made = api.create(wanted)
    [asked] = cloud.stub.asked
    assert (shown["method"], shown["url"]) == (asked.method, cloud.stub.url + asked.path)
    assert shown["body"] == json.loads(asked.body)
    assert parse_qs(urlsplit(asked.path).query) == {"queuedResourceId": [NAME.node], "requestId": [ID]}
    assert (asked.headers["authorization"], asked.headers["content-type"]) == ("Bearer the-token", "application/json")
    assert (made.target, made.done) == (REQUEST, False)


def test_a_create_is_refused_in_our_terms(cloud: Api, api: TpuApi) -> None:
    path = f"POST {ZONE}/queuedResources"
    closed = "User does not have permission to submit requests into this queue for accelerator type v5p-8"
    for reply, kind in (
        (failure(403, "PERMISSION_DENIED", closed), errors.AuthError),
        (failure(404, "NOT_FOUND"), errors.BadRequest),
        (
            failure(429, "RESOURCE_EXHAUSTED", "Quota limit 'X' has been exceeded. Limit: 0 in zone z."),
            errors.QuotaError,
        ),
        (failure(503, "UNAVAILABLE"), errors.CloudUnavailable),
        (StubReply(200, "<html>"), errors.UnexpectedReply),
    ):
        cloud.replies[path] = reply
        with pytest.raises(kind):
            api.create(WANTED)


def test_a_token_that_no_renewal_helps_is_an_auth_error(cloud: Api) -> None:
    from google.auth.credentials import AnonymousCredentials

    class Renewable(AnonymousCredentials):
        def refresh(self, request: Any) -> None:
            pass

    google_like = TpuApi(cloud.stub.url, Renewable(), emulated=False)
    cloud.replies[f"POST {ZONE}/queuedResources"] = failure(401, "UNAUTHENTICATED")
    with pytest.raises(errors.AuthError):
        google_like.create(WANTED)


def test_a_name_and_a_request_that_differ_in_being_queued_are_our_own_mistake(cloud: Api, api: TpuApi) -> None:
    for wrong in (replace(WANTED, queue=None), replace(WANTED, name=replace(NAME, queued=False))):
        with pytest.raises(errors.BadRequest, match="queued"):
            api.create(wrong)
    assert not cloud.stub.asked


# -- get ---------------------------------------------------------------------------------------------------------------


def view_of(cloud: Api, asking: ApiCalls, *there: dict[str, Any]) -> SliceView:
    """What a client says of the request, of its node, or of both."""
    cloud.replies |= {f"GET {each['name']}": StubReply(200, each) for each in there}
    view = asking.get(NAME)
    assert view is not None
    return view


def test_a_queued_slice_is_absent_only_when_neither_request_nor_node_is_there(cloud: Api, asking: ApiCalls) -> None:
    assert asking.get(NAME) is None
    assert cloud.asked == [("GET", REQUEST), ("GET", NODE)], "a node may come of the request until that is gone"


@pytest.mark.parametrize("silent", [REQUEST, NODE])
def test_an_answer_that_is_missing_is_no_absence(cloud: Api, asking: ApiCalls, silent: str) -> None:
    for reply, kind in (
        (failure(503, "UNAVAILABLE"), errors.CloudUnavailable),
        (failure(403, "PERMISSION_DENIED"), errors.AuthError),
    ):
        cloud.replies[f"GET {silent}"] = reply
        with pytest.raises(kind):
            asking.get(NAME)


def test_a_request_that_waits_is_seen_with_what_it_asks_for(cloud: Api, asking: ApiCalls) -> None:
    view = view_of(cloud, asking, request())
    assert (view.name, view.state, view.native_state) == (NAME, SliceState.QUEUED, "WAITING_FOR_RESOURCES")
    assert (view.accelerator_type, view.runtime_version) == ("v5litepod-4", "v2-alpha-tpuv5-lite")
    assert (dict(view.labels), view.spot, view.created_at, view.error) == (LABELS, True, 1795262400.0, None)


def test_once_there_is_a_node_the_view_is_of_the_node(cloud: Api, asking: ApiCalls) -> None:
    view = view_of(cloud, asking, request("ACTIVE"), node())
    assert (view.name, view.state) == (NAME, SliceState.READY)
    assert view_of(cloud, asking, request("SUSPENDED"), node(state="PREEMPTED")).native_state == "PREEMPTED"


STATES = {
    SliceState.QUEUED: ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"],
    SliceState.CREATING: ["PROVISIONING", "ACTIVE"],
    SliceState.DELETING: ["SUSPENDING", "DELETING"],
    SliceState.TOMBSTONE: ["SUSPENDED", "FAILED"],
    SliceState.UNKNOWN: ["STATE_UNSPECIFIED"],
}


def test_every_state_of_the_queue_has_a_meaning(cloud: Api, asking: ApiCalls) -> None:
    from google.cloud import tpu_v2

    meaning = {native: state for state, natives in STATES.items() for native in natives}
    assert set(meaning) == {state.name for state in tpu_v2.QueuedResourceState.State}
    for state in tpu_v2.QueuedResourceState.State:
        for written in (state.name, int(state)):
            view = view_of(cloud, asking, request(written))
            assert (view.state, view.native_state) == (meaning[state.name], state.name)
    view = view_of(cloud, asking, request("HIBERNATING"))
    assert (view.state, view.native_state) == (SliceState.UNKNOWN, "HIBERNATING")


@pytest.mark.parametrize(("said", "kind"), [
    ({"code": 4, "message": "The request could not be fulfilled in time."}, errors.CapacityError),
    ({"code": 9, "message": "The valid_until_time has passed."}, errors.CapacityError),
    ({"code": 8, "message": 'There is no more capacity in the zone "us-central1-a"'}, errors.CapacityError),
    ({"code": 7, "message": "permission to submit requests into this queue is denied"}, errors.AuthError),
    ({"code": 3, "message": "FLEX_START provisioning model is not supported"}, errors.BadRequest),
    (None, errors.UnexpectedReply),
])  # fmt: skip
def test_why_a_request_failed_is_said_in_our_terms(
    cloud: Api, asking: ApiCalls, said: dict[str, Any] | None, kind: type[errors.CloudError]
) -> None:
    more: dict[str, Any] = {} if said is None else {"failedData": {"error": said}}
    view = view_of(cloud, asking, request("FAILED", **more))
    assert view.state is SliceState.TOMBSTONE and type(view.error) is kind
    if said is not None:
        assert view.error.message == said["message"]


def test_the_end_that_the_cloud_itself_keeps_is_read_from_the_node(cloud: Api, asking: ApiCalls) -> None:
    ends = {"terminationTimestamp": "2026-11-21T14:00:00Z"}
    assert view_of(cloud, asking, node(schedulingConfig=ends)).deadline == 1795262400.0 + 7200


# -- list --------------------------------------------------------------------------------------------------------------


def lists(cloud: Api, nodes: dict[str, Any], requests: dict[str, Any]) -> None:
    cloud.replies[f"GET {ZONE}/nodes"] = StubReply(200, nodes)
    cloud.replies[f"GET {ZONE}/queuedResources"] = StubReply(200, requests)


def test_a_list_has_one_row_for_a_request_and_its_node(cloud: Api, asking: ApiCalls) -> None:
    other = request(name=f"{ZONE}/queuedResources/tpujob-other")
    plain = node(name=f"{ZONE}/nodes/plain")
    lists(cloud, {"nodes": [node(queuedResource=REQUEST), plain]}, {"queuedResources": [request("ACTIVE"), other]})
    rows = asking.list(NAME.project, NAME.zone, queued=True).rows
    assert [(row.name.node, row.name.queued, row.native_state) for row in rows] == [
        (NAME.node, True, "READY"),
        ("plain", False, "READY"),
        ("tpujob-other", True, "WAITING_FOR_RESOURCES"),
    ]
    assert [row.name for row in asking.list(NAME.project, NAME.zone).rows] == [row.name for row in rows[:2]]
    assert cloud.asked.count(("GET", f"{ZONE}/queuedResources")) == 1, "without asking for the queue it is not read"


def test_a_node_of_a_request_with_another_name_is_a_node(cloud: Api, asking: ApiCalls) -> None:
    lists(cloud, {"nodes": [node(queuedResource=f"{ZONE}/queuedResources/theirs")]}, {})
    [row] = asking.list(NAME.project, NAME.zone).rows
    assert row.name == replace(NAME, queued=False)


def test_a_list_is_complete_only_if_both_are(cloud: Api, asking: ApiCalls) -> None:
    for nodes, requests in (({"unreachable": ["x"]}, {}), ({}, {"unreachable": ["x"]})):
        lists(cloud, nodes, requests)
        assert asking.list(NAME.project, NAME.zone, queued=True).unreachable == ("x",)
    lists(cloud, {}, {})
    assert asking.list(NAME.project, NAME.zone, queued=True).complete
    cloud.replies[f"GET {ZONE}/queuedResources"] = failure(403, "PERMISSION_DENIED")
    with pytest.raises(errors.AuthError):
        asking.list(NAME.project, NAME.zone, queued=True)


@pytest.mark.parametrize("rows", ["5", '[{"name": "x"}]', "[5]"])
def test_a_list_of_something_else_is_an_unexpected_reply(cloud: Api, asking: ApiCalls, rows: str) -> None:
    lists(cloud, {}, {})
    cloud.replies[f"GET {ZONE}/queuedResources"] = StubReply(200, f'{{"queuedResources": {rows}}}')
    with pytest.raises(errors.UnexpectedReply):
        asking.list(NAME.project, NAME.zone, queued=True)


# -- delete ------------------------------------------------------------------------------------------------------------


def test_a_delete_takes_the_request_and_its_node_in_one_call(cloud: Api, asking: ApiCalls) -> None:
    cloud.replies[f"DELETE {REQUEST}"] = operation(REQUEST)
    deleted = asking.delete(NAME)
    assert deleted is not None and deleted.target == REQUEST
    [asked] = cloud.stub.asked
    assert parse_qs(urlsplit(asked.path).query)["force"] == ["true"]


def test_a_node_whose_request_is_gone_is_deleted_by_itself(cloud: Api, asking: ApiCalls) -> None:
    assert asking.delete(NAME) is None
    assert cloud.asked == [("DELETE", REQUEST), ("DELETE", NODE)]
    cloud.replies[f"DELETE {NODE}"] = operation(NODE)
    deleted = asking.delete(NAME)
    assert deleted is not None and deleted.target == NODE


def test_who_may_not_delete_requests_deletes_the_node_and_is_told(cloud: Api, asking: ApiCalls) -> None:
    cloud.replies[f"DELETE {REQUEST}"] = failure(403, "PERMISSION_DENIED")
    cloud.replies[f"DELETE {NODE}"] = operation(NODE)
    with pytest.raises(errors.AuthError):
        asking.delete(NAME)
    assert cloud.asked == [("DELETE", REQUEST), ("DELETE", NODE)]


def test_a_delete_of_which_nothing_is_known_leaves_the_node_to_the_next_one(cloud: Api, asking: ApiCalls) -> None:
    cloud.replies[f"DELETE {REQUEST}"] = failure(503, "UNAVAILABLE")
    with pytest.raises(errors.CloudUnavailable):
        asking.delete(NAME)
    assert cloud.asked == [("DELETE", REQUEST)]


def test_the_same_request_goes_to_google_as_to_the_emulator() -> None:
    assert client.preview(WANTED)["url"].startswith(f"https://tpu.googleapis.com/v2/{ZONE}/queuedResources?")
