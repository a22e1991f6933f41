"""From another machine: a slice and its run are found by their labels, used, followed by one of the two, and deleted."""

import json
from pathlib import Path

import pytest

from tests.cli_fixture import Said, Tpujob
from tests.e2e.test_detached import QUICK, SLOW, detached, let_go, submit
from tests.waiting import until

__all__ = ["detached"]


@pytest.fixture(autouse=True)
def one_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same owner on both machines."""
    monkeypatch.setenv("TPUJOB_OWNER", "alice")


class Machine:
    """Another machine of the same cloud: a state directory of its own."""

    def __init__(self, first: Tpujob, name: str = "other") -> None:
        self.first, self.directory = first, first.directory / name
        self.state = self.directory / "state"
        self.state.mkdir(parents=True, mode=0o700)
        (self.state / "emulator").symlink_to(first.emulator_directory.resolve())
        self.env = {"TPUJOB_STATE_DIR": str(self.state)}

    def __call__(self, *words: str, **env: str) -> Said:
        return self.first(*words, env={**self.env, **env})

    def found(self, pattern: str) -> Path:
        (path,) = self.first.directory.glob(f"runs/*/worker0/artifacts/{pattern}")
        return path


def test_another_machine_reads_the_log_extends_follows_and_collects(detached: Tpujob) -> None:
    run, other = submit(detached, SLOW), Machine(detached)
    until(lambda: other("logs", "slow").stdout == "worker0 | begun\n", "the log")
    ends = [json.loads(machine("status", "--json").stdout)["slices"][0]["ends_at"] for machine in (detached, other)]
    assert abs(ends[0] - ends[1]) < 5
    assert other("extend", run, "--by", "1h").returncode == 0
    let_go(detached)
    done = other("attach", "slow")
    assert done.returncode == 0 and "absent" in done.stdout, done.text
    assert other.found("result.txt").read_text() == "result\n"
    assert detached.alive() == []
    here = detached("attach", run)
    assert "its results were not collected here" in here.stdout


def test_a_lost_ledger_costs_nothing_but_history(detached: Tpujob) -> None:
    run = submit(detached, QUICK)
    for path in detached.own_state.glob("ledger.sqlite3*"):
        path.unlink()
    done = detached("attach", run)
    assert done.returncode == 0 and "absent" in done.stdout, done.text
    assert detached("logs", run).stdout == "worker0 | begun\n"
    shown = detached.only_run()
    assert (shown["state"], shown["lease"]["state"]) == ("succeeded", "gone")


def test_of_two_machines_one_follows_a_run_and_the_other_says_who_does(detached: Tpujob) -> None:
    run, other = submit(detached, SLOW), Machine(detached)
    follows = detached.begin("attach", run)
    follows.until("begun")
    refused = other("attach", run)
    assert refused.returncode == 64 and f"(process {follows.process.pid}) follows the job" in refused.stderr
    assert f"{run} goes on" in refused.stderr and len(detached.alive()) == 1
    follows.until("asked to follow the job, too")
    let_go(detached)
    assert follows.process.wait() == 0 and "succeeded" in follows.out, follows.err


def test_the_other_one_takes_over_when_the_first_is_killed(detached: Tpujob) -> None:
    run, other = submit(detached, SLOW), Machine(detached)
    follows = detached.start("attach", run)
    detached.until("begun", follows)
    follows.kill()
    follows.communicate()
    let_go(detached)
    done = other("attach", run)
    assert done.returncode == 0 and "succeeded" in done.stdout, done.text


def test_results_that_wait_on_a_held_slice_are_collected_from_another_machine(detached: Tpujob) -> None:
    run, other = submit(detached, QUICK.replace("linger: 1h", "linger: 1h, max_results: 1B")), Machine(detached)
    held = detached("attach", run)
    assert held.returncode == 65 and len(detached.alive()) == 1, held.text
    assert other("collect", run).returncode == 65
    done = other("collect", run, "--max-results", "none")
    assert done.returncode == 0 and "absent" in done.stdout, done.text
    assert detached.alive() == []


@pytest.mark.parametrize("command", ["cancel", "down"])
def test_another_machine_ends_a_run(detached: Tpujob, command: str) -> None:
    run, other = submit(detached, SLOW), Machine(detached)
    ended = other(command, run)
    assert ended.returncode == 0 and "absent" in ended.stdout, ended.text
    assert detached.alive() == []
    assert detached(command, run).returncode == 0


def test_a_run_that_a_process_elsewhere_follows_can_be_read_and_canceled_only(detached: Tpujob) -> None:
    other = Machine(detached)
    runs = detached.begin("run", detached.job(SLOW))
    runs.until("worker0 | begun")
    assert other("logs", "slow").stdout == "worker0 | begun\n"
    refused = other("attach", "slow")
    assert refused.returncode == 64 and "followed by the process that started it" in refused.stderr
    assert other("cancel", "slow").returncode == 0
    ended = runs.end()
    assert ended.returncode != 0 and detached.alive() == []


@pytest.mark.parametrize("words", [("logs",), ("attach",), ("cancel",), ("down",), ("extend", "--by", "1h")])
def test_what_belongs_to_another_owner_is_left_alone_unless_that_one_is_named(
    detached: Tpujob, words: tuple[str, ...]
) -> None:
    run, bob = submit(detached, QUICK), Machine(detached)
    command, *options = words
    refused = bob(command, run, *options, TPUJOB_OWNER="bob")
    assert refused.returncode == 64 and "belongs to alice" in refused.stderr and "`--owner alice`" in refused.stderr
    by_name = bob(command, "quick", *options, TPUJOB_OWNER="bob")
    assert by_name.returncode == 64 and len(detached.alive()) == 1
    meant = bob(command, "quick", *options, "--owner", "alice", TPUJOB_OWNER="bob")
    assert meant.returncode == 0, meant.text


def test_a_shell_from_another_machine_gets_a_key_of_its_own(detached: Tpujob) -> None:
    submit(detached, SLOW)
    other = Machine(detached)
    for words in (("--worker", "0"), ("--worker", "all")):  # the second time the ledger has it
        said = other("ssh", "slow", *words, "--", "echo", "there")
        assert said.stdout.removeprefix("worker0 | ") == "there\n", said.text


def test_with_os_login_another_machine_adds_its_key_to_the_profile(detached: Tpujob) -> None:
    with_os_login = SLOW + "access: {os_login: on}\n"
    run, other = submit(detached, with_os_login), Machine(detached)
    let_go(detached)
    done = other("attach", run)
    assert done.returncode == 0 and "absent" in done.stdout, done.text


def test_the_default_slice_of_another_machine_is_found_again_and_again(tpujob: Tpujob) -> None:
    assert tpujob("up", "--zone", "us-central1-a").returncode == 0
    other = Machine(tpujob)
    for _ in range(2):
        assert other("ssh", "--worker", "all", "--", "echo", "there").stdout == "worker0 | there\n"
    assert other("down").returncode == 0 and tpujob.alive() == []


def test_the_log_of_each_worker_is_read_from_another_machine(detached: Tpujob) -> None:
    wide = SLOW.replace("zone: us", "accelerator: v5litepod-16, zone: us").replace("echo begun", "echo $TPUJOB_WORKER")
    submit(detached, wide)
    other = Machine(detached)
    until(lambda: len(other("logs", "slow").stdout.splitlines()) == 4, "the logs")
    lines = other("logs", "slow").stdout.splitlines()
    assert sorted(lines) == [f"worker{each} | {each}" for each in range(4)]
    assert other("logs", "slow", "--worker", "9").returncode == 64


def test_down_all_leaves_what_another_machine_made(detached: Tpujob) -> None:
    submit(detached, SLOW)
    other = Machine(detached)
    until(lambda: other("logs", "slow").stdout != "", "the log")
    said = other("down", "--all")
    assert said.returncode == 0 and "made by another machine" in said.stderr and len(detached.alive()) == 1
    bob = Machine(detached, "bob")
    assert bob("logs", "slow", "--owner", "alice", TPUJOB_OWNER="bob").returncode == 0
    for words in ("down slow", "cancel slow", "extend slow --by 1h", "cancel slow --owner carol"):
        said = bob(*words.split(), TPUJOB_OWNER="bob")
        assert said.returncode == 64 or "nothing to release named slow" in said.stdout
    assert len(detached.alive()) == 1


def test_cancel_from_another_machine_leaves_a_slice_of_up(tpujob: Tpujob) -> None:
    assert tpujob("up", "dev", "--zone", "us-central1-a").returncode == 0
    other = Machine(tpujob)
    for _ in range(2):
        assert other("cancel", "dev").returncode == 64 and len(tpujob.alive()) == 1
        assert other("ssh", "dev", "--worker", "all", "--", "true").returncode == 0
    attached = other("attach", "dev")
    assert attached.returncode == 64 and "is a slice of `tpujob up`" in attached.stderr


def test_of_two_slices_of_one_name_the_owner_says_which_one(detached: Tpujob) -> None:
    submit(detached, SLOW)
    submit(detached, SLOW, TPUJOB_OWNER="bob")
    other = Machine(detached)
    for owner in ("alice", "bob"):
        assert other("extend", "slow", "--by", "1h", "--owner", owner).returncode == 0
    assert other("down", "slow", "--owner", "bob").returncode == 0
    (left,) = detached.alive()
    assert "tpujob-alice-" in left
