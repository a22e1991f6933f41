"""What the guardian finishes with no tpujob command run: holds that end. What is killed, or cannot start: tests/faults."""

import sqlite3
import time

import psutil
import pytest

from tests.cli_fixture import Cli
from tests.e2e.test_life import SLEEP
from tests.waiting import until


def guardians(cli: Cli) -> list[psutil.Process]:
    return cli.local("orchestrator.engine.guardian.process")


def until_no_guardian(cli: Cli) -> None:
    until(lambda: not guardians(cli), "the end of the last guardian")


@pytest.fixture
def guarded(cli: Cli) -> Cli:
    """At Google's timings: what happens within minutes is done by the guardian, never by the watchdog on the VM."""
    cli.env |= {"TPUJOB_GUARDIAN": "on", "TPUJOB_EMULATED_SPEED": "1"}
    return cli


@pytest.mark.exhaustive
def test_a_held_slice_is_released_when_its_time_is_over(guarded: Cli) -> None:
    assert guarded("up", "alice", "--zone", "us-central1-a").returncode == 0
    assert len(guarded.alive()) == 1 and len(guardians(guarded)) == 1
    guardians(guarded)[0].kill()
    process = guarded.start("run", guarded.job(SLEEP.replace("us-central1-a", "us-west4-a")))
    guarded.until("started", process)
    # A hold of six minutes at least cannot be waited for here: move its end, where only this process's guardian will see it.
    ledger = sqlite3.connect(guarded.directory / "state" / "ledger.sqlite3")
    ledger.execute("update lease set hold_until = ? where hold_until is not null", (time.time() + 2,))
    ledger.commit()
    ledger.close()
    process.kill()
    until_no_guardian(guarded)
    process.communicate()
    assert not guarded.alive()


@pytest.mark.exhaustive
def test_a_waiting_guardian_that_is_killed_is_replaced_by_that_of_the_next_slice(guarded: Cli) -> None:
    up = guarded("up", "alice", "--zone", "us-central1-a", env={"TPUJOB_GUARDIAN_CRASH_AT": "locked:1"})
    assert up.returncode == 0
    until_no_guardian(guarded)
    assert len(guarded.alive()) == 1
    assert guarded("up", "bob", "--zone", "us-central1-a").returncode == 0
    assert len(guardians(guarded)) == 1
    assert guarded("down", "--all").returncode == 0
    assert guarded.alive() == []
