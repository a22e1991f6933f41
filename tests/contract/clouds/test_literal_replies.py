"""Literal answers of the real services, each through the client that gets it: which error it becomes, and what follows from it.

A row of `literal_replies.jsonl` has the `body`, whose envelope may be reconstructed, what it `means`, and where it was `seen`.
`wants` says what becomes of it, names the test that plays it (`held_by`), or says why nothing does (`unplayed`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lease.cloud_api import SliceName, SliceRequest
from orchestrator.core.planning.refusals import step_after
from orchestrator.errors import CloudError, TpujobError
from orchestrator.places.gke.api import errors, waiting
from orchestrator.places.google import error_translation, storage
from orchestrator.places.google.credentials import EmulatorToken, emulator_credentials
from orchestrator.places.google.json_call import json_call
from orchestrator.places.tpu.api.client import TpuApi
from orchestrator.places.tpu.api.light_client import LightApi
from orchestrator.remote.iap.dialer import Relay, dial
from orchestrator.remote.iap.relay_session import RelayTarget
from tests import ROOT
from tests.contract.remote.scripted_relay import ScriptedRelay, scripted
from tests.unit.places.stub_api import StubApi, StubReply

ROWS = [json.loads(line) for line in (Path(__file__).parent / "literal_replies.jsonl").read_text().splitlines()]
ZONE = "projects/my-project/locations/us-central1-a"
NODE = SliceName("my-project", "us-central1-a", "vm")
REQUEST = SliceRequest(NODE, "v5litepod-4", "v2-alpha-tpuv5-lite")
TOKEN = EmulatorToken("the-token")


def answered(row: dict[str, Any], stub: StubApi, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what the client makes of the body; an error of an operation is returned, any other one raised."""
    api, body, call = TpuApi(stub.url, emulator_credentials("the-token"), emulated=True), row["body"], row["call"]
    stub.answers(StubReply(row["http_status"] or 200, body))
    if call.rpartition("/")[2] == "op":
        stub.answers(StubReply(200, {"name": f"{ZONE}/operations/o-1", "done": True, "error": body}))
        light = LightApi(stub.url, TOKEN, emulated=True).operation(f"{ZONE}/operations/o-1")
        made = api.create(REQUEST)
        assert light is not None and type(light.error) is type(made.error), "both clients read it the same way"
        return made.error
    match row["service"], call:
        case "tpu", "nodes.create" | "queuedResources.create":
            return api.create(REQUEST)
        case "tpu", "nodes.get":
            return api.get(NODE)
        case "tpu", "nodes.list":
            return api.list(NODE.project, NODE.zone)
        case "tpu", "operations.get":
            return api.operation(body["name"])
        case "storage", _:
            monkeypatch.setattr(storage, "GOOGLE", stub.url)
            return storage.bucket("b", project=NODE.project, bearer=TOKEN)
        case "oauth2", _:
            from google.auth.exceptions import RefreshError

            if isinstance(body, str):
                raise error_translation.auth_error(RefreshError(body))
            raise error_translation.auth_error(RefreshError(f"{body['error']}: {body['error_description']}", body))
        case "iap", _:
            return through_relay(body["close_code"], body["reason"])
        case "kubernetes", "events":
            return waiting.for_nodes(body["scheduler"], body["events"])
        case "kueue", _:
            condition = {"type": "QuotaReserved", "status": "False", "message": body["message"]}
            return waiting.for_kueue({"status": {"conditions": [condition]}})
        case "kubernetes", _:
            raise errors.of_reply(row["http_status"], json.dumps(body).encode(), server="the cluster")
    return json_call("POST", f"{stub.url}/v1/projects/my-project:any", {}, TOKEN, emulated=True)


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
