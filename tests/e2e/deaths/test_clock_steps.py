"""What is left to the guardian, the wall clock that is set meanwhile, and forked children of a program that uses tpujob."""

import fcntl
import gc
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import tpujob as api
from cloud_tpu_emulator.daemon import control
from orchestrator.promise.ledger.clocks import ThisHostClock
from orchestrator.system import boot_clock
from tests.cli_fixture import Cli, Tpujob, press
from tests.contract.hosts.fixture import MakeRoad, Slice, one, road
from tests.e2e.test_access import SLEEPER, has_ended, workers_of
from tests.faults import notebook
from tests.forked import Child
from tests.waiting import HANG_S, ran, until

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
        "import time; from orchestrator.system import boot_clock; print(time.time(), boot_clock.boot_s())",
    ]
    before = boot_clock.boot_s()
    said = ran(argv, env={**os.environ, **cli.env}, check=True).stdout.split()
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


def guardians(cli: Cli) -> list[psutil.Process]:
    return cli.local("orchestrator.promise.guardian_process")


def until_no_guardian(cli: Cli) -> None:
    until(lambda: not guardians(cli), "the end of the last guardian")


@pytest.fixture
def guarded(cli: Cli) -> Cli:
    """At Google's timings: what happens within minutes is done by the guardian, never by the watchdog on the VM."""
    cli.env |= {"TPUJOB_GUARDIAN": "on", "TPUJOB_EMULATED_SPEED": "1"}
    return cli


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


__all__ = ["one", "road"]

NOTEBOOK = (sys.executable, notebook.__file__)
HELLO = "name: hello\ntpu: {accelerator: v5litepod-4, zone: us-central1-a}\ncommand: echo hello\n"


@pytest.fixture
def program(tpujob: Tpujob) -> Iterator[Cli]:
    """Programs of the Python API beside the commands of `tpujob`."""
    yield Cli(tpujob.directory, tpujob.env, NOTEBOOK)


def until_forked(program: Cli, process: object) -> list[psutil.Process]:
    """Read on until it has forked; its children."""
    said: list[str] = []
    for line in process.stdout:  # type: ignore[attr-defined]
        said.append(line)
        if line == "forked\n":
            return [psutil.Process(int(pid)) for pid in re.findall(r"child (\d+)", "".join(said))]
    raise AssertionError(f"it did not fork: {said} {process.stderr.read()}")  # type: ignore[attr-defined]


def test_a_local_job_ends_when_its_program_is_killed_though_forked_children_of_that_live(
    tpujob: Tpujob, program: Cli
) -> None:
    process = program.start("forks during its run", program.job(SLEEPER))
    children = until_forked(program, process)
    (pid_file,) = (tpujob.directory / "state" / "local").glob("*/artifacts/child.pid")
    job = int(pid_file.read_text())
    process.kill()
    process.wait()
    until(lambda: has_ended(job), "the end of the job")
    until(lambda: not workers_of(tpujob), "the end of its worker")
    assert len(children) == 2 and all(child.is_running() for child in children)
    shown = tpujob.only_run()
    assert (shown["state"], shown["detail"]) == ("interrupted", "the process that ran it was killed")
    for child in children:
        child.kill()
    assert tpujob("run", tpujob.job("on: local\ncommand: 'true'\n")).returncode == 0
    assert list((tpujob.own_state / "local").iterdir()) == [], "the next run clears up what it left"


def test_the_children_of_a_run_that_goes_on_hear_signals_and_take_nothing_with_them(
    tpujob: Tpujob, program: Cli
) -> None:
    process = program.start("forks during its run", program.job(SLEEPER))
    children = until_forked(program, process)
    for child in children:
        child.send_signal(signal.SIGTERM)  # as `Process.terminate` does
        until(lambda child=child: has_ended(child.pid), "the end of the child")  # type: ignore[misc]
    assert tpujob.only_run()["state"] == "running"
    process.send_signal(signal.SIGINT)
    until(lambda: tpujob.only_run()["state"] == "interrupted", "the end of the run")
    process.kill()
    process.communicate()


def test_a_child_neither_cuts_nor_shuts_the_ssh_connections_of_its_parent(one: Slice, road: MakeRoad) -> None:
    way = road(one.workers[0])
    fleet = one.fleet([way.worker], "forked_hosts")
    fleet.connect(HANG_S)
    assert fleet.run(0, ["echo", "before"]).stdout == b"before\n"

    def in_child() -> str:
        gc.collect()
        fleet.cancel()
        return "done"

    with Child(in_child) as child:
        assert child.said == "done"
        assert fleet.run(0, ["echo", "beside"]).stdout == b"beside\n"
    assert fleet.run(0, ["echo", "after"]).stdout == b"after\n"
    assert way.connections == 1
    assert one.notices == []


def test_a_child_that_is_forked_while_the_emulator_is_asked_for_keeps_none_of_its_locks(tmp_path: Path) -> None:
    """The next program would wait for the start of the emulator for as long as that child lives."""
    with control._locked(tmp_path / "start.lock"):
        child = Child(lambda: "alive")
        assert child.said == "alive"
    with child, (tmp_path / "start.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_client_works_in_a_forked_child_as_in_its_parent(tpujob: Tpujob, in_its_place: None) -> None:
    client, job = api.Client(), api.Job.load(tpujob.job(HELLO))
    first = client.run(job)

    def in_child() -> str:
        return f"{len(client.runs())} {client.run(job).state} {len(client.runs())}"

    with Child(in_child) as child:
        assert child.said == "1 succeeded 2", child.said
    assert [run.run for run in client.runs()][-1] == first.run and len(client.runs()) == 2
    assert tpujob.alive() == []


@pytest.fixture
def in_its_place(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in tpujob.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tpujob.directory)


@pytest.mark.exhaustive
@pytest.mark.torch
def test_the_workers_of_a_dataloader_inherit_nothing_that_the_guarantee_needs(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    from orchestrator.system import fork

    class Open:
        """Its items say which descriptors of the parent are open in the worker."""

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            open_now = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
            writable = {str(path.readlink()) for path in open_now if path.lstat().st_mode & 0o200}
            return len(writable & pipes)

    read_end, write_end = fork.pipe()
    pipes = {str(Path(f"/proc/self/fd/{write_end.fileno()}").readlink())}
    assert [batch.tolist() for batch in DataLoader(Open(), num_workers=2, batch_size=2)] == [[0, 0], [0, 0]]  # type: ignore[arg-type]
    write_end.close()
    assert os.read(read_end, 1) == b""
    os.close(read_end)
