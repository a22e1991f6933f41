"""The commands with a ledger of another version: an older one is brought forward, a newer one is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_fixture import Tpujob
from tests.ledgers import NEWER, as_of, dump, execute

ZONE = "us-central1-a"


@pytest.fixture
def ledger(tpujob: Tpujob) -> Path:
    """With a run that is over and a slice that is open."""
    tpujob.job(f"name: hello\ncommand: echo hello\ntpu: {{zone: {ZONE}}}\n")
    assert tpujob("run", "job.yaml").returncode == 0
    assert tpujob("up", "alice", "--zone", ZONE).returncode == 0
    return tpujob.own_state / "ledger.sqlite3"


@pytest.mark.parametrize("version", [11, 8, 1])
def test_an_older_ledger_keeps_nobody_from_the_slices_that_are_billed(
    tpujob: Tpujob, ledger: Path, version: int
) -> None:
    as_of(ledger, version)
    said = tpujob("status")
    assert said.returncode == 0 and "alice\t" in said.stdout and "until" in said.stdout, said.text
    assert "hello\tsucceeded" in tpujob("list").stdout and tpujob("show", "hello").returncode == 0
    assert tpujob("gc", "--local").returncode == 0 and len(tpujob.alive()) == 1
    assert tpujob("down", "alice").returncode == 0 and tpujob.alive() == []


def test_what_an_older_ledger_still_owes_is_deleted_by_the_next_command(tpujob: Tpujob, ledger: Path) -> None:
    as_of(ledger, 11)
    execute(ledger, "update lease set deadline = created_at, hold_until = created_at")
    said = tpujob("list")
    assert said.returncode == 0 and tpujob.alive() == [] and "alice" not in tpujob("status").stdout, said.text


def test_a_newer_ledger_is_read_and_nothing_new_is_promised(tpujob: Tpujob, ledger: Path) -> None:
    execute(ledger, *NEWER, "update lease set hold_until = created_at, deadline = created_at where handle = 'alice'")
    before = dump(ledger)  # it looks overdue, which is for the newer one to say
    for words in (("status",), ("gc",), ("list",), ("show", "hello"), ("logs", "hello")):
        said = tpujob(*words)
        assert said.returncode == 0 and "newer tpujob, 9.9.9" in said.stderr, said.text
    assert "alice\t" in tpujob("status").stdout and "hello\tsucceeded" in tpujob("list").stdout
    with tpujob.creating_nothing():
        for words in (
            ("run", "job.yaml"),
            ("submit", "job.yaml"),
            ("up", "bob", "--zone", ZONE),
            ("extend", "alice", "--by", "1h"),
            ("gc", "--local"),
        ):
            said = tpujob(*words)
            assert said.returncode == 64 and "hint: install tpujob 9.9.9" in said.stderr, said.text
    said = tpujob("doctor", "--json", env={"XDG_RUNTIME_DIR": ""})
    checks = {each["name"]: each for each in json.loads(said.stdout)["checks"]}
    assert said.returncode == 64 and "9.9.9" in checks["state"]["text"] and checks["watchdog"]["live"] is not None
    assert len(tpujob.alive()) == 1
    assert tpujob("down", "alice").returncode == 0 and tpujob.alive() == []
    assert dump(ledger) == before
