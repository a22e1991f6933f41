"""`tpujob forget`, open only where a proof cannot be had, and the commands with a ledger of another version."""

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.promise.effects.locks import FileLocks
from tests.cli_fixture import Tpujob
from tests.contract.commands.test_status import end_claims
from tests.fakes.leases import NEWER, as_of, dump, execute
from tests.waiting import until

ZONE = "us-central1-a"


def fault(cli: Tpujob, operation: str, **kind: Any) -> None:
    cli.admin("POST", "faults", {"operation": operation, **kind})


def clear(cli: Tpujob) -> None:
    cli.admin("DELETE", "faults")


def up(cli: Tpujob) -> str:
    assert cli("up", "alice", "--zone", ZONE).returncode == 0
    (name,) = cli.alive()
    return name.rpartition("/")[2]


def ledger(cli: Tpujob, statement: str, *values: Any) -> list[Any]:
    with sqlite3.connect(cli.directory / "state" / "ledger.sqlite3") as db:
        return list(db.execute(statement, values))


def stuck_down(cli: Tpujob, operation: str, **kind: Any) -> str:
    """A slice whose teardown began and could not be proven: its `down` was cut short."""
    name = up(cli)
    fault(cli, operation, **kind)
    killed = cli.as_process("down", "alice", env={"TPUJOB_CRASH_AT": "Sleep:1:before"})
    assert killed.returncode < 0
    assert ledger(cli, "select state from lease order by created_at")[-1] == ("down",)
    return name


FORBIDDEN = {"kind": "status", "status": 403}


def test_what_is_in_use_or_unknown_or_gone_is_refused_with_the_reason(tpujob: Tpujob) -> None:
    name = up(tpujob)
    refused = tpujob("forget", "alice", "--verified-by-me")
    assert refused.returncode == 64 and "is ready and not being deleted" in refused.stderr
    assert "tpujob down alice" in refused.stderr
    assert tpujob("forget", "bob").returncode == 64
    assert tpujob("down", "alice").returncode == 0
    gone = tpujob("forget", name, "--verified-by-me")
    assert gone.returncode == 64 and "is gone: nothing is owed" in gone.stderr


def test_what_can_be_proven_after_all_is_proven_and_not_forgotten(tpujob: Tpujob) -> None:
    stuck_down(tpujob, "nodes.get", **FORBIDDEN)
    clear(tpujob)
    done = tpujob("forget", "alice", "--verified-by-me")
    assert done.returncode == 0 and "proven after all" in done.stdout
    assert ledger(tpujob, "select state from lease") == [("gone",)]


@pytest.mark.exhaustive
def test_what_the_api_shows_is_not_forgotten(tpujob: Tpujob) -> None:
    stuck_down(tpujob, "nodes.delete", **FORBIDDEN)
    refused = tpujob("forget", "alice", "--verified-by-me")
    assert refused.returncode == 64 and "the API shows it, READY" in refused.stderr
    assert ledger(tpujob, "select state from lease") == [("down",)]


@pytest.mark.exhaustive
def test_without_the_flag_it_says_how_to_look_and_changes_nothing(tpujob: Tpujob) -> None:
    stuck_down(tpujob, "nodes.*", **FORBIDDEN)
    shown = tpujob("forget", "alice")
    assert shown.returncode == 75
    assert "tpujob forget alice --verified-by-me" in shown.stdout
    assert ledger(tpujob, "select state from lease") == [("down",)]


def test_what_no_command_can_see_is_forgotten_on_request_and_the_ledger_records_it(tpujob: Tpujob) -> None:
    name = stuck_down(tpujob, "nodes.*", **FORBIDDEN)
    done = tpujob("forget", name, "--verified-by-me", "--reason", "seen in the console")
    assert done.returncode == 0, done.stderr
    assert "nothing is proven" in done.stdout
    [(state, reason)] = ledger(tpujob, "select state, reason from lease")
    assert state == "forgotten" and reason.startswith("verified by a person: seen in the console; missing: ")
    [(data,)] = ledger(tpujob, "select data from event where kind = 'forgotten'")
    assert "seen in the console" in json.loads(data)["why"]
    clear(tpujob)
    after = tpujob("status")
    assert after.returncode == 0 and "forgotten here, verified by a person: seen in the console" in after.stdout
    assert len(tpujob.alive()) == 1, "it deletes nothing: that is the person's now"


@pytest.mark.exhaustive
def test_the_key_of_a_forgotten_slice_is_removed_from_the_os_login_profile(tpujob: Tpujob) -> None:
    tpujob.settings(require_os_login=True)
    stuck_down(tpujob, "nodes.*", **FORBIDDEN)
    profile = "/v1/users/developer@emulated.example/loginProfile"
    assert len(tpujob.emulator.request("GET", profile)["sshPublicKeys"]) == 1
    assert tpujob("forget", "alice", "--verified-by-me").returncode == 0
    assert not tpujob.emulator.request("GET", profile).get("sshPublicKeys")


@pytest.mark.exhaustive
def test_a_deletion_that_is_stuck_may_be_given_up_after_a_while(tpujob: Tpujob) -> None:
    stuck_down(tpujob, "nodes.delete", kind="stuck", seconds=3600)
    until(lambda: "DELETING" in str(tpujob.admin("GET", "status")["nodes"]))
    early = tpujob("forget", "alice", "--verified-by-me")
    assert early.returncode == 64 and "give it ten minutes" in early.stderr
    ledger(tpujob, "update lease set down_at = ?", time.time() - 700)
    assert tpujob("forget", "alice", "--verified-by-me").returncode == 0


def test_a_deletion_that_another_process_has_been_at_for_too_long_is_loud_in_status(tpujob: Tpujob) -> None:
    stuck_down(tpujob, "nodes.delete", kind="stuck", seconds=3600)
    ledger(tpujob, "update lease set down_at = ?", time.time() - 700)
    [(lease_id,)] = ledger(tpujob, "select id from lease")
    other = FileLocks(tpujob.directory / "state" / "locks")
    assert other.lock(lease_id), "the other process"
    try:
        shown = tpujob("status")
    finally:
        other.unlock(lease_id)
    assert shown.returncode == 75
    assert "NOT VERIFIED GONE" in shown.stderr and "another process is still deleting it" in shown.stderr


OVER = "update lease set hold_until = created_at, deadline = created_at where handle = 'alice'"


@pytest.fixture
def filled(tpujob: Tpujob) -> Path:
    """With a run that is over and a slice that is open."""
    tpujob.job(f"name: hello\ncommand: echo hello\ntpu: {{zone: {ZONE}}}\n")
    assert tpujob("run", "job.yaml").returncode == 0
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    return tpujob.own_state / "ledger.sqlite3"


@pytest.mark.parametrize("version", [11, 8, 1])
def test_an_older_ledger_keeps_nobody_from_the_slices_that_are_billed(
    tpujob: Tpujob, filled: Path, version: int
) -> None:
    as_of(filled, version)
    said = tpujob("status")
    assert said.returncode == 0 and "alice\t" in said.stdout and "until" in said.stdout, said.text
    assert "hello\tsucceeded" in tpujob("list").stdout and tpujob("show", "hello").returncode == 0
    assert tpujob("gc", "--local").returncode == 0 and len(tpujob.alive()) == 1
    assert tpujob("down", "alice").returncode == 0 and tpujob.alive() == []


def test_what_an_older_ledger_still_owes_is_deleted_by_the_next_command(tpujob: Tpujob, filled: Path) -> None:
    end_claims(tpujob)
    as_of(filled, 11)
    execute(filled, OVER)
    said = tpujob("list")
    assert said.returncode == 0 and tpujob.alive() == [] and "alice" not in tpujob("status").stdout, said.text


def test_a_newer_ledger_is_read_and_nothing_new_is_promised(tpujob: Tpujob, filled: Path) -> None:
    execute(filled, *NEWER, OVER)
    before = dump(filled)  # it looks overdue, but has words of the newer one, which alone can say
    for words in (("status",), ("gc",), ("gc", "--local"), ("list",), ("show", "hello"), ("logs", "hello")):
        said = tpujob(*words)
        assert said.returncode == 0 and "newer tpujob, 9.9.9" in said.stderr, said.text
    assert "alice\t" in tpujob("status").stdout and "hello\tsucceeded" in tpujob("list").stdout
    with tpujob.creating_nothing():
        for line in ("run job.yaml", "submit job.yaml", f"up bob --zone {ZONE}"):
            said = tpujob(*line.split())
            assert said.returncode == 64 and "hint: install tpujob 9.9.9" in said.stderr, said.text
    said = tpujob("doctor", "--json", env={"XDG_RUNTIME_DIR": ""})
    checks = {each["name"]: each for each in json.loads(said.stdout)["checks"]}
    assert said.returncode == 64 and "9.9.9" in checks["state"]["text"] and checks["watchdog"]["live"] is not None
    assert len(tpujob.alive()) == 1 and dump(filled) == before
    assert tpujob("down", "alice").returncode == 0 and tpujob.alive() == []


@pytest.mark.parametrize("words", [("extend", "alice", "--by", "1h"), ("start", "alice"), ("up", "alice")])
def test_in_a_newer_ledger_nothing_is_prolonged_or_started_before_it_is_refused(
    tpujob: Tpujob, filled: Path, words: tuple[str, ...]
) -> None:
    assert tpujob("stop", "alice").returncode == 0
    execute(filled, *NEWER[:3], *NEWER[-2:])
    before = {name: len(tpujob.requests(f"nodes.{name}")) for name in ("create", "patch", "start")}
    said = tpujob(*words)
    assert said.returncode == 64 and "hint: install tpujob 9.9.9" in said.stderr, said.text
    assert {name: len(tpujob.requests(f"nodes.{name}")) for name in before} == before


@pytest.mark.parametrize("words", [("gc", "--local"), ("list",)])
def test_what_a_newer_ledger_owes_is_deleted_by_the_next_command(
    tpujob: Tpujob, filled: Path, words: tuple[str, ...]
) -> None:
    """Its words are all known: an older tpujob has created it, or could have."""
    end_claims(tpujob)
    execute(filled, *(line for line in NEWER if "lent" not in line), OVER)
    said = tpujob(*words)
    assert said.returncode == 0 and tpujob.alive() == [] and "alice" not in tpujob("status").stdout, said.text


def test_a_run_in_a_newer_ledger_is_not_taken_over_and_can_be_canceled(tpujob: Tpujob, filled: Path) -> None:
    """Who follows it to its end may have to hold the slice for its results, which is a promise."""
    tpujob.job(f"name: sleeper\ncommand: sleep 600\ntpu: {{zone: {ZONE}}}\n")
    assert tpujob("submit", "job.yaml").returncode == 0
    execute(filled, *NEWER[:3], *NEWER[-2:])
    assert tpujob("attach", "sleeper").returncode == 64
    said = tpujob("cancel", "sleeper")
    assert said.returncode == 0 and len(tpujob.alive()) == 1, said.text
    assert "sleeper\tcanceled" in tpujob("list").stdout
