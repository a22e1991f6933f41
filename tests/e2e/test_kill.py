"""kill -9 of the CLI at a crash point, then any tpujob command: an empty emulator, a settled meter, a closed ledger."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.cli_fixture import Cli
from tests.e2e.test_life import HELLO

# One point for each kind of moment in a run's life. `make crash-sweep` goes through every single effect.
POINTS = [
    "Record:1:after",  # the run is written down
    "Record:2:after",  # the intent is written down
    "Create:1:before",
    "Create:1:after",  # the cloud creates, nobody wrote the operation down
    "GetOperation:1:after",
    "Workers:1:before",
    "Connect:1:after",
    "StartPhase:1:before",
    "StartPhase:1:after",  # the job runs
    "Watch:1:after",
    "Collect:1:before",
    "Delete:1:before",
    "Delete:1:after",
    "ListSlices:2:after",  # the proof is there, not yet written down
]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(point: str, cli: Cli) -> None:
    killed = cli("run", cli.job(HELLO), env={"TPUJOB_CRASH_AT": point})
    assert killed.returncode == -signal.SIGKILL, f"never reached: {killed.stderr}"
    after = cli("status", "--json")
    assert after.returncode == 0, after.stderr
    assert json.loads(after.stdout)["slices"] == []
    assert cli.alive() == [] and cli.admin("GET", "processes")["nodes"] == []
    assert cli.only_run()["state"] in ("interrupted", "succeeded")


def test_killed_up_is_adopted_by_the_next_up(cli: Cli) -> None:
    killed = cli("up", "alice", "--zone", "us-central1-a", env={"TPUJOB_CRASH_AT": "Create:1:after"})
    assert killed.returncode == -signal.SIGKILL
    again = cli("up", "alice")
    assert again.returncode == 0, again.stderr
    assert len(cli.alive()) == 1 and cli.lived() == 1
    assert cli("down", "alice").returncode == 0
    assert cli.alive() == []


def test_a_down_that_was_killed_is_finished_by_the_next_command(cli: Cli) -> None:
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    assert cli("down", "alice", env={"TPUJOB_CRASH_AT": "Delete:1:before"}).returncode == -signal.SIGKILL
    after = cli("list")
    assert after.returncode == 0 and "absent (checked" in after.stderr
    assert cli.alive() == []


def test_a_killed_emulator_comes_back_with_its_nodes_and_they_are_released(cli: Cli) -> None:
    import os

    from orchestrator.emulator import control

    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    endpoint = control.running(cli.emulator_directory)
    assert endpoint is not None
    os.kill(endpoint.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while control.running(cli.emulator_directory) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert cli("down", "alice").returncode == 0
    assert cli.alive() == []
