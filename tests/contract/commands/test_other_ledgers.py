"""The commands with a ledger of another version: an older one is brought forward, a newer one is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli_fixture import Tpujob
from tests.ledgers import NEWER, as_of, dump, execute

ZONE = "us-central1-a"
OVER = "update lease set hold_until = created_at, deadline = created_at where handle = 'alice'"


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
    execute(ledger, OVER)
    said = tpujob("list")
    assert said.returncode == 0 and tpujob.alive() == [] and "alice" not in tpujob("status").stdout, said.text


def test_a_newer_ledger_is_read_and_nothing_new_is_promised(tpujob: Tpujob, ledger: Path) -> None:
    execute(ledger, *NEWER, OVER)
    before = dump(ledger)  # it looks overdue, but has words of the newer one, which alone can say
    for words in (("status",), ("gc",), ("gc", "--local"), ("list",), ("show", "hello"), ("logs", "hello")):
        said = tpujob(*words)
        assert said.returncode == 0 and "newer tpujob, 9.9.9" in said.stderr, said.text
    assert "alice\t" in tpujob("status").stdout and "hello\tsucceeded" in tpujob("list").stdout
    with tpujob.creating_nothing():
        for words in (("run", "job.yaml"), ("submit", "job.yaml"), ("up", "bob", "--zone", ZONE)):
            said = tpujob(*words)
            assert said.returncode == 64 and "hint: install tpujob 9.9.9" in said.stderr, said.text
    said = tpujob("doctor", "--json", env={"XDG_RUNTIME_DIR": ""})
    checks = {each["name"]: each for each in json.loads(said.stdout)["checks"]}
    assert said.returncode == 64 and "9.9.9" in checks["state"]["text"] and checks["watchdog"]["live"] is not None
    assert len(tpujob.alive()) == 1 and dump(ledger) == before
    assert tpujob("down", "alice").returncode == 0 and tpujob.alive() == []


@pytest.mark.parametrize("words", [("extend", "alice", "--by", "1h"), ("start", "alice"), ("up", "alice")])
def test_in_a_newer_ledger_nothing_is_prolonged_or_started_before_it_is_refused(
    tpujob: Tpujob, ledger: Path, words: tuple[str, ...]
) -> None:
    assert tpujob("stop", "alice").returncode == 0
    execute(ledger, *NEWER[:3], *NEWER[-2:])
    before = {name: len(tpujob.requests(f"nodes.{name}")) for name in ("create", "patch", "start")}
    said = tpujob(*words)
    assert said.returncode == 64 and "hint: install tpujob 9.9.9" in said.stderr, said.text
    assert {name: len(tpujob.requests(f"nodes.{name}")) for name in before} == before


@pytest.mark.parametrize("words", [("gc", "--local"), ("list",)])
def test_what_a_newer_ledger_owes_is_deleted_by_the_next_command(
    tpujob: Tpujob, ledger: Path, words: tuple[str, ...]
) -> None:
    """Its words are all known: an older tpujob has created it, or could have."""
    execute(ledger, *(line for line in NEWER if "lent" not in line), OVER)
    said = tpujob(*words)
    assert said.returncode == 0 and tpujob.alive() == [] and "alice" not in tpujob("status").stdout, said.text


def test_a_run_in_a_newer_ledger_is_not_taken_over_and_can_be_canceled(tpujob: Tpujob, ledger: Path) -> None:
    """Who follows it to its end may have to hold the slice for its results, which is a promise."""
    tpujob.job(f"name: sleeper\ncommand: sleep 600\ntpu: {{zone: {ZONE}}}\n")
    assert tpujob("submit", "job.yaml").returncode == 0
    execute(ledger, *NEWER[:3], *NEWER[-2:])
    assert tpujob("attach", "sleeper").returncode == 64
    said = tpujob("cancel", "sleeper")
    assert said.returncode == 0 and len(tpujob.alive()) == 1, said.text
    assert "sleeper\tcanceled" in tpujob("list").stdout
