"""kill -9 of the guardian and of its recovery, at each of their registered points: the next recovery finishes it."""

from __future__ import annotations

import signal

import pytest

from tests.cli_fixture import Cli
from tests.e2e.deaths.test_guardian import guarded, guardians, until_no_guardian
from tests.e2e.test_life import HELLO

__all__ = ["guarded"]
pytestmark = pytest.mark.exhaustive


def killed(cli: Cli, point: str, **env: str) -> None:
    """A run whose CLI dies right after the create call, and then what the environment names."""
    done = cli("run", cli.job(HELLO), env={"TPUJOB_CRASH_AT": point, **env})
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("point", ["armed", "woke", "before_recovery"])
def test_after_the_guardian_too_was_killed_the_next_command_finishes(guarded: Cli, point: str) -> None:
    killed(guarded, "Create:1:after", TPUJOB_GUARDIAN_CRASH_AT=f"{point}:1")
    until_no_guardian(guarded)
    assert len(guarded.alive()) == 1, "the guardian did not act, so the test means something"
    assert guarded("status").returncode == 0
    assert guarded.alive() == []


def test_a_guardian_killed_after_its_recovery_leaves_nothing(guarded: Cli) -> None:
    killed(guarded, "Create:1:after", TPUJOB_GUARDIAN_CRASH_AT="after_recovery:1")
    until_no_guardian(guarded)
    assert guarded.alive() == []


@pytest.mark.parametrize("point", ["Delete:1:before", "Delete:1:after", "Get:1:after"])
def test_a_recovery_that_is_killed_is_repeated_by_its_guardian(guarded: Cli, point: str) -> None:
    killed(guarded, "Create:1:after", TPUJOB_RECOVERY_CRASH_AT=point)
    until_no_guardian(guarded)
    assert guarded.alive() == []
    log = (guarded.directory / "state" / "guardian.log").read_text()
    assert log.count("releasing it") == 2, log


def test_a_waiting_guardian_that_is_killed_is_replaced_by_that_of_the_next_slice(guarded: Cli) -> None:
    up = guarded("up", "alice", "--zone", "us-central1-a", env={"TPUJOB_GUARDIAN_CRASH_AT": "locked:1"})
    assert up.returncode == 0
    until_no_guardian(guarded)
    assert len(guarded.alive()) == 1
    assert guarded("up", "bob", "--zone", "us-central1-a").returncode == 0
    assert len(guardians(guarded)) == 1
    assert guarded("down", "--all").returncode == 0
    assert guarded.alive() == []
