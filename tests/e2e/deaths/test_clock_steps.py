"""The wall clock of this machine is set while real processes work: that is no time that passed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import boot_clock
from orchestrator.ledger.clocks import ThisHostClock
from tests.cli_fixture import Cli, Tpujob, press
from tests.waiting import until

HOURS_S = 2 * 3600.0
STEPPED = """
import time
real = time.time
def stepped():
    with open({path!r}) as file:
        return real() + float(file.read())
time.time = stepped
"""
JOB = """
name: patient
tpu: {{accelerator: v5litepod-4, zone: us-central1-a}}
limits: {{max_duration: 1h}}
command: "echo begun; until [ -e {done} ]; do sleep 0.05; done; for i in $(seq 40); do echo $i; sleep 0.1; done"
"""


@pytest.fixture
def set_clock(cli: Cli) -> Callable[[float], None]:
    """Sets the wall clock of every tpujob process, those that run too, so many seconds ahead."""
    path = cli.directory / "ahead"

    def ahead(seconds: float) -> None:
        draft = path.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.replace(path)

    cli.admin("GET", "status")  # the cloud is not this machine: it keeps its time
    place = cli.directory / "stepped"
    place.mkdir()
    (place / "sitecustomize.py").write_text(STEPPED.format(path=str(path)))
    cli.env["PYTHONPATH"] = os.pathsep.join([str(place), cli.env["PYTHONPATH"]])
    ahead(0.0)
    return ahead


def test_the_clock_that_the_tests_set_is_the_wall_clock_alone(cli: Cli, set_clock: Callable[[float], None]) -> None:
    set_clock(HOURS_S)
    argv = [
        sys.executable,
        "-c",
        "import time; from orchestrator import boot_clock; print(time.time(), boot_clock.boot_s())",
    ]
    before = boot_clock.boot_s()
    said = subprocess.run(
        argv, env={**os.environ, **cli.env}, check=True, capture_output=True, text=True
    ).stdout.split()
    assert float(said[0]) > time.time() + HOURS_S - 600
    assert before < float(said[1]) < boot_clock.boot_s()


def test_a_create_that_was_not_answered_is_not_settled_by_a_clock_set_forward(
    cli: Cli, set_clock: Callable[[float], None]
) -> None:
    cli.fault("late", "nodes.create", seconds=1000)
    cli.fault("status", "operations.list", status=503)
    words = cli.directory / "words"
    running = cli.start("run", cli.job(JOB.format(done="never")), stderr=words.open("w"))
    until(lambda: cli.requests("nodes.create"), "the create call")
    set_clock(HOURS_S)
    press(running)
    until(lambda: running.poll() is not None or len(cli.requests("operations.list")) > 3, "some passes of the teardown")
    assert running.poll() is None, words.read_text()
    press(running)
    until(lambda: "1 more to leave" in words.read_text(), "the second Ctrl-C is heard")
    press(running)
    running.wait()
    assert running.returncode == 75, words.read_text()
    assert "NOT VERIFIED GONE" in words.read_text()


@pytest.mark.exhaustive
def test_a_run_does_not_end_because_the_clock_was_set(
    cli: Cli, set_clock: Callable[[float], None], tmp_path: Path
) -> None:
    done = tmp_path / "done"
    running = cli.start("run", cli.job(JOB.format(done=done)))
    cli.until("begun", running)
    set_clock(HOURS_S)
    done.touch()
    _, said = running.communicate()
    assert running.returncode == 0, said
    assert "machine slept" not in said and "was stopped for" not in said
    set_clock(0.0)
    assert cli.only_run()["cost_usd"] < 1.0


@pytest.mark.ci
def test_a_slice_that_was_brought_while_the_clock_was_behind_stays_when_it_is_put_right(
    cli: Cli, set_clock: Callable[[float], None]
) -> None:
    set_clock(-86400.0)
    brought = cli("up", "alice", "--zone", "us-central1-a", "--ttl", "2h", env={"TPUJOB_EMULATED_SPEED": "1"})
    assert brought.returncode == 0, brought.text
    set_clock(0.0)
    for _ in range(2):
        said = cli("status", "--json", env={"TPUJOB_EMULATED_SPEED": "1"})
        assert said.returncode == 0, said.text
        (slice_,) = json.loads(said.stdout)["slices"]
        assert slice_["state"] == "READY"
    assert len(cli.alive()) == 1
    assert not cli.requests("nodes.delete", caller="client")


# -- this machine restarts, with an open slice in its ledger ------------------------------------------------------------


@pytest.fixture
def restart(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    """`alice` is up; then this machine was off for ten hours, as the cloud's Date says."""
    assert tpujob("up", "alice", "--zone", "us-central1-a", "--ttl", "48h").returncode == 0
    began_s = boot_clock.boot_s() - 30.0
    monkeypatch.setattr(ThisHostClock, "boot_id", staticmethod(lambda: "the next boot"))
    monkeypatch.setattr(ThisHostClock, "boot_s", staticmethod(lambda: boot_clock.boot_s() - began_s))
    tpujob.fault("clock", "nodes.list", seconds=10 * 3600.0)


def test_a_slice_that_is_created_after_a_restart_has_all_of_its_time(tpujob: Tpujob, restart: None) -> None:
    before = tpujob.leases()[0]
    said = tpujob("up", "bob", "--zone", "us-central1-a", "--ttl", "2h")
    assert said.returncode == 0, said.text
    (bob,) = (lease for lease in tpujob.leases() if lease.handle == "bob")
    assert bob.created_at > before.created_at + 10 * 3600.0 - 5.0
    assert bob.ends_at > (bob.ready_at or 0.0) + 7000.0


def test_nothing_is_created_while_the_cloud_does_not_say_how_long_this_machine_was_off(
    tpujob: Tpujob, restart: None
) -> None:
    tpujob.fault("status", "nodes.list", status=503)
    with tpujob.creating_nothing():
        said = tpujob("up", "bob", "--zone", "us-central1-a")
    assert said.returncode == 69, said.text
    assert "this machine was restarted" in said.stderr
