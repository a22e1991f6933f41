"""`tpujob forget`: the audited way out, open only where a proof cannot be had."""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any

from orchestrator.engine.owners import FileOwners
from tests.cli_fixture import Cli, wait_for

ZONE = "us-central1-a"


def fault(cli: Cli, operation: str, **kind: Any) -> None:
    cli.admin("POST", "faults", {"operation": operation, **kind})


def clear(cli: Cli) -> None:
    cli.admin("DELETE", "faults")


def up(cli: Cli) -> str:
    assert cli("up", "alice", "--zone", ZONE).returncode == 0
    (name,) = cli.alive()
    return name.rpartition("/")[2]


def ledger(cli: Cli, statement: str, *values: Any) -> list[Any]:
    with sqlite3.connect(cli.directory / "state" / "ledger.sqlite3") as db:
        return list(db.execute(statement, values))


def stuck_down(cli: Cli, operation: str, **kind: Any) -> str:
    """A slice whose teardown began and could not be proven: its `down` was cut short."""
    name = up(cli)
    fault(cli, operation, **kind)
    killed = cli("down", "alice", env={"TPUJOB_CRASH_AT": "Sleep:1:before"})
    assert killed.returncode < 0
    assert ledger(cli, "select state from lease") == [("down",)]
    return name


FORBIDDEN = {"kind": "status", "status": 403}


def test_what_is_in_use_or_unknown_or_gone_is_refused_with_the_reason(cli: Cli) -> None:
    name = up(cli)
    refused = cli("forget", "alice", "--verified-by-me")
    assert refused.returncode == 64 and "is ready and not being deleted" in refused.stderr
    assert "tpujob down alice" in refused.stderr
    assert cli("forget", "bob").returncode == 64
    assert cli("down", "alice").returncode == 0
    gone = cli("forget", name, "--verified-by-me")
    assert gone.returncode == 64 and "is gone: nothing is owed" in gone.stderr


def test_what_can_be_proven_after_all_is_proven_and_not_forgotten(cli: Cli) -> None:
    stuck_down(cli, "nodes.get", **FORBIDDEN)
    clear(cli)
    done = cli("forget", "alice", "--verified-by-me")
    assert done.returncode == 0 and "proven after all" in done.stdout
    assert ledger(cli, "select state from lease") == [("gone",)]


def test_what_the_api_shows_is_not_forgotten(cli: Cli) -> None:
    stuck_down(cli, "nodes.delete", **FORBIDDEN)
    refused = cli("forget", "alice", "--verified-by-me")
    assert refused.returncode == 64 and "the API shows it, READY" in refused.stderr
    assert ledger(cli, "select state from lease") == [("down",)]


def test_without_the_flag_it_says_how_to_look_and_changes_nothing(cli: Cli) -> None:
    stuck_down(cli, "nodes.*", **FORBIDDEN)
    shown = cli("forget", "alice")
    assert shown.returncode == 75
    assert "tpujob forget alice --verified-by-me" in shown.stdout
    assert ledger(cli, "select state from lease") == [("down",)]


def test_what_nobody_can_see_is_forgotten_by_who_says_so_and_the_ledger_keeps_it(cli: Cli) -> None:
    name = stuck_down(cli, "nodes.*", **FORBIDDEN)
    done = cli("forget", name, "--verified-by-me", "--reason", "seen in the console")
    assert done.returncode == 0, done.stderr
    assert "nothing is proven" in done.stdout
    [(state, reason)] = ledger(cli, "select state, reason from lease")
    assert state == "forgotten" and reason.startswith("verified by a person: seen in the console; missing: ")
    [(data,)] = ledger(cli, "select data from event where kind = 'forgotten'")
    assert "seen in the console" in json.loads(data)["why"]
    after = cli("status")
    assert (after.returncode, after.stdout) == (0, "nothing is alive and nothing is owed that this machine knows of\n")
    assert len(cli.alive()) == 1, "it deletes nothing: that is the person's now"


def test_a_deletion_that_is_stuck_may_be_given_up_after_a_while(cli: Cli) -> None:
    stuck_down(cli, "nodes.delete", kind="stuck", seconds=3600)
    wait_for(lambda: "DELETING" in str(cli.admin("GET", "status")["nodes"]))
    early = cli("forget", "alice", "--verified-by-me")
    assert early.returncode == 64 and "give it ten minutes" in early.stderr
    ledger(cli, "update lease set down_at = ?", time.time() - 700)
    assert cli("forget", "alice", "--verified-by-me").returncode == 0


def test_a_deletion_that_another_process_has_been_at_for_too_long_is_loud_in_status(cli: Cli) -> None:
    stuck_down(cli, "nodes.delete", kind="stuck", seconds=3600)
    ledger(cli, "update lease set down_at = ?", time.time() - 700)
    [(lease_id,)] = ledger(cli, "select id from lease")
    other = FileOwners(cli.directory / "state" / "locks")
    assert other.claim(lease_id), "the other process"
    try:
        shown = cli("status")
    finally:
        other.release(lease_id)
    assert shown.returncode == 75
    assert "NOT VERIFIED GONE" in shown.stderr and "another process is still at it" in shown.stderr
