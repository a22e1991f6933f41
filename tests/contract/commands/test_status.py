"""`tpujob status` says what the API has, whatever the ledger knows, and says how completely it could ask.

`tpujob down` looks there too, before it says that there is nothing.
"""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.client.session import Session, default_handle
from orchestrator.client.slices import inventory
from orchestrator.core.text import names
from orchestrator.ledger.ledger import Ledger
from orchestrator.places.tpu.api.calls import ApiReply
from tests.cli_fixture import Tpujob
from tests.contract.commands.test_gc import make
from tests.unit.test_import_cost import MAIN, heavy, imported
from tests.unit.test_imports import is_within

ZONE = "us-central1-a"
NODES = f"/v2/projects/emulated/locations/{ZONE}/nodes"
OTHER = "tpujob-0ther0-0000000000"


def slices(tpujob: Tpujob) -> list[dict[str, Any]]:
    return list(json.loads(tpujob("status", "--json").stdout)["slices"])


def put_node(tpujob: Tpujob, node: str, **labels: str) -> str:
    """A slice that another ledger made, by the API."""
    now = int(time.time())
    said = {
        "tpujob": "1",
        "tpujob-lease-id": node.rpartition("-")[2],
        "tpujob-owner": node.split("-")[1],
        "tpujob-name": "jk-exp",
        "tpujob-mode": "hold",
        "tpujob-claimed-until": str(now + 3600),
        "tpujob-deadline": str(now + 7200),
    } | {f"tpujob-{key.replace('_', '-')}": value for key, value in labels.items()}
    return make(tpujob, node, "v5litepod-8", **said)


def own_node(number: int = 7) -> str:
    return names.node_name(Session.open().owner, names.new_run_id(number))


def lose_the_ledger(tpujob: Tpujob) -> None:
    for path in tpujob.own_state.glob("ledger.sqlite3*"):
        path.unlink()


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_a_lost_ledger_hides_no_slice_that_is_billed(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    (before,) = slices(tpujob)
    lose_the_ledger(tpujob)
    done = tpujob("status")
    assert done.returncode == 0 and "all zones, complete" in done.stdout
    *_, row = done.stdout.splitlines()
    assert row.startswith("alice\tv5litepod-8\tus-central1-a\tREADY\t")
    assert "held, until " in row and "; not in this machine's ledger" in row and row.endswith(before["node"])
    (after,) = slices(tpujob)
    same = ("name", "node", "zone", "accelerator_type", "state", "mode", "usd_per_hour", "emulated", "owner", "yours")
    assert {key: after[key] for key in same} == {key: before[key] for key in same} and after["yours"] is True
    assert after["lease"] is None and after["usd_so_far"] is not None
    assert after["ends_at"] == pytest.approx(before["ends_at"], abs=5)


def test_the_slice_of_another_user_is_said_to_be_theirs_and_is_none_of_the_costs(tpujob: Tpujob) -> None:
    put_node(tpujob, OTHER)
    done = tpujob("status")
    assert done.returncode == 0
    *_, line = done.stdout.splitlines()
    assert line.startswith(f"(owner 0ther0, another user or machine: jk-exp, v5litepod-8, {ZONE}, READY since 20")
    assert "$" not in line and "held, until " in line and line.endswith(f"{OTHER})")
    (row,) = slices(tpujob)
    assert (row["yours"], row["owner"], row["usd_per_hour"]) == (False, "0ther0", 9.6)


def test_a_node_that_only_looks_like_ours_is_shown_with_the_reason(tpujob: Tpujob) -> None:
    put_node(tpujob, OTHER, **{})
    make(tpujob, "tpujob-bare")
    make(tpujob, "of-another-user")
    rows = {row["node"]: row for row in slices(tpujob)}
    assert {node: row["remark"] for node, row in rows.items()} == {
        OTHER: "not in this machine's ledger",
        "tpujob-bare": "it has a name like ours, but not the label tpujob=1",
    }
    assert (rows["tpujob-bare"]["ends_at"], rows["tpujob-bare"]["usd_at_most"]) == (None, None), "it has no claim"
    assert "no claim that can be read; it has a name like ours" in tpujob("status").stdout


def test_every_project_in_which_the_ledger_has_something_open_is_asked(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE, "--cloud", "emulated", "--project", "other-project").returncode == 0
    said = json.loads(tpujob("status", "--json").stdout)
    assert [(asked["project"], asked["complete"]) for asked in said["asked"]] == [
        ("emulated", True),
        ("other-project", True),
    ]
    assert [(row["project"], row["state"]) for row in said["slices"]] == [("other-project", "READY")]
    assert tpujob("down", "alice").returncode == 0


def test_what_a_complete_list_leaves_out_is_looked_for_by_name(tpujob: Tpujob) -> None:
    """A list may be a while behind."""
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    tpujob.fault("stale_list", "nodes.list", seconds=3600)
    (row,) = slices(tpujob)
    assert row["state"] == "READY"


# -- how completely ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fault", "code", "words"), [
    ({"kind": "status", "operation": "*", "status": 403}, 77, "NOT ASKED: "),
    ({"kind": "status", "operation": "*", "status": 503}, 75, "NOT ASKED: "),
    ({"kind": "hang", "operation": "*", "seconds": 60}, 75, "NOT ASKED: the API gave no complete answer within 0 s"),
    ({"kind": "garbage", "operation": "*", "form": "html"}, 75, "NOT ASKED: "),
    ({"kind": "unreachable", "operation": "nodes.list", "zones": [ZONE]}, 75, f"NOT COMPLETE: no answer from {ZONE}"),
    ({"kind": "status", "operation": "queuedResources.list", "status": 403}, 77,
     "NOT COMPLETE: its queued requests cannot be listed: "),
], ids=["no permission", "no answer", "silence", "no sense", "a zone is missing", "no queue"])  # fmt: skip
def test_what_could_not_be_asked_is_said_and_ends_with_a_code_of_its_own(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch, fault: dict[str, Any], code: int, words: str
) -> None:
    monkeypatch.setattr(inventory, "ASK_S", 0.4)
    tpujob.admin("POST", "faults", fault)
    done = tpujob("status")
    assert done.returncode == code, done.text
    assert words in done.stdout
    assert "no slice of tpujob was seen; there may be some in what did not answer" in done.stdout
    said = json.loads(tpujob("status", "--json").stdout)
    assert said["complete"] is False and (said["asked"][0]["problem"] or said["asked"][0]["unreachable"])


def test_an_incomplete_answer_still_shows_what_was_seen(tpujob: Tpujob) -> None:
    put_node(tpujob, OTHER)
    tpujob.fault("unreachable", "nodes.list", zones=["us-east1-d"])
    done = tpujob("status")
    assert done.returncode == 75 and OTHER in done.stdout and "no answer from us-east1-d" in done.stdout


def test_a_question_that_fails_once_is_asked_again(tpujob: Tpujob) -> None:
    tpujob.fault("status", "nodes.list", status=503, when={"first": 2})
    done = tpujob("status")
    assert done.returncode == 0 and "all zones, complete" in done.stdout


def test_without_credentials_nothing_is_called_absent(tpujob: Tpujob) -> None:
    with tpujob.starting_no_emulator():
        done = tpujob("status", env={"TPUJOB_PROJECT": "acme-prod", "NO_GCE_CHECK": "true"})
        down = tpujob("down", env={"TPUJOB_PROJECT": "acme-prod", "NO_GCE_CHECK": "true"})
    assert done.returncode == 77 and "project acme-prod · NOT ASKED: no usable Google credentials" in done.stdout
    assert "nothing of tpujob is alive" not in done.text and "hint     log in with" in done.stderr
    assert down.returncode == 77 and "what the API has is not known: no usable Google credentials" in down.stderr


def test_without_a_project_and_without_an_emulator_nothing_is_started_imported_or_asked(tpujob: Tpujob) -> None:
    with tpujob.starting_no_emulator():
        done = tpujob("status")
        modules = imported(MAIN, "status")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "emulated cloud · its emulator is not running, so nothing runs there",
        "Google Cloud · not asked: no project is configured",
        "nothing of tpujob is alive there",
    ]
    assert [name for name in heavy(modules) if not is_within(name, {"pydantic", "sqlite3"})] == []
    assert not any(
        is_within(name, {"orchestrator.engine.runtime.world", "orchestrator.places.tpu.api.light_client"})
        for name in modules
    )


# -- down --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), (default_handle(),)], ids=["unnamed", "named"])
def test_down_finds_the_default_slice_after_the_ledger_is_lost_and_proves_that_it_is_gone(
    tpujob: Tpujob, words: tuple[str, ...]
) -> None:
    assert tpujob("up", "--zone", ZONE).returncode == 0
    lose_the_ledger(tpujob)
    done = tpujob("down", *words)
    assert done.returncode == 0, done.text
    assert "(yours, but not in this machine's ledger) in the API; deleting it" in done.stderr
    assert "absent (checked" in done.stdout and tpujob.alive() == []


def test_a_slice_that_only_the_api_knew_is_owed_from_the_first_down_on(tpujob: Tpujob) -> None:
    put_node(tpujob, own_node(), name="exp")
    killed = tpujob.as_process("down", "exp", env={"TPUJOB_CRASH_AT": "Delete:1:before"})
    assert killed.returncode < 0 and len(tpujob.alive()) == 1
    assert tpujob("list").returncode == 0 and tpujob.alive() == [], "any command goes on with it"


def test_the_name_of_a_slice_that_only_the_api_knows_comes_before_the_beginning_of_an_id(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    (lease,) = Ledger(tpujob.own_state / "ledger.sqlite3").leases()
    put_node(tpujob, own_node(), name=lease.id[:4])
    for left in ([lease.name.node], []):
        assert tpujob("down", lease.id[:4]).returncode == 0
        assert [node.rpartition("/")[2] for node in tpujob.alive()] == left


def test_without_the_servers_date_a_slice_that_only_the_api_knew_counts_as_made_now(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this machine's wall clock says: a create of another command may still be on its way."""
    put_node(tpujob, own_node(), name="exp")
    ahead = SimpleNamespace(time=lambda: time.time() + 7200, monotonic=time.monotonic, sleep=time.sleep)
    monkeypatch.setattr(inventory, "time", ahead)
    monkeypatch.setattr(ApiReply, "server_now", None)
    assert tpujob("down", "exp").returncode == 0
    (lease,) = Ledger(tpujob.own_state / "ledger.sqlite3").leases()
    assert lease.sent_at is not None and lease.gone_at is not None and lease.gone_at - lease.sent_at < 3600


@pytest.mark.parametrize("run", ["", "-", "__________", "0000000000-1"])
def test_a_run_label_that_is_none_of_ours_names_no_lease_and_no_file(tpujob: Tpujob, run: str) -> None:
    put_node(tpujob, OTHER, lease_id=run)
    done = tpujob("down", OTHER)
    assert done.returncode == 75 and "its label tpujob-lease-id is missing, or no id of a lease" in done.stderr, (
        done.text
    )
    assert len(tpujob.alive()) == 1 and Ledger(tpujob.own_state / "ledger.sqlite3").leases() == []


def test_a_slice_with_the_run_label_of_another_one_is_said_to_be_that(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    (lease,) = Ledger(tpujob.own_state / "ledger.sqlite3").leases()
    put_node(tpujob, OTHER, lease_id=lease.id)
    done = tpujob("down", OTHER)
    assert done.returncode == 75 and f"its label tpujob-lease-id={lease.id} is that of another slice" in done.stderr
    assert len(tpujob.alive()) == 2


def test_down_deletes_no_slice_of_another_user_by_a_name_that_others_may_use_too(tpujob: Tpujob) -> None:
    put_node(tpujob, OTHER, name="exp")
    done = tpujob("down", "exp")
    assert done.returncode == 64 and "no slice was ever named 'exp' here" in done.stderr
    assert f"alive: {OTHER} (owner 0ther0)" in done.stderr and len(tpujob.alive()) == 1
    assert tpujob("down", OTHER).returncode == 0 and tpujob.alive() == [], "the name of its node is unique"


@pytest.mark.parametrize("words", [(), ("exp",), ("--all",)], ids=["unnamed", "named", "all"])
def test_down_does_not_say_that_there_is_nothing_when_it_could_not_ask(tpujob: Tpujob, words: tuple[str, ...]) -> None:
    tpujob.settings(unreachable=["us-east1-d"])
    done = tpujob("down", *words)
    assert done.returncode == 75 and "what the API has is not known: no answer from us-east1-d" in done.stderr


def test_down_without_a_name_deletes_only_the_default_slice(tpujob: Tpujob) -> None:
    assert tpujob("up", "--zone", ZONE).returncode == 0
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    assert tpujob("down").returncode == 0
    (left,) = slices(tpujob)
    assert left["name"] == "alice"
    done = tpujob("down")
    assert done.returncode == 64 and len(tpujob.alive()) == 1
    assert f"there is no slice of `tpujob up` without a name; alive: alice ({left['node']})" in done.stderr
    assert tpujob("down", "alice").returncode == 0
    assert tpujob("down").stdout == "nothing to release\n"


@pytest.mark.parametrize(("typed", "left"), [("alice\n", 0), ("\n", 1)], ids=["a name", "Enter"])
def test_down_without_a_name_asks_on_a_terminal_which_other_slice_is_meant(
    tpujob: Tpujob, typed: str, left: int
) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    done = tpujob.answered(typed, "down")
    assert done.returncode == 0, done.stderr
    assert "Which one is to be deleted (Enter: none)" in done.text and len(tpujob.alive()) == left
    assert done.stderr.count("cloud    EMULATED") == 1, "one command, one line about its cloud"
