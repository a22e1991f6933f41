"""What the guardian finishes with no tpujob command run: kill -9, and holds that end."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.cli_fixture import Cli
from tests.e2e.test_life import HELLO, SLEEP
from tests.faults.world import World
from tests.waiting import until

MNIST = ROOT / "jobs" / "mnist.yaml"


def guardians(cli: Cli) -> list[psutil.Process]:
    return cli.local("orchestrator.engine.guardian.process")


def until_no_guardian(cli: Cli) -> None:
    until(lambda: not guardians(cli), "the end of the last guardian")


@pytest.fixture
def guarded(cli: Cli) -> Cli:
    """At Google's timings: what happens within minutes is done by the guardian, never by the watchdog on the VM."""
    cli.env |= {"TPUJOB_GUARDIAN": "on", "TPUJOB_EMULATED_SPEED": "1"}
    return cli


def test_kill_9_while_the_job_runs_is_followed_by_the_deletion_and_the_guardian_ends(guarded: Cli) -> None:
    process = guarded.start("run", guarded.job(SLEEP))
    guarded.until("started", process)
    assert len(guardians(guarded)) == 1
    process.kill()
    until_no_guardian(guarded)
    process.communicate()
    assert not guarded.alive()
    deleted = [call["caller"] for call in guarded.requests("nodes.delete") if call["status"] == 200]
    assert set(deleted) == {"client"}, "it was not the guardian"
    assert guarded.only_run()["lease"]["state"] == "gone"


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", ["Create:1:before", "Create:1:after", "Delete:1:before"])
def test_kill_9_at_a_crash_point_needs_no_further_command(guarded: Cli, point: str) -> None:
    killed = guarded("run", guarded.job(HELLO), env={"TPUJOB_CRASH_AT": point})
    assert killed.returncode == -signal.SIGKILL
    until_no_guardian(guarded)
    assert guarded.alive() == []


@pytest.mark.exhaustive
def test_after_a_run_that_ended_well_no_guardian_is_left(guarded: Cli) -> None:
    assert guarded("run", guarded.job(HELLO)).returncode == 0
    until_no_guardian(guarded)


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


def test_without_a_guardian_nothing_is_created(guarded: Cli) -> None:
    (guarded.directory / "state").mkdir(mode=0o700)
    (guarded.directory / "state" / "guardian.log").mkdir()  # its log cannot be opened
    done = guarded("up", "--zone", "us-central1-a")
    assert done.returncode == 70 and "guardian" in done.stderr and "nothing was created" in done.stderr
    assert guarded.lived() == 0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World.make(tmp_path / "world")
    yield made
    made.close()


@pytest.mark.exhaustive
@pytest.mark.torch
def test_kill_9_during_a_training_is_followed_by_the_delete_on_the_wire(world: World) -> None:
    run = world.begin("run", str(MNIST))
    run.until("worker0 | ")
    run.process.kill()
    died_at = time.time()
    world.until_no_process()
    seconds = world.first_delete_at() - died_at
    print(f"the delete was on the wire {seconds:.2f} s after the kill -9")
    assert seconds <= world.bounds.seconds("guardian")
    assert world.states() == {"gone"} and not world.alive()


@pytest.mark.exhaustive
@pytest.mark.torch
def test_kill_9_of_everything_local_during_a_training_is_followed_by_the_slices_deletion_of_itself(
    world: World,
) -> None:
    run = world.begin("run", str(MNIST))
    run.until("worker0 | ")
    world.until_armed()
    died_at = world.power_cut()
    world.until_absent()
    seconds = world.unclaimed_s(died_at)
    print(f"the slice was absent {seconds:.2f} s after the kill -9 of everything")
    assert seconds <= world.bounds.watchdog()
    assert {call["caller"] for call in world.requests("nodes.delete")} == {"vm"}
    assert world.do("status").code() == 0 and world.states() == {"gone"}
