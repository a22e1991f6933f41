"""Held slices: one that only deleting would help, one that is stopped, one that is to end in another way."""

import json

import pytest

import tpujob as tpujob_api
from orchestrator.core.text.times import day_clock
from orchestrator.ledger.clocks import Clocks
from tests.cli_fixture import Tpujob
from tests.waiting import until

ZONE = "us-central1-a"


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
