"""Literal answers of the real services, each through the client that gets it, those about queued slices among them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from orchestrator import errors
from orchestrator.errors import CloudError, NotSent, TpujobError
from orchestrator.hosts.iap.dialer import Relay, dial
from orchestrator.hosts.iap.relay_session import RelayTarget
from orchestrator.places.gke.api import kube_api, words
from orchestrator.places.google import error_translation, objects
from orchestrator.places.google.credentials import EmulatorToken
from orchestrator.places.google.fetch import api_call
from orchestrator.places.tpu.api.client import TpuApi
from orchestrator.places.tpu.api.create_request import create_request
from orchestrator.promise.lease.cloud_api import QueueTerms, SliceRequest, SliceState, SliceView
from orchestrator.promise.lease.lease import SliceName
from orchestrator.promise.obtain.refusals import step_after
from tests import ROOT
from tests.contract.hosts.scripted_relay import ScriptedRelay, scripted
from tests.fakes.api import FixedToken, Request, StubApi, StubReply, failure, stub_api

ROWS = [json.loads(line) for line in (Path(__file__).parent / "literal_replies.jsonl").read_text().splitlines()]
PLACE = "projects/my-project/locations/us-central1-a"
VM = SliceName("my-project", "us-central1-a", "vm")
ASKED = SliceRequest(VM, "v5litepod-4", "v2-alpha-tpuv5-lite")
TOKEN = EmulatorToken("the-token")


def answered(row: dict[str, Any], stub: StubApi, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what the client makes of the body; an error of an operation is returned, any other one raised."""
    api, body, call = TpuApi(stub.url, EmulatorToken("the-token"), emulated=True), row["body"], row["call"]
    stub.answers(StubReply(row["http_status"] or 200, body))
    if call.rpartition("/")[2] == "op":
        stub.answers(StubReply(200, {"name": f"{PLACE}/operations/o-1", "done": True, "error": body}))
        return api.create(ASKED).error
    match row["service"], call:
        case "tpu", "nodes.create" | "queuedResources.create":
            return api.create(ASKED)
        case "tpu", "nodes.get":
            return api.get(VM)
        case "tpu", "nodes.list":
            return api.list(VM.project, VM.zone)
        case "tpu", "operations.get":
            return api.operation(body["name"])
        case "storage", _:
            monkeypatch.setattr(objects, "STORAGE", stub.url)
            return objects.bucket("b", project=VM.project, bearer=TOKEN)
        case "oauth2", _:
            from google.auth.exceptions import RefreshError

            if isinstance(body, str):
                raise error_translation.auth_error(RefreshError(body))
            raise error_translation.auth_error(RefreshError(f"{body['error']}: {body['error_description']}", body))
        case "iap", _:
            return through_relay(body["close_code"], body["reason"])
        case "kubernetes", "events":
            return words.for_nodes(body["scheduler"], body["events"])
        case "kueue", _:
            condition = {"type": "QuotaReserved", "status": "False", "message": body["message"]}
            return words.for_kueue({"status": {"conditions": [condition]}})
        case "kubernetes", _:
            raise kube_api.of_reply(row["http_status"], json.dumps(body).encode(), server="the cluster")
    return api_call("POST", f"{stub.url}/v1/projects/my-project:any", {}, TOKEN, emulated=True)


def through_relay(code: int, reason: str) -> None:
    async def refuse(_relay: ScriptedRelay, websocket: Any) -> None:
        await websocket.close(code=code, message=reason.encode())

    with scripted(refuse) as server:
        dial(Relay(TOKEN, f"ws://127.0.0.1:{server.port}/v4", emulated=True), RelayTarget("p", "z", "vm")).close()


@pytest.mark.parametrize(
    "row", [each for each in ROWS if not {"held_by", "unplayed"} & each["wants"].keys()], ids=lambda row: row["id"]
)
def test_a_literal_answer_becomes_what_its_row_says(
    row: dict[str, Any], stub: StubApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants = dict(row["wants"])
    try:
        found = answered(row, stub, monkeypatch)
    except TpujobError as error:
        found = error
    if not isinstance(found, TpujobError):
        shown = found if isinstance(found, str | None) else {name: getattr(found, name) for name in wants["fields"]}
        assert json.loads(json.dumps(shown)) == wants["fields"]
        return
    hint = wants.pop("hint")
    assert (hint in (found.hint or "")) if hint else found.hint is None
    step = step_after(found).value if isinstance(found, CloudError) else None
    assert {"error": type(found).__name__, "exit": found.exit_code, "step": step} == wants
    assert found.message.strip() and "EID" not in found.message and "\n" not in found.message
    if isinstance(details := getattr(found, "details", None), dict) and row["service"] != "kubernetes":
        sent = row["body"].get("error", row["body"])
        assert details["message"] == sent["message"], "the message is kept whole, error id included"


@pytest.mark.parametrize("row", [each for each in ROWS if "held_by" in each["wants"]], ids=lambda row: row["id"])
def test_what_is_no_answer_to_a_call_names_the_test_that_plays_it(row: dict[str, Any]) -> None:
    file, _, name = row["wants"]["held_by"].partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


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
    return TpuApi(cloud.stub.url, EmulatorToken("the-token"), emulated=True)


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


def test_a_create_that_is_late_is_not_sent(cloud: Api, api: TpuApi) -> None:
    with pytest.raises(NotSent, match=r"was not sent: this machine, or tpujob, stood still before it"):
        api.create(WANTED, lambda: False)
    assert cloud.asked == []


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
    google_like = TpuApi(cloud.stub.url, FixedToken("old", "new"), emulated=False)
    cloud.replies[f"POST {ZONE}/queuedResources"] = failure(401, "UNAUTHENTICATED")
    with pytest.raises(errors.AuthError):
        google_like.create(WANTED)


def test_a_name_and_a_request_that_differ_in_being_queued_are_our_own_mistake(cloud: Api, api: TpuApi) -> None:
    for wrong in (replace(WANTED, queue=None), replace(WANTED, name=replace(NAME, queued=False))):
        with pytest.raises(errors.BadRequest, match="queued"):
            api.create(wrong)
    assert not cloud.stub.asked


# -- get ---------------------------------------------------------------------------------------------------------------


def view_of(cloud: Api, api: TpuApi, *there: dict[str, Any]) -> SliceView:
    """What a client says of the request, of its node, or of both."""
    cloud.replies |= {f"GET {each['name']}": StubReply(200, each) for each in there}
    view = api.get(NAME)
    assert view is not None
    return view


def test_a_queued_slice_is_absent_only_when_neither_request_nor_node_is_there(cloud: Api, api: TpuApi) -> None:
    assert api.get(NAME) is None
    assert cloud.asked == [("GET", REQUEST), ("GET", NODE)], "a node may come of the request until that is gone"


@pytest.mark.parametrize("silent", [REQUEST, NODE])
def test_an_answer_that_is_missing_is_no_absence(cloud: Api, api: TpuApi, silent: str) -> None:
    for reply, kind in (
        (failure(503, "UNAVAILABLE"), errors.CloudUnavailable),
        (failure(403, "PERMISSION_DENIED"), errors.AuthError),
    ):
        cloud.replies[f"GET {silent}"] = reply
        with pytest.raises(kind):
            api.get(NAME)


def test_a_request_that_waits_is_seen_with_what_it_asks_for(cloud: Api, api: TpuApi) -> None:
    view = view_of(cloud, api, request())
    assert (view.name, view.state, view.native_state) == (NAME, SliceState.QUEUED, "WAITING_FOR_RESOURCES")
    assert (view.accelerator_type, view.runtime_version) == ("v5litepod-4", "v2-alpha-tpuv5-lite")
    assert (dict(view.labels), view.spot, view.created_at, view.error) == (LABELS, True, 1795262400.0, None)


def test_once_there_is_a_node_the_view_is_of_the_node(cloud: Api, api: TpuApi) -> None:
    view = view_of(cloud, api, request("ACTIVE"), node())
    assert (view.name, view.state) == (NAME, SliceState.READY)
    assert view_of(cloud, api, request("SUSPENDED"), node(state="PREEMPTED")).native_state == "PREEMPTED"


STATES = {
    SliceState.QUEUED: ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"],
    SliceState.CREATING: ["PROVISIONING", "ACTIVE"],
    SliceState.DELETING: ["SUSPENDING", "DELETING"],
    SliceState.TOMBSTONE: ["SUSPENDED", "FAILED"],
    SliceState.UNKNOWN: ["STATE_UNSPECIFIED"],
}


def test_every_state_of_the_queue_has_a_meaning(cloud: Api, api: TpuApi) -> None:
    from google.cloud import tpu_v2

    meaning = {native: state for state, natives in STATES.items() for native in natives}
    assert set(meaning) == {state.name for state in tpu_v2.QueuedResourceState.State}
    for state in tpu_v2.QueuedResourceState.State:
        for written in (state.name, int(state)):
            view = view_of(cloud, api, request(written))
            assert (view.state, view.native_state) == (meaning[state.name], state.name)
    view = view_of(cloud, api, request("HIBERNATING"))
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
    cloud: Api, api: TpuApi, said: dict[str, Any] | None, kind: type[errors.CloudError]
) -> None:
    more: dict[str, Any] = {} if said is None else {"failedData": {"error": said}}
    view = view_of(cloud, api, request("FAILED", **more))
    assert view.state is SliceState.TOMBSTONE and type(view.error) is kind
    if said is not None:
        assert view.error.message == said["message"]


def test_the_end_that_the_cloud_itself_keeps_is_read_from_the_node(cloud: Api, api: TpuApi) -> None:
    ends = {"terminationTimestamp": "2026-11-21T14:00:00Z"}
    assert view_of(cloud, api, node(schedulingConfig=ends)).deadline == 1795262400.0 + 7200


# -- list --------------------------------------------------------------------------------------------------------------


def lists(cloud: Api, nodes: dict[str, Any], requests: dict[str, Any]) -> None:
    cloud.replies[f"GET {ZONE}/nodes"] = StubReply(200, nodes)
    cloud.replies[f"GET {ZONE}/queuedResources"] = StubReply(200, requests)


def test_a_list_has_one_row_for_a_request_and_its_node(cloud: Api, api: TpuApi) -> None:
    other = request(name=f"{ZONE}/queuedResources/tpujob-other")
    plain = node(name=f"{ZONE}/nodes/plain")
    lists(cloud, {"nodes": [node(queuedResource=REQUEST), plain]}, {"queuedResources": [request("ACTIVE"), other]})
    rows = api.list(NAME.project, NAME.zone, queued=True).rows
    assert [(row.name.node, row.name.queued, row.native_state) for row in rows] == [
        (NAME.node, True, "READY"),
        ("plain", False, "READY"),
        ("tpujob-other", True, "WAITING_FOR_RESOURCES"),
    ]
    assert [row.name for row in api.list(NAME.project, NAME.zone).rows] == [row.name for row in rows[:2]]
    assert cloud.asked.count(("GET", f"{ZONE}/queuedResources")) == 1, "without api for the queue it is not read"


def test_a_node_of_a_request_with_another_name_is_a_node(cloud: Api, api: TpuApi) -> None:
    lists(cloud, {"nodes": [node(queuedResource=f"{ZONE}/queuedResources/theirs")]}, {})
    [row] = api.list(NAME.project, NAME.zone).rows
    assert row.name == replace(NAME, queued=False)


def test_a_list_is_complete_only_if_both_are(cloud: Api, api: TpuApi) -> None:
    for nodes, requests in (({"unreachable": ["x"]}, {}), ({}, {"unreachable": ["x"]})):
        lists(cloud, nodes, requests)
        assert api.list(NAME.project, NAME.zone, queued=True).unreachable == ("x",)
    lists(cloud, {}, {})
    assert api.list(NAME.project, NAME.zone, queued=True).complete
    cloud.replies[f"GET {ZONE}/queuedResources"] = failure(403, "PERMISSION_DENIED")
    with pytest.raises(errors.AuthError):
        api.list(NAME.project, NAME.zone, queued=True)


@pytest.mark.parametrize("rows", ["5", '[{"name": "x"}]', "[5]"])
def test_a_list_of_something_else_is_an_unexpected_reply(cloud: Api, api: TpuApi, rows: str) -> None:
    lists(cloud, {}, {})
    cloud.replies[f"GET {ZONE}/queuedResources"] = StubReply(200, f'{{"queuedResources": {rows}}}')
    with pytest.raises(errors.UnexpectedReply):
        api.list(NAME.project, NAME.zone, queued=True)


# -- delete ------------------------------------------------------------------------------------------------------------


def test_a_delete_takes_the_request_and_its_node_in_one_call(cloud: Api, api: TpuApi) -> None:
    cloud.replies[f"DELETE {REQUEST}"] = operation(REQUEST)
    deleted = api.delete(NAME)
    assert deleted is not None and deleted.target == REQUEST
    [asked] = cloud.stub.asked
    assert parse_qs(urlsplit(asked.path).query)["force"] == ["true"]


def test_a_node_whose_request_is_gone_is_deleted_by_itself(cloud: Api, api: TpuApi) -> None:
    assert api.delete(NAME) is None
    assert cloud.asked == [("DELETE", REQUEST), ("DELETE", NODE)]
    cloud.replies[f"DELETE {NODE}"] = operation(NODE)
    deleted = api.delete(NAME)
    assert deleted is not None and deleted.target == NODE


def test_who_may_not_delete_requests_deletes_the_node_and_is_told(cloud: Api, api: TpuApi) -> None:
    cloud.replies[f"DELETE {REQUEST}"] = failure(403, "PERMISSION_DENIED")
    cloud.replies[f"DELETE {NODE}"] = operation(NODE)
    with pytest.raises(errors.AuthError):
        api.delete(NAME)
    assert cloud.asked == [("DELETE", REQUEST), ("DELETE", NODE)]


def test_a_delete_of_which_nothing_is_known_leaves_the_node_to_the_next_one(cloud: Api, api: TpuApi) -> None:
    cloud.replies[f"DELETE {REQUEST}"] = failure(503, "UNAVAILABLE")
    with pytest.raises(errors.CloudUnavailable):
        api.delete(NAME)
    assert cloud.asked == [("DELETE", REQUEST)]


def test_the_same_request_goes_to_google_as_to_the_emulator() -> None:
    assert create_request(WANTED)["url"].startswith(f"https://tpu.googleapis.com/v2/{ZONE}/queuedResources?")
