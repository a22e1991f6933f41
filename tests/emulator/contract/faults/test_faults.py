"""Faults through the real daemon, as the real client meets them, and the request log."""

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloud_tpu_emulator.daemon import control
from orchestrator import errors
from orchestrator.places.google.credentials import EmulatorToken
from orchestrator.places.tpu.api.client import TpuApi
from orchestrator.promise.lease.cloud_api import Listing, SliceRequest, SliceState, SliceView
from orchestrator.promise.lease.lease import SliceName
from tests.cli_fixture import Tpujob
from tests.contract.conftest import finish
from tests.emulator.contract.conftest import Machine, client_for, machines
from tests.emulator.fixture import Emulator, Fault
from tests.waiting import HANG_S, until

ZONE = "us-central1-a"
OURS = "tpujob-faults-"
numbers = count(1)


@pytest.fixture
def api(shared_emulator: Emulator) -> Iterator[TpuApi]:
    """The client. Nodes that the test leaves are deleted."""
    client = TpuApi(shared_emulator.url, EmulatorToken(shared_emulator.token), emulated=True)
    yield client
    for row in client.list("emulated", ZONE).rows:
        if row.name.node.startswith(OURS):  # other tests have nodes here, too
            delete(client, row.name)


@pytest.fixture
def broken(api: TpuApi, fault: Fault) -> Fault:
    """Add one fault, by default for the next call, and return its id."""

    def add(kind: str, operation: str | None = None, **fields: Any) -> str:
        return fault(kind, **{"when": {"first": 1}} | ({"operation": operation} if operation else {}) | fields)

    return add


def request() -> SliceRequest:
    """Return a request with a new name."""
    name = SliceName("emulated", ZONE, f"{OURS}{next(numbers)}")
    return SliceRequest(name, "v5litepod-4", "v2-alpha-tpuv5-lite", labels={"tpujob": "1"})


def ready(api: TpuApi) -> SliceName:
    wanted = request()
    finish(api, api.create(wanted))
    return wanted.name


def with_login(api: TpuApi, emulator: Emulator, key: Path, ssh_keys: str) -> tuple[SliceName, str, Machine]:
    """Return a READY node, its full name, and its worker."""
    wanted = request()
    finish(api, api.create(replace(wanted, metadata={"ssh-keys": ssh_keys})))
    path = f"projects/emulated/locations/{ZONE}/nodes/{wanted.name.node}"
    [machine] = machines(client_for(emulator), path, key)
    return wanted.name, path, machine


def act(emulator: Emulator, name: SliceName, action: str, **body: Any) -> None:
    emulator.request("POST", f"/_emulator/nodes/{name.node}:{action}", body)


def delete(api: TpuApi, name: SliceName) -> None:
    operation = api.delete(name)
    if operation is not None:
        finish(api, operation)
    until(lambda: api.get(name), wanted=lambda view: view is None)


def log(emulator: Emulator, node: str = "", after: int = 0) -> list[dict[str, Any]]:
    query = f"?after={after}" + (f"&node={node}" if node else "")
    rows: list[dict[str, Any]] = emulator.request("GET", f"/_emulator/requests{query}")["requests"]
    return rows


# -- the reply ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "kind", "message"), [
    (400, errors.WrongState, "get is not supported while in state CREATING"),
    (401, errors.AuthError, "invalid authentication credentials"),
    (403, errors.AuthError, "Permission 'tpu.nodes.get' denied on"),
    (404, errors.UnexpectedReply, "not in the API's form: Error 404"),
    (409, errors.WrongState, "unable to queue the operation"),
    (429, errors.CloudUnavailable, "Quota exceeded for GetNodes? requests per minute"),
    (500, errors.CloudUnavailable, "an internal error has occurred"),
    (502, errors.CloudUnavailable, "not in the API's form: Error 502"),
    (503, errors.CloudUnavailable, "currently unavailable"), (504, errors.CloudUnavailable, "Deadline expired"),
])  # fmt: skip
def test_an_http_error_becomes_an_error_of_the_client(
    api: TpuApi,
    broken: Fault,
    shared_emulator: Emulator,
    status: int,
    kind: type[errors.CloudError],
    message: str,
) -> None:
    name = request().name
    fault = broken("status", "nodes.get", status=status)
    with pytest.raises(kind, match=message):
        api.get(name)
    assert api.get(name) is None
    first, second = log(shared_emulator, name.node)
    assert (first["status"], first["faults"]) == (status, [fault])
    assert (second["status"], second["faults"]) == (404, [])


def test_a_429_has_retry_after(api: TpuApi, broken: Fault) -> None:
    broken("status", "nodes.list", status=429, retry_after_s=7)
    with pytest.raises(errors.CloudUnavailable) as caught:
        api.list("emulated", ZONE)
    assert caught.value.retry_after_s == 7


def test_a_404_in_json_is_a_false_absence(api: TpuApi, broken: Fault) -> None:
    name = ready(api)
    broken("status", "nodes.get", status=404, body="json")
    assert api.get(name) is None
    assert api.get(name) is not None


@pytest.mark.parametrize(("kind", "made"), [("lost_reply", 1), ("drop", 0)])
def test_a_connection_that_closes_without_a_reply(
    api: TpuApi, broken: Fault, shared_emulator: Emulator, kind: str, made: int
) -> None:
    fault = broken(kind, "nodes.create")
    wanted = request()
    with pytest.raises(errors.CloudUnavailable, match="cannot be reached"):
        api.create(wanted)
    assert [row.name for row in api.list("emulated", ZONE).rows].count(wanted.name) == made
    [call] = log(shared_emulator, wanted.name.node)
    assert (call["operation"], call["status"], call["faults"]) == ("nodes.create", None, [fault])
    assert call["seconds"] is not None


def test_a_slow_reply_is_a_reply_and_a_hang_ends_with_a_closed_connection(api: TpuApi, broken: Fault) -> None:
    broken("slow", "nodes.list", seconds=0.2)
    started = time.monotonic()
    assert api.list("emulated", ZONE).complete
    broken("hang", "nodes.list", seconds=0.2)
    with pytest.raises(errors.CloudUnavailable, match="cannot be reached"):
        api.list("emulated", ZONE)
    assert time.monotonic() - started >= 0.4


@pytest.mark.parametrize("form", ["truncated", "html", "empty", "large", "types"])
def test_a_body_that_is_not_the_apis_is_never_accepted(api: TpuApi, broken: Fault, form: str) -> None:
    name = ready(api)
    broken("garbage", "nodes.get", form=form)
    with pytest.raises((errors.UnexpectedReply, errors.CloudUnavailable)):
        api.get(name)


def test_the_clock_of_the_server_can_be_wrong(api: TpuApi, broken: Fault) -> None:
    broken("clock", "nodes.list", seconds=-86400)
    listing: Listing[SliceView] = api.list("emulated", ZONE)
    assert listing.server_now == pytest.approx(time.time() - 86400, abs=600)
    assert api.list("emulated", ZONE).server_now == pytest.approx(time.time(), abs=600)


def test_the_clock_of_a_refusal_is_wrong_too(shared_emulator: Emulator, broken: Fault) -> None:
    import requests

    broken("clock", "nodes.get", seconds=3600)
    reply = requests.get(
        f"{shared_emulator.url}/v2/projects/emulated/locations/{ZONE}/nodes/none",
        headers={"Authorization": f"Bearer {shared_emulator.token}"},
        timeout=HANG_S,
    )
    output = time.mktime(time.strptime(reply.headers["Date"], "%a, %d %b %Y %H:%M:%S GMT")) - time.timezone
    assert reply.status_code == 404
    assert output == pytest.approx(time.time() + 3600, abs=600)


# -- the cloud ----------------------------------------------------------------------------------------------------


def test_lists_under_faults(api: TpuApi, broken: Fault) -> None:
    first, second = ready(api), ready(api)
    broken("unreachable", "nodes.list")
    assert not api.list("emulated", ZONE).complete
    broken("unreachable", "operations.list")
    assert not api.operations("emulated", ZONE).complete
    broken("stale_list", seconds=600)
    assert {first, second}.isdisjoint(row.name for row in api.list("emulated", ZONE).rows)
    broken("page_loop", "nodes.list", when={})
    with pytest.raises(errors.UnexpectedReply, match="does not end: it named the same next page twice"):
        api.list("emulated", ZONE)
    broken("page_error", "operations.list", when={})
    with pytest.raises(errors.CloudUnavailable, match="internal error"):
        api.operations("emulated", ZONE)


# -- nodes and workers --------------------------------------------------------------------------------------------


def test_the_ssh_port_of_a_worker_can_be_closed_or_silenced_and_opened_again(
    api: TpuApi, shared_emulator: Emulator
) -> None:
    name = ready(api)
    [worker] = api.workers(name)

    def become(condition: str) -> None:
        act(shared_emulator, name, "worker", worker=0, condition=condition)

    def connection() -> socket.socket:
        return socket.create_connection((worker.host, worker.port), timeout=HANG_S)

    def greeting() -> bytes:
        with connection() as made:
            return made.recv(4)

    assert greeting() == b"SSH-"
    become("refusing")
    with pytest.raises(ConnectionRefusedError):
        greeting()
    become("silent")
    with connection() as unheard:
        become("refusing")
        assert not read_all(unheard)
    with pytest.raises(ConnectionRefusedError):
        greeting()
    become("well")
    assert greeting() == b"SSH-"
    become("silent")
    delete(api, name)
    with pytest.raises(ConnectionRefusedError):
        greeting()


def read_all(connection: socket.socket) -> bytes:
    """Read until the other side closes the connection."""
    output = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(4096):
            output += piece
    return output


def states(pids: Iterable[int]) -> set[str]:
    """Return the states of running processes: a child that ended meanwhile may be a zombie, or absent."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.add(psutil.Process(pid).status())
    return found - {psutil.STATUS_ZOMBIE}


def test_a_frozen_worker_is_stopped_with_its_connections_open_and_resumes_later_and_one_may_upgrade_itself(
    api: TpuApi, shared_emulator: Emulator, login_key: Path, ssh_keys: str
) -> None:
    name, path, machine = with_login(api, shared_emulator, login_key, ssh_keys)
    ticking = subprocess.Popen(
        machine.argv("while :; do echo tick; sleep 0.02; done"), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert ticking.stdout.readline() == b"tick\n"
    act(shared_emulator, name, "worker", worker=0, condition="frozen")
    [node] = [row for row in shared_emulator.processes() if row["name"] == path]
    assert states(node["pids"]) == {psutil.STATUS_STOPPED}
    with socket.create_connection(("127.0.0.1", machine.port), timeout=HANG_S) as unheard:
        assert ticking.poll() is None
        act(shared_emulator, name, "worker", worker=0, condition="well")
        assert not read_all(unheard)
    for _ in range(20):
        assert ticking.stdout.readline() == b"tick\n"
    assert machine.output("echo here") == "here"
    act(shared_emulator, name, "worker", worker=0, condition="upgrading")
    held = machine.output("sudo A=b apt-get -qq install -y x 2>&1; echo $?; apt-get update 2>/dev/null; echo $?")
    assert "lock-frontend. It is held by process" in held and held.split()[-2:] == ["100", "100"]
    act(shared_emulator, name, "worker", worker=0, condition="well")
    assert not {"sudo", "apt-get"} & set(machine.output("ls ${PATH%%:*}").split())
    delete(api, name)
    ticking.wait(timeout=HANG_S)
    ticking.stdout.close()


@pytest.mark.exhaustive
def test_a_worker_that_a_killed_daemon_froze_resumes_after_a_restart(
    emulator: Emulator, login_key: Path, ssh_keys: str
) -> None:
    client = TpuApi(emulator.url, EmulatorToken(emulator.token), emulated=True)
    name, _, machine = with_login(client, emulator, login_key, ssh_keys)
    pid = int(machine.output("setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $!"))
    act(emulator, name, "worker", worker=0, condition="frozen")
    assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
    emulator.kill()
    emulator.restarted()
    assert psutil.Process(pid).status() != psutil.STATUS_STOPPED
    assert machine.output("echo here") == "here"


# -- the log and the daemon's own paths ---------------------------------------------------------------------------


def test_the_log_has_caller_call_time_and_status(api: TpuApi, shared_emulator: Emulator) -> None:
    began = time.time()
    name = ready(api)
    delete(api, name)
    rows = log(shared_emulator, name.node)
    assert [rows[0]["operation"], rows[-1]["operation"]] == ["nodes.create", "nodes.get"]
    [deletion] = [row for row in rows if row["operation"] == "nodes.delete"]
    assert (deletion["method"], deletion["status"], deletion["caller"]) == ("DELETE", 200, "client")
    assert deletion["resource"] == f"projects/emulated/locations/{ZONE}/nodes/{name.node}"
    assert deletion["path"].startswith(f"/v2/{deletion['resource']}")
    assert began <= deletion["at"] <= time.time()
    assert [row["number"] for row in rows] == sorted({row["number"] for row in rows})
    assert log(shared_emulator, name.node, after=rows[-2]["number"]) == rows[-1:]


def test_a_caller_without_a_token_is_in_the_log_and_meets_no_fault(shared_emulator: Emulator, broken: Fault) -> None:
    broken("drop", when={})
    with pytest.raises(errors.AuthError):
        TpuApi(shared_emulator.url, EmulatorToken("wrong"), emulated=True).get(request().name)
    last = log(shared_emulator)[-1]
    assert (last["caller"], last["status"], last["faults"]) == ("unauthenticated", 401, [])


ASK_AS_THE_VM = """python3 - <<'END'
import json, os, urllib.error, urllib.request as web
root = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/"
flavor = {"Metadata-Flavor": "Google"}
token = web.Request(root + "service-accounts/default/token", headers=flavor)
bearer = {"Authorization": "Bearer " + json.load(web.urlopen(token))["access_token"]}
try:
    print(web.urlopen(web.Request(os.environ["TPUJOB_TPU_API"] + "/v2/NAME", headers=bearer)).status)
except urllib.error.HTTPError as error:
    print(error.code)
END"""


def test_faults_of_the_vms_do_not_affect_clients(
    api: TpuApi, shared_emulator: Emulator, broken: Fault, login_key: Path, ssh_keys: str
) -> None:
    name, path, machine = with_login(api, shared_emulator, login_key, ssh_keys)
    fault = broken("status", "nodes.get", caller="vm", status=403)
    assert api.get(name) is not None
    output = [machine.output(ASK_AS_THE_VM.replace("NAME", path)) for _ in range(2)]
    assert output == ["403", "200"]
    rows = [row for row in log(shared_emulator, name.node) if row["caller"] == "vm"]
    assert [(row["status"], row["faults"]) for row in rows] == [(403, [fault]), (200, [])]


@pytest.mark.usefixtures("accepted")
def test_a_call_that_hangs_does_not_keep_the_daemon_from_stopping(emulator: Emulator) -> None:
    emulator.request("POST", "/_emulator/faults", {"kind": "hang", "seconds": 86400})
    client = TpuApi(emulator.url, EmulatorToken(emulator.token), emulated=True, timeout_s=0.2)
    with pytest.raises(errors.CloudUnavailable):
        client.list("emulated", ZONE)
    assert control.stop(emulator.state_dir)


@pytest.mark.parametrize(("method", "path", "body", "expected"), [
    ("POST", "faults", {"faults": [{"kind": "drop"}, {"kind": "hidden", "seconds": "x"}]}, "seconds must be a number"),
    ("POST", "faults", {"faults": {}}, "faults must be a list"), ("POST", "faults", [], "not a JSON object"),
    ("GET", "requests?after=x", None, "after must be the number of a request"),
])  # fmt: skip
def test_the_reply_to_a_mistake_is_one_line(
    shared_emulator: Emulator, method: str, path: str, body: Any, expected: str
) -> None:
    with pytest.raises(control.DaemonRefused) as caught:
        shared_emulator.request(method, f"/_emulator/{path}", body)
    assert expected in caught.value.message
    assert "\n" not in caught.value.message
    assert shared_emulator.request("GET", "/_emulator/faults") == {"faults": []}


@pytest.mark.parametrize(("action", "body", "expected"), [
    ("put", {"state": "GONE"}, "state must be one of READY, STOPPED"),
    ("put", None, "state must be one of READY, STOPPED"),
    ("worker", {"worker": 1, "condition": "silent"}, "worker must be a whole number from 0 to 0, not 1"),
    ("worker", {"worker": 0, "condition": "ill"}, "condition must be one of well, refusing, silent, frozen"),
])  # fmt: skip
def test_the_reply_to_a_mistake_about_a_node_is_one_line(
    api: TpuApi, shared_emulator: Emulator, action: str, body: Any, expected: str
) -> None:
    name = ready(api)
    with pytest.raises(control.DaemonRefused) as caught:
        shared_emulator.request("POST", f"/_emulator/nodes/{name.node}:{action}", body)
    assert expected in caught.value.message


# -- the commands -------------------------------------------------------------------------------------------------


def test_a_rehearsal_from_the_command_line(tpujob: Tpujob) -> None:
    def says(*words: str) -> str:
        done = tpujob("emulator", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    output = says("fault", "add", "status", "status=429", "retry_after_s=2", "--on", "nodes.get", "--first", "1")
    fault, *rest = output.split("\t")
    assert rest[:3] == ["status", "nodes.get", "0 of 0 calls"]
    assert "calls=1 status=429" in output
    client = TpuApi(tpujob.emulator.url, EmulatorToken(tpujob.emulator.token), emulated=True)
    with pytest.raises(errors.CloudUnavailable, match="per minute"):
        client.get(request().name)
    [row] = json.loads(says("fault", "list", "--json"))
    assert (row["hits"], row["calls"]) == (1, 1)
    rehearsal = tpujob.directory / "rehearsal.json"
    rehearsal.write_text(json.dumps([{"kind": "slow", "seconds": 0}, {"kind": "drop", "caller": "vm"}]))
    _, last = [line.split("\t")[0] for line in says("fault", "load", str(rehearsal)).splitlines()]
    assert says("fault", "clear", fault, last) == "cleared 2\n"
    assert says("fault", "clear") == "cleared 1\n"

    wanted = request()
    finish(client, client.create(wanted))
    assert says("worker", wanted.name.node, "0", "silent").endswith("\tREADY\n")
    assert says("put", wanted.name.node, "repairing", "--for", "0.1s").endswith("\tREPAIRING\n")
    until(lambda: client.get(wanted.name).state is SliceState.READY)
    assert says("maintain", wanted.name.node, "--notice", "1h", "--lasts", "10s", "--scheduled").endswith("\tREADY\n")
    assert says("preempt", wanted.name.node, "--notice", "1h").endswith("\tREADY\n")
    assert says("preempt", wanted.name.node).endswith("\tPREEMPTED\n")
    says("vanish", wanted.name.node)
    assert client.get(wanted.name) is None
    [refused] = [row for row in json.loads(says("requests", "--json", "--last", "5000")) if fault in row["faults"]]
    assert (refused["operation"], refused["status"]) == ("nodes.get", 429)
    lines = says("requests", "--node", wanted.name.node, "--last", "1").splitlines()
    assert [line.split("\t")[1:4] for line in lines] == [["client", "404", "GET"]]


@pytest.mark.parametrize(("words", "expected"), [
    (["fault", "add", "boom"], 'There is no fault of kind "boom"; there are status,'),
    (["fault", "add", "hidden", "5"], "'5' is not of the form NAME=VALUE"),
    (["fault", "add", "hidden", "seconds=soon"], "seconds must be a number from 0 to 1e+09, not 'soon'."),
    (["fault", "add", "drop", "--calls", "0"], "when.calls counts upwards from 1; '0' is not such a range."),
    (["fault", "load", "nowhere.json"], "nowhere.json cannot be read: No such file"),
    (["fault", "clear", "f9"], 'There is no fault "f9".'),
    (["preempt", "nothing"], 'There is no node "nothing"; there are no nodes.'),
    (["preempt", "a b"], 'There is no node "a b"; there are no nodes.'),
    (["capacity", "set", "us-central1-a", "none"], "'us-central1-a' is not of the form ZONE/TYPE"),
    (["capacity", "set", "*/*", "few"], "'few' is neither a number of chips nor none nor all"),
    (["capacity", "set", "*/*", "1", "--tier", "cheap"], "capacity[0].tier must be one of any, on-demand,"),
    (["capacity", "set", "*/*", "1", "--until", "soon"], "--until soon: "),
    (["rehearse", "nowhere.yaml"], "nowhere.yaml cannot be read: No such file"),
    (["rehearse", "nowhere.yaml", "--end"], "a file begins a rehearsal, and --end ends it"),
])  # fmt: skip
def test_a_mistake_on_the_command_line_is_one_line_and_exit_64(tpujob: Tpujob, words: list[str], expected: str) -> None:
    done = tpujob("emulator", *words)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith(expected)
    assert "Traceback" not in done.stderr
