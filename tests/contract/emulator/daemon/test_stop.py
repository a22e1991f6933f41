"""`tpujob emulator stop` ends nothing that runs without being told to."""

from __future__ import annotations

import pytest

from tests.cli_fixture import Cli


def test_without_a_terminal_an_emulator_with_a_node_is_stopped_only_with_yes(cli: Cli) -> None:
    assert cli("emulator", "stop").stdout == "it was not running\n"
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    refused = cli("emulator", "stop")
    assert refused.returncode == 64 and "has 1 node on which something may run: tpujob-" in refused.stderr
    assert "`tpujob emulator stop --yes`" in refused.stderr and len(cli.alive()) == 1
    assert cli("emulator", "stop", "--yes").stdout == "stopped\n"


@pytest.mark.parametrize(("typed", "said"), [("n\n", "left running"), ("y\n", "stopped")])
def test_on_a_terminal_it_asks(cli: Cli, typed: str, said: str) -> None:
    assert cli("up", "alice", "--zone", "us-central1-a").returncode == 0
    done = cli.answered(typed, "emulator", "stop")
    assert done.returncode == 0 and said in done.stdout and "Stop it and its processes" in done.stderr, done.stderr


def test_an_emulator_on_which_nothing_runs_is_stopped_without_a_question(cli: Cli) -> None:
    assert cli("emulator", "up").returncode == 0
    assert cli("emulator", "stop").stdout == "stopped\n"
