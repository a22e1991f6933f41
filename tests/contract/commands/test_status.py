"""`tpujob status` says what the API has, and how completely it could ask; `up`, of slices that are held in odd states."""

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

import tpujob as tpujob_api
from orchestrator.api.session.lookup import default_handle
from orchestrator.api.session.session import Session
from orchestrator.api.slices import inventory
from orchestrator.places.google.fetch import ApiReply
from orchestrator.promise.ledger.clocks import Clocks
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.text import names
from orchestrator.text.units import day_clock
from tests.cli_fixture import Tpujob
from tests.contract.commands.test_gc import make
from tests.unit.test_imports import is_within
from tests.unit.test_shipped_python import MAIN, heavy, imported
from tests.waiting import until

ZONE = "us-central1-a"
OTHER = "tpujob-0ther0-0000000000"


def slices(tpujob: Tpujob) -> list[dict[str, Any]]:
    return list(json.loads(tpujob("status", "--json").stdout)["slices"])


def put_node(tpujob: Tpujob, node: str, **labels: str) -> str:
    """A slice that another ledger made, by the API."""
    now = int(time.time())
    said = {
        "tpujob": "1",
        "tpujob-lease-id": node.rpartition("-")[2],
        "tpujob-owner": node.removeprefix("tpujob-").rpartition("-")[0],
        "tpujob-name": "jk-exp",
        "tpujob-mode": "hold",
        "tpujob-claimed-until": str(now + 3600),
        "tpujob-deadline": str(now + 7200),
    } | {f"tpujob-{key.replace('_', '-')}": value for key, value in labels.items()}
    return make(tpujob, node, "v5litepod-8", **said)


def end_claims(tpujob: Tpujob) -> None:
    """Let the labels of all slices say that their claims are over, as after a while."""
    session = Session.open()
    for lease in tpujob.leases():
        if (view := session.cloud(lease.cloud).get(lease.name)) is not None:
            over = dict.fromkeys((names.CLAIMED_UNTIL, names.DEADLINE), str(int(lease.created_at)))
            session.cloud(lease.cloud).set_labels(lease.name, {**view.labels, **over})
    session.close()


def own_node() -> str:
    return names.node_name(Session.open().owner, names.new_run_id(7))


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
    assert line.startswith(f"(owner 0ther0, another user: jk-exp, v5litepod-8, {ZONE}, READY since 20")
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
        is_within(name, {"orchestrator.promise.effects.world", "orchestrator.places.tpu.api.client"})
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
    done = tpujob("down", OTHER, "--owner", "0ther0")
    assert done.returncode == 75 and "its label tpujob-lease-id is missing, or no id of a lease" in done.stderr, (
        done.text
    )
    assert len(tpujob.alive()) == 1 and Ledger(tpujob.own_state / "ledger.sqlite3").leases() == []


def test_a_slice_with_the_run_label_of_another_one_is_said_to_be_that(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    (lease,) = Ledger(tpujob.own_state / "ledger.sqlite3").leases()
    put_node(tpujob, OTHER, lease_id=lease.id)
    done = tpujob("down", OTHER, "--owner", "0ther0")
    assert done.returncode == 75 and f"its label tpujob-lease-id={lease.id} is that of another slice" in done.stderr
    assert len(tpujob.alive()) == 2


@pytest.mark.parametrize("name", ["alice", "", "--all"], ids=["named", "by its node", "all"])
def test_a_slice_that_is_alive_although_the_ledger_has_closed_it_ends_down_with_75(tpujob: Tpujob, name: str) -> None:
    """Assumption A1 broke: its create took effect after the proof."""
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    assert tpujob("down", "alice").returncode == 0
    (lease,) = Ledger(tpujob.own_state / "ledger.sqlite3").leases()
    put_node(tpujob, lease.name.node, name="alice", lease_id=lease.id)
    done = tpujob("down", name or lease.name.node)
    assert done.returncode == 75, done.text
    assert f"{lease.name.node} is READY, and this machine's ledger has closed it" in done.stderr
    assert f"tpu-vm delete {lease.name.node}" in done.stderr.partition("hint: ")[2] and len(tpujob.alive()) == 1
    other = tpujob("down", "bob")
    assert f"alive: {lease.name.node} (READY, though this machine's ledger has closed it)" in other.stderr


@pytest.mark.parametrize("node", ["t1", "tpujob-bare"])
def test_down_says_of_a_node_that_is_not_tpujobs_that_it_exists_and_how_to_delete_it(tpujob: Tpujob, node: str) -> None:
    make(tpujob, node)
    done = tpujob("down", node)
    assert done.returncode == 64 and "exists in " in done.stderr and "but is not tpujob's" in done.stderr, done.text
    assert f"tpu-vm delete {node} --zone=" in done.stderr and len(tpujob.alive()) == 1
    assert "hint: no slice of tpujob is alive" in tpujob("down", "t2").stderr


def test_down_deletes_no_slice_of_another_user_by_a_name_that_others_may_use_too(tpujob: Tpujob) -> None:
    put_node(tpujob, OTHER, name="exp")
    done = tpujob("down", "exp")
    assert done.returncode == 64 and "no slice was ever named 'exp' here" in done.stderr
    assert f"alive: {OTHER} (owner 0ther0)" in done.stderr and len(tpujob.alive()) == 1
    refused = tpujob("down", OTHER)
    assert refused.returncode == 64 and "`--owner 0ther0` says that it is meant" in refused.stderr
    assert tpujob("down", OTHER, "--owner", "0ther0").returncode == 0 and tpujob.alive() == []


def test_down_of_an_unknown_name_does_not_ask_the_cluster_of_the_settings(tpujob: Tpujob) -> None:
    place = tpujob.directory / "home" / ".config" / "tpujob"
    place.mkdir(parents=True, exist_ok=True)
    (place / "settings.yaml").write_text("gke: {context: team}\n")
    kube = tpujob.directory / "home" / ".kube"
    kube.mkdir()
    (kube / "config").write_text(
        "contexts: [{name: team, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\nusers: [{name: u, user: {}}]\n"
    )
    done = tpujob("down", "exp")
    assert done.returncode == 64 and "no slice was ever named 'exp' here" in done.stderr


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


def preempted(tpujob: Tpujob) -> str:
    """Bring up a slice and preempt it. Return its node."""
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert tpujob("emulator", "preempt", row["node"]).returncode == 0
    until(lambda: json.loads(tpujob("status", "--json").stdout)["slices"][0]["state"] == "PREEMPTED", "PREEMPTED")
    return str(row["node"])


def test_without_a_terminal_a_preempted_slice_is_recreated_only_with_yes(tpujob: Tpujob) -> None:
    node = preempted(tpujob)
    refused = tpujob("up", "alice")
    assert refused.returncode == 64, refused.text
    assert "alice is PREEMPTED" in refused.stderr and "`tpujob up alice --yes` does that" in refused.stderr
    done = tpujob("up", "alice", "--yes")
    assert done.returncode == 0 and "alice: recreated; held until" in done.stderr, done.text
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert row["state"] == "READY" and row["node"] != node


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 64)])
def test_on_a_terminal_it_asks_before_a_preempted_slice_is_recreated(tpujob: Tpujob, typed: str, code: int) -> None:
    node = preempted(tpujob)
    done = tpujob.answered(typed, "up", "alice")
    assert done.returncode == code, done.stderr
    assert "Delete it and create a new one?" in done.text
    assert done.stderr.count("cloud    EMULATED") == 1, "one command, one line about its cloud"
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert (row["node"] == node) is (code == 64)


def test_a_ttl_for_a_slice_that_exists_is_answered_with_what_moves_its_end(tpujob: Tpujob) -> None:
    assert "extend" not in tpujob("up", "alice", "--zone", ZONE, "--ttl", "2h").stderr
    again = tpujob("up", "alice", "--ttl", "8h", "--json")
    ends_at = json.loads(again.stdout)["ends_at"]
    assert f"note     alice existed: its end stays {day_clock(ends_at)}; `tpujob extend alice --by 1h`" in again.stderr
    assert "note" not in tpujob("up", "alice").stderr


# -- the idle time -----------------------------------------------------------------------------------------------------


def test_up_says_when_an_unused_slice_ends(tpujob: Tpujob) -> None:
    held = "held until `tpujob down alice` or 2 m unused, "
    assert held in tpujob("up", "alice", "--zone", ZONE, "--idle", "2m").stderr
    again = tpujob("up", "alice")  # as it was created
    assert again.returncode == 0 and "already ready" in again.stderr and held in again.stderr
    assert tpujob("up", "bob", "--zone", ZONE, "--idle", "never").returncode == 0
    assert "held until `tpujob down bob`, " in tpujob("up", "bob").stderr


@pytest.mark.parametrize(("asked", "words"), [("6m", "deleted after 6 m unused"), ("never", "never deleted as unused")])
def test_another_idle_time_for_a_slice_that_exists_is_refused(tpujob: Tpujob, asked: str, words: str) -> None:
    assert tpujob("up", "alice", "--zone", ZONE, "--idle", "1m").returncode == 0
    refused = tpujob("up", "alice", "--idle", asked)
    assert refused.returncode == 64
    assert f"alice exists and is deleted after 1 m unused, not {words}" in refused.stderr
    assert "`tpujob down alice` first" in refused.stderr
    assert tpujob("up", "alice", "--idle", "1m").returncode == 0
    client = tpujob_api.Client("emulated")
    assert client.up("alice").action == "already ready"
    with pytest.raises(tpujob_api.UserError, match="not never deleted as unused"):
        client.up("alice", idle=None)


# -- stopped -----------------------------------------------------------------------------------------------------------


def test_a_stopped_slice_is_not_called_idle_and_its_end_is_that_of_its_hold(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE, "--idle", "1m").returncode == 0
    (ready,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert ready["idle_ends_at"] is not None and ready["remark"] is None
    done = tpujob("stop", "alice")
    deleter = "the next tpujob command or a gc timer deletes it"
    assert done.returncode == 0 and f"at {day_clock(ready['ends_at'])} {deleter}" in done.stderr
    (row,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert (row["state"], row["idle_ends_at"], row["ends_at"]) == ("STOPPED", None, ready["ends_at"])
    *_, line = tpujob("status").stdout.splitlines()
    assert "\theld, until " in line and "idle" not in line and "unused" not in line
    assert "no watchdog while it is stopped" in line and "its full price is counted" in line
    (bill,) = tpujob.bills()  # the meter counts it too
    assert bill["until"] is None
    assert row["usd_so_far"] >= ready["usd_so_far"] and row["usd_at_most"] == ready["usd_at_most"]
    assert tpujob("start", "alice").returncode == 0
    (again,) = json.loads(tpujob("status", "--json").stdout)["slices"]
    assert again["idle_ends_at"] is not None and again["remark"] is None


def test_the_next_command_deletes_a_stopped_slice_at_the_end_of_its_hold(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    assert tpujob("stop", "alice").returncode == 0
    end_claims(tpujob)  # its watchdog is off
    (lease,) = tpujob.leases()
    real = Clocks.now
    monkeypatch.setattr(Clocks, "now", lambda clocks, cloud: real(clocks, cloud) + lease.ends_at - lease.created_at)
    done = tpujob("list")
    assert done.returncode == 0 and f"{lease.name.node} absent" in done.stderr
    assert tpujob.alive() == []


def test_a_run_beside_a_stopped_slice_names_the_command_that_starts_it(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    assert tpujob("stop", "alice").returncode == 0
    done = tpujob("run", tpujob.job(f"tpu: {{zone: {ZONE}}}\ncommand: echo hi\n"))
    assert done.returncode == 0
    said = "plan     alice is STOPPED (`tpujob start alice` starts it): this run creates a slice of its own\n"
    assert said in done.stderr
