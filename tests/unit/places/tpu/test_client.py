"""The client: its imports, its tokens, its time limits, its queued requests, and the replies that it accepts."""

import http.client
import json
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.errors import AuthError, BadRequest, CloudUnavailable, UnexpectedReply, WrongState
from orchestrator.places.google import credentials, fetch
from orchestrator.places.google.credentials import EmulatorToken, GoogleToken
from orchestrator.places.tpu.api.client import TpuApi, connect
from orchestrator.places.tpu.api.create_request import create_request
from orchestrator.promise.lease.cloud_api import EVERYWHERE, Listing, QueueTerms, SliceRequest
from orchestrator.promise.lease.lease import SliceName
from orchestrator.settings import Target
from tests import ROOT
from tests.fakes.api import StubApi, StubReply, failure, service_account
from tests.waiting import HANG_S, ran, serving

NAME = SliceName("acme-project", "us-central1-a", "tpujob-k3f9ab-7q2m4x1pzt")
NODE = {"name": f"projects/acme-project/locations/us-central1-a/nodes/{NAME.node}", "state": "READY"}


@pytest.fixture
def api(stub: StubApi) -> TpuApi:
    return TpuApi(stub.url, EmulatorToken("the-token"), emulated=True)


# -- weight ------------------------------------------------------------------------------------------------------------


def test_a_call_to_the_emulator_imports_neither_google_nor_requests(stub: StubApi) -> None:
    stub.answers(StubReply(200, NODE))
    code = f"""
import sys
from orchestrator.places.tpu.api.client import connect
from orchestrator.promise.lease.lease import SliceName
from orchestrator.settings import Target
api = connect(Target("emulated", "emulated"), {stub.url!r}, "t")
assert api.get(SliceName("acme-project", "us-central1-a", {NAME.node!r})).native_state == "READY"
print([name for name in sys.modules if name.partition(".")[0] in ("google", "requests", "grpc", "urllib3", "cryptography")])
"""
    done = ran([sys.executable, "-c", code], cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("light", [True, False])
def test_only_what_may_create_loads_the_types_of_its_request_and_it_does_so_before(stub: StubApi, light: bool) -> None:
    code = f"""
import sys
from types import SimpleNamespace
from orchestrator.places.tpu.place import PLACE
from orchestrator.settings import Target
address = lambda cloud: (Target("emulated", "emulated"), {stub.url!r}, "t")
PLACE.open_cloud(SimpleNamespace(light={light}, address=address), "emulated")
print("google.cloud.tpu_v2" in sys.modules)
"""
    done = ran([sys.executable, "-c", code], cwd=ROOT)
    assert (done.stdout.strip(), done.stderr) == (str(not light), "")


def test_one_list_asks_for_all_zones_and_nothing_else_may_be_everywhere(stub: StubApi, api: TpuApi) -> None:
    rows = [{**NODE}, {**NODE, "name": NODE["name"].replace("us-central1-a", "us-east5-b")}]
    stub.answers(StubReply(200, {"nodes": rows, "unreachable": ["projects/acme-project/locations/us-east1-d"]}))
    listing = api.list("acme-project", EVERYWHERE)
    assert [row.name.zone for row in listing.rows] == ["us-central1-a", "us-east5-b"]
    assert not listing.complete and stub.asked[-1].path == "/v2/projects/acme-project/locations/-/nodes"
    for question in (api.get, api.delete):
        with pytest.raises(BadRequest, match="is not a zone"):
            question(SliceName("acme-project", EVERYWHERE, NAME.node))


# -- trust -------------------------------------------------------------------------------------------------------------


def test_guest_attributes_are_asked_for_with_a_body(stub: StubApi, api: TpuApi) -> None:
    items = [{"namespace": "tpujob", "key": "watchdog", "value": "{}"}]
    stub.answers(StubReply(200, {"guestAttributes": [{"queryValue": {"items": items}}]}))
    assert api.guest_attributes(NAME) == ({"tpujob/watchdog": "{}"},)
    [asked] = stub.asked
    assert (asked.method, asked.path, asked.body) == ("POST", f"/v2/{NODE['name']}:getGuestAttributes", b"{}")


class Login:
    """Stands for google-auth: each look at the machine's login gives the next credentials."""

    def __init__(self, *tokens: str) -> None:
        self.tokens, self.looks = list(tokens), 0

    def __call__(self, scopes: Sequence[str]) -> Any:
        self.looks += 1
        token = self.tokens.pop(0)
        if token == "revoked":
            raise AuthError("Google did not renew your credentials: invalid_grant")
        if token == "unreachable":
            raise CloudUnavailable("Google's sign-in server cannot be reached")

        return SimpleNamespace(token=token, valid=True)


@pytest.fixture
def google(stub: StubApi) -> TpuApi:
    """The behaviour for Google's endpoint, against the stub."""
    return TpuApi(stub.url, GoogleToken(), emulated=False)


def test_the_client_signs_in_with_its_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    login = Login()
    monkeypatch.setattr(credentials, "google_credentials", login)
    api = connect(Target("google", "acme-project"), now=False)
    assert (api.endpoint, api.emulated, login.looks) == ("https://tpu.googleapis.com", False, 0)
    assert api.capabilities.settles_within_s == 2700


def test_a_refused_token_is_replaced_by_that_of_a_new_login(
    stub: StubApi, google: TpuApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = Login("old", "new")
    monkeypatch.setattr(credentials, "google_credentials", login)
    stub.answers(failure(401, "UNAUTHENTICATED"), StubReply(200, NODE))
    assert google.get(NAME) is not None
    assert [asked.headers["authorization"] for asked in stub.asked] == ["Bearer old", "Bearer new"]
    assert google.get(NAME) is not None
    assert login.looks == 2, "a token that works is used again"


def test_a_token_is_renewed_before_it_expires(stub: StubApi, google: TpuApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "google_credentials", Login("first", "second"))
    stub.answers(StubReply(200, NODE))
    google.get(NAME)
    google._bearer._credentials.valid = False  # type: ignore[attr-defined]
    google.get(NAME)
    assert [asked.headers["authorization"] for asked in stub.asked] == ["Bearer first", "Bearer second"]


def test_the_quota_project_of_a_login_is_named(stub: StubApi, google: TpuApi, monkeypatch: pytest.MonkeyPatch) -> None:
    login = SimpleNamespace(token="t", valid=True, quota_project_id="billed-project")
    monkeypatch.setattr(credentials, "google_credentials", lambda scopes: login)
    stub.answers(StubReply(200, NODE))
    google.get(NAME)
    assert stub.asked[0].headers["x-goog-user-project"] == "billed-project"


@pytest.mark.parametrize(("token", "kind"), [("revoked", AuthError), ("unreachable", CloudUnavailable)])
def test_a_login_that_does_not_work_is_the_calls_error_and_nothing_is_sent(
    stub: StubApi, google: TpuApi, monkeypatch: pytest.MonkeyPatch, token: str, kind: type[Exception]
) -> None:
    monkeypatch.setattr(credentials, "google_credentials", Login(token, "fine"))
    with pytest.raises(kind):
        google.get(NAME)
    assert not stub.asked
    stub.answers(StubReply(200, NODE))
    assert google.get(NAME) is not None, "the next call tries again"


def test_a_service_account_signs_in_over_the_standard_library(
    stub: StubApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """google-auth itself, with a real key, against a sign-in server of ours."""
    path = tmp_path / "key.json"
    path.write_text(json.dumps(service_account(f"{stub.url}/token")))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    stub.answers(StubReply(200, {"access_token": "ya29.x", "expires_in": 3600, "token_type": "Bearer"}))
    assert GoogleToken().token() == "ya29.x"
    [asked] = stub.asked
    assert (asked.method, asked.path) == ("POST", "/token")
    assert b"assertion=" in asked.body
    stub.answers(StubReply(400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}))
    with pytest.raises(AuthError, match="did not renew"):
        GoogleToken().token()


# -- what counts as an answer ------------------------------------------------------------------------------------------


@contextmanager
def raw_server(*pieces: bytes, pause_s: float = 0.0) -> Iterator[tuple[str, list[bytes]]]:
    """Sends the pieces one by one after reading the request, then closes."""
    heard: list[bytes] = []

    def serve(peer: socket.socket) -> None:
        heard.append(peer.recv(65536))
        for piece in pieces:
            peer.sendall(piece)
            time.sleep(pause_s)

    with serving(serve) as port:
        yield f"127.0.0.1:{port}", heard


@pytest.mark.usefixtures("accepted")
def test_a_slow_reply_ends_at_the_timeout() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with raw_server(head, *[b" "] * 1000, pause_s=0.02) as (
        host,
        _,
    ):  # a client that reads all of it raises another error
        api = TpuApi(f"http://{host}", EmulatorToken("t"), emulated=True, timeout_s=0.2)
        with pytest.raises(CloudUnavailable, match="did not answer in time"):
            api.get(NAME)


def test_an_endless_reply_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_REPLY_BYTES", 1 << 20)
    endless = raw_server(b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 65536] * 40)
    with endless as (host, _), pytest.raises(CloudUnavailable, match="longer than 1 MiB"):
        TpuApi(f"http://{host}", EmulatorToken("t"), emulated=True).get(NAME)


def test_a_server_without_http_is_reported_as_unreachable() -> None:
    with raw_server(b"SSH-2.0-OpenSSH_9.2\r\n") as (host, _), pytest.raises(CloudUnavailable):
        TpuApi(f"http://{host}", EmulatorToken("t"), emulated=True).get(NAME)


def test_a_reply_that_closes_itself_with_its_last_byte_is_whole(
    stub: StubApi, api: TpuApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from Python 3.13 on; the connection of a server that announces its end goes with it."""
    read1 = http.client.HTTPResponse.read1

    def closing(response: http.client.HTTPResponse, size: int = -1) -> bytes:
        piece = read1(response, size)
        if response.length == 0:
            response.close()
        return piece

    monkeypatch.setattr(http.client.HTTPResponse, "read1", closing)
    stub.answers(StubReply(200, NODE))
    assert api.get(NAME) is not None


def test_a_large_reply_is_read_whole(stub: StubApi, api: TpuApi) -> None:
    nodes = [NODE | {"name": f"{NODE['name']}-{number}", "labels": {"x": "y" * 60}} for number in range(5000)]
    stub.answers(StubReply(200, {"nodes": nodes}))
    assert len(api.list(NAME.project, NAME.zone).rows) == 5000


def test_calls_to_google_go_through_the_proxy_and_the_proxy_does_not_see_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("no_proxy", "")
    with raw_server(b"HTTP/1.1 403 Forbidden\r\n\r\n") as (proxy, heard):
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:secret%21@{proxy}")
        with pytest.raises(CloudUnavailable, match="Tunnel connection failed: 403") as caught:
            fetch.fetch(
                "GET",
                "https://tpu.googleapis.com/v2/x",
                None,
                {"Authorization": "Bearer t"},
                timeout_s=HANG_S,
                proxies=True,
            )
    assert caught.value.hint == "see HTTPS_PROXY"
    assert heard[0].startswith(b"CONNECT tpu.googleapis.com:443 HTTP/1.")
    assert b"Bearer" not in heard[0]
    assert b"Proxy-Authorization: Basic bWU6c2VjcmV0IQ==" in heard[0]


def test_a_proxy_of_an_unsupported_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(CloudUnavailable, match="is of an unsupported kind"):
        fetch.fetch("GET", "https://tpu.googleapis.com/v2/x", None, {}, timeout_s=HANG_S, proxies=True)


@pytest.mark.parametrize("node", [
    {"labels": 5}, {"labels": {"a": 5}}, {"networkEndpoints": {}}, {"networkEndpoints": [5]},
    {"createTime": "yesterday"}, {"createTime": 5},
    {"createTime": "2026-01-01T00:00:00"},  # of no time zone
    {"acceleratorType": []}, {"schedulingConfig": "spot"},
])  # fmt: skip
def test_a_node_with_a_field_of_another_type_is_refused(stub: StubApi, api: TpuApi, node: dict[str, Any]) -> None:
    stub.answers(StubReply(200, NODE | node))
    with pytest.raises(UnexpectedReply):
        api.get(NAME)


@pytest.mark.parametrize(
    ("said", "done"), [({}, False), *(({"done": each}, each is True) for each in (None, False, "true", 1, [1], True))]
)
def test_an_operation_is_done_only_where_the_reply_says_so(
    stub: StubApi, api: TpuApi, said: dict[str, Any], done: bool
) -> None:
    name = "projects/acme-project/locations/us-central1-a/operations/operation-1"
    stub.answers(StubReply(200, {"name": name, **said}), StubReply(200, {"operations": [{"name": name, **said}]}))
    found = api.operation(name)
    assert found is not None and found.done is done
    assert [row.done for row in api.operations(NAME.project, NAME.zone).rows] == [done]


def test_what_is_no_name_of_an_operation_never_leaves(stub: StubApi, api: TpuApi) -> None:
    for name in ("", "operation-1", f"{NODE['name']}/operations/x", "projects/p/locations/z/operations/../x/y"):
        with pytest.raises(BadRequest, match="is not the name of an operation"):
            api.operation(name)
    assert not stub.asked


@pytest.mark.parametrize("token", [5, ["x"], {"a": "b"}, True])
def test_a_next_page_that_is_no_text_makes_no_complete_list(stub: StubApi, api: TpuApi, token: object) -> None:
    stub.answers(StubReply(200, {"nodes": [], "nextPageToken": token}))
    with pytest.raises(UnexpectedReply, match="next page that is not text"):
        api.list(NAME.project, NAME.zone)


def test_a_list_of_pages_has_the_servers_time_of_the_first(stub: StubApi, api: TpuApi) -> None:
    """The time at which nothing of the list was read yet: later would be ahead of what the list shows."""
    first, second = (StubReply(200, {"nextPageToken": each}, (("Date", date),)) for each, date in PAGES)
    stub.answers(first, second)
    assert api.list(NAME.project, NAME.zone).server_now == 0.0


PAGES = (("more", "Thu, 01 Jan 1970 00:00:00 GMT"), ("", "Thu, 01 Jan 1970 00:00:09 GMT"))


@pytest.mark.parametrize(("state", "endpoints", "kind"), [
    ("READY", [], CloudUnavailable), ("CREATING", [{"ipAddress": "127.0.0.1"}, {}], CloudUnavailable),
    ("STOPPED", [{"ipAddress": "127.0.0.1"}, {}], WrongState), ("PREEMPTED", [], WrongState),
])  # fmt: skip
def test_workers_have_addresses_once_all_of_them_have_one(
    stub: StubApi, api: TpuApi, state: str, endpoints: list[object], kind: type[Exception]
) -> None:
    stub.answers(StubReply(200, NODE | {"state": state, "networkEndpoints": endpoints}))
    with pytest.raises(kind, match=r"has (no|1 of 2) addresses"):
        api.workers(NAME)
    assert len(stub.asked) == 1, "guest attributes are read a few times a minute only"


@pytest.mark.parametrize(
    ("hostname", "instance"), [("t1v-n-x-w-0.us-central1-a.c.p.internal", "t1v-n-x-w-0"), ("-rf", ""), ("UPPER", "")]
)
def test_the_name_of_a_vm_that_is_none_becomes_no_word_of_a_command(
    stub: StubApi, api: TpuApi, hostname: str, instance: str
) -> None:
    published = {"hostkeys": {"hostname": hostname}, "tpujob-emulator": {"ssh-port": "22"}}
    items = [{"namespace": each, "key": k, "value": v} for each, keys in published.items() for k, v in keys.items()]
    node = NODE | {"networkEndpoints": [{"ipAddress": "127.0.0.1"}]}
    stub.answers(StubReply(200, node), StubReply(200, {"guestAttributes": [{"queryValue": {"items": items}}]}))
    assert [worker.instance for worker in api.workers(NAME)] == [instance]


def test_guest_attributes_that_the_emulator_refuses_are_an_error_of_it(stub: StubApi, api: TpuApi) -> None:
    """Google may publish none or allow none to read them; the emulator always has the host keys."""
    stub.answers(failure(403, "PERMISSION_DENIED", "no"))
    with pytest.raises(AuthError):
        api.guest_attributes(NAME)


def test_zones_and_types_come_from_all_pages_each_once_and_no_odd_name_among_them(stub: StubApi, api: TpuApi) -> None:
    zones = [[{"locationId": "us-central1-a"}, {"locationId": "us central"}, {}], [{"locationId": "us-central1-a"}]]
    first, last = ({"locations": page} for page in zones)
    stub.answers(StubReply(200, first | {"nextPageToken": "2"}), StubReply(200, last))
    assert api.zones("acme-project") == Listing(("us-central1-a",))
    stub.answers(StubReply(200, {"acceleratorTypes": [{"type": "v5litepod-8"}, {"type": "v5litepod-8; id"}]}))
    assert api.accelerator_types("acme-project", "us-central1-a") == Listing(("v5litepod-8",))


@pytest.mark.parametrize("others", [[], [{"namespace": "tpujob", "key": "watchdog", "value": "{}"}]])
def test_guest_attributes_that_are_no_objects_are_refused(stub: StubApi, api: TpuApi, others: list[Any]) -> None:
    stub.answers(StubReply(200, {"guestAttributes": [{"queryValue": {"items": [*others, 5]}}]}))
    with pytest.raises(UnexpectedReply, match="not objects"):
        api.guest_attributes(NAME)


@pytest.mark.parametrize("specs", [[], [5], [{"node": {}}], None])
def test_a_queued_request_without_a_description_of_its_node_is_there_all_the_same(
    stub: StubApi, api: TpuApi, specs: object
) -> None:
    name = NODE["name"].replace("nodes", "queuedResources")
    request = {"name": name, "state": {"state": "ACCEPTED"}, "tpu": {"nodeSpec": specs}}
    stub.answers(StubReply(200, request), failure(404, "NOT_FOUND"))
    view = api.get(SliceName(NAME.project, NAME.zone, NAME.node, queued=True))
    assert view is not None and (view.native_state, view.accelerator_type) == ("ACCEPTED", "")


def test_null_fields_count_as_missing(stub: StubApi, api: TpuApi) -> None:
    fields = ("labels", "networkEndpoints", "createTime", "acceleratorType", "schedulingConfig", "health")
    stub.answers(StubReply(200, NODE | dict.fromkeys(fields)))
    view = api.get(NAME)
    assert (view.labels, view.hosts, view.created_at, view.health) == ({}, (), None, None)


ID = "6f1c2d3e-0000-4000-8000-0123456789ab"
QUEUE = QueueTerms(valid_for_s=2700.9, request_id=ID)
REQUEST = SliceRequest(
    SliceName("my-project", "us-central1-a", "tpujob-0abcde-0123456789", queued=True),
    "v5litepod-8",
    "v2-alpha-tpuv5-lite",
    labels={"tpujob": "1", "tpujob-lease-id": "0123456789"},
    metadata={"startup-script": "#!/bin/bash\n"},
    queue=QUEUE,
)
FLEX_START = replace(REQUEST, queue=replace(QUEUE, flex_start_s=7200.0))


@pytest.mark.parametrize(("spot", "reserved"), [(False, False), (True, False), (False, True)])
def test_googles_own_message_parses_every_field(spot: bool, reserved: bool) -> None:
    from google.cloud import tpu_v2
    from google.protobuf import json_format

    message = tpu_v2.QueuedResource.pb(tpu_v2.QueuedResource())
    json_format.ParseDict(create_request(replace(REQUEST, spot=spot, reserved=reserved))["body"], message)
    (spec,) = message.tpu.node_spec
    assert (spec.node_id, dict(spec.node.labels)) == (REQUEST.name.node, dict(REQUEST.labels))
    assert spec.node.metadata["startup-script"] == "#!/bin/bash\n"
    assert not spec.node.HasField("scheduling_config"), "how it is provisioned is the request's to say"
    assert message.queueing_policy.valid_until_duration.seconds == 2700
    assert message.HasField("spot") is spot
    reservation = "projects/my-project/locations/us-central1-a/reservations/-"
    assert message.reservation_name == (reservation if reserved else "")


def test_every_queued_request_has_a_time_limit() -> None:
    for request in (REQUEST, FLEX_START):
        assert create_request(request)["body"]["queueingPolicy"] == {"validUntilDuration": "2700s"}
    with pytest.raises(BadRequest):
        create_request(replace(REQUEST, queue=replace(QUEUE, valid_for_s=0.9)))


def test_flex_start_has_the_deadline_that_the_cloud_enforces() -> None:
    flex = create_request(FLEX_START)
    assert flex["body"]["provisioningModel"] == "FLEX_START"
    assert flex["body"]["runDuration"] == {"maxRunDuration": "7200s"}
    assert flex["url"].startswith("https://tpu.googleapis.com/v2alpha1/projects/my-project/locations/us-central1-a/")


def test_the_name_is_chosen_and_the_call_can_be_repeated() -> None:
    shown = create_request(REQUEST)
    path = "v2/projects/my-project/locations/us-central1-a/queuedResources"
    assert (shown["method"], shown["url"]) == (
        "POST",
        f"https://tpu.googleapis.com/{path}?queuedResourceId={REQUEST.name.node}&requestId={ID}",
    )


def test_a_plain_request_has_reserved_in_its_node() -> None:
    plain = replace(REQUEST, name=replace(REQUEST.name, queued=False), queue=None, reserved=True)
    assert create_request(plain)["body"]["schedulingConfig"]["reserved"] is True


@pytest.mark.parametrize(("queue", "changes"), [
    (replace(QUEUE, request_id="not-a-uuid"), {}), (replace(QUEUE, flex_start_s=8 * 86400.0), {}),
    (replace(QUEUE, flex_start_s=0.5), {}), (replace(QUEUE, flex_start_s=3600.0), {"spot": True}),
    (replace(QUEUE, flex_start_s=3600.0), {"reserved": True}), (QUEUE, {"spot": True, "reserved": True}),
    (QUEUE, {"name": SliceName("my-project", "us-central1-a", "../x", queued=True)}),
])  # fmt: skip
def test_an_invalid_request_is_refused(queue: QueueTerms, changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        create_request(replace(REQUEST, queue=queue, **changes))
