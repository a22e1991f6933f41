"""Literal refusals of the real cloud through the whole command: which place is asked next, and what the user is told."""

from __future__ import annotations

import json
import re

import pytest

from tests import ROOT
from tests.cli_fixture import Tpujob

LINES = (ROOT / "tests/contract/clouds/literal_replies.jsonl").read_text(encoding="utf-8").splitlines()
ROWS = {row["id"]: row for row in map(json.loads, LINES)}
FIRST, SECOND = "us-central1-a", "us-west4-a"
FULL = f"no capacity in any zone that was asked for ({FIRST}, {SECOND})"


def refused_in_the_first_zone(tpujob: Tpujob, name: str) -> None:
    """Let creates in FIRST get the literal answer of a row."""
    row = ROWS[name]
    (tpujob.directory / "answer.json").write_text(json.dumps(row["body"]))
    call, _, operation = row["call"].partition("/")
    how = ("create_fails",) if operation else ("status", f"status={row['http_status']}")
    words = (*how, f"literal=@{tpujob.directory / 'answer.json'}", "--on", call, "--zone", FIRST)
    added = tpujob("emulator", "fault", "add", *words)
    assert added.returncode == 0, added.text


def zones_asked(tpujob: Tpujob) -> list[str]:
    creates = [*tpujob.requests("nodes.create"), *tpujob.requests("queuedResources.create")]
    return [re.search(r"/locations/([^/]+)/", row["path"])[1] for row in creates]  # type: ignore[index]


@pytest.mark.parametrize(("name", "zones", "code", "said"), [
    ("tpu-stockout-queue-hint", [FIRST, SECOND], 69, FULL),
    ("tpu-reservation-not-found", [FIRST, SECOND], 69, FULL),
    ("tpu-type-notfound-v4-128", [FIRST, SECOND], 69, f"no capacity in {SECOND}; refused: "),
    ("tpu-flex-not-supported", [FIRST, SECOND], 69, f"no capacity in {SECOND}; refused: "),
    ("tpu-quota-zone-429", [FIRST, SECOND], 69, f"no capacity in {SECOND}; quota: Quota 'TPUV5sLitepodServingPer"),
    ("tpu-location-policy", [FIRST, SECOND], 69, f"no capacity in {SECOND}; no permission: "),
    ("tpu-shielded-policy", [FIRST], 77, "constraints/compute.requireShieldedVm requires secure boot"),
    ("tpu-free-trial", [FIRST], 77, "console.cloud.google.com/billing/linkedaccount?project=emulated"),
    ("tpu-node-arch-denied", [FIRST], 64, "the old TPU Node architecture"),
])  # fmt: skip
def test_a_refusal_of_a_place_leads_to_the_next_and_one_of_the_project_ends_the_search(
    tpujob: Tpujob, name: str, zones: list[str], code: int, said: str
) -> None:
    queued = "queuedResources" in ROWS[name]["call"]
    refused_in_the_first_zone(tpujob, name)
    tpujob.fault("create_fails", match={"zone": SECOND})
    how = "provisioning: flex-start, " if queued else ""
    ended = tpujob("run", tpujob.job(f"tpu: {{{how}zone: [{FIRST}, {SECOND}]}}\ncommand: 'true'\n"))
    assert (ended.returncode, zones_asked(tpujob)) == (code, zones), ended.text
    assert said in ended.text and tpujob.alive() == []


def test_what_one_place_does_not_offer_the_next_one_has_and_a_wait_changes_nothing(tpujob: Tpujob) -> None:
    refused_in_the_first_zone(tpujob, "tpu-type-notfound-v4-128")
    job = f"tpu: {{wait: 1h, accelerator: v4-8, zone: [{FIRST}, us-central2-b]}}\ncommand: 'true'\n"
    ended = tpujob("run", tpujob.job(job))
    assert ended.returncode == 0 and zones_asked(tpujob) == [FIRST, "us-central2-b"], ended.text
    asked = (
        f"the table of offers has no v4-8 (on-demand) in {FIRST}, but in us-central2-b; the cloud is asked all the same"
    )
    assert asked in " ".join(ended.text.split()), ended.text


def test_a_fresh_slice_whose_addresses_and_whose_role_at_the_relay_come_late_is_waited_for(tpujob: Tpujob) -> None:
    tpujob.fault("few_endpoints", match={"state": "READY"}, when={"first": 2})
    tpujob.fault("relay_refuse", "relay.connect", close_code=4033, when={"first": 3})
    job = f"access: {{via: iap}}\ntpu: {{accelerator: v5e-4x4, zone: {FIRST}}}\ncommand: 'true'\n"
    ended = tpujob("run", tpujob.job(job))
    assert ended.returncode == 0 and tpujob.alive() == [], ended.text
    assert [fault["hits"] for fault in tpujob.admin("GET", "faults")["faults"]] == [2, 3]


def test_a_job_may_ask_for_secure_boot(tpujob: Tpujob) -> None:
    planned = tpujob(
        "plan", "--json", tpujob.job(f"access: {{secure_boot: true}}\ntpu: {{zone: {FIRST}}}\ncommand: ls\n")
    )
    (candidate,) = json.loads(planned.stdout)["candidates"]
    assert candidate["request"]["body"]["shieldedInstanceConfig"] == {"enableSecureBoot": True}
