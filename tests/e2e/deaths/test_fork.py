"""Forked children of a program that uses tpujob, beside what the fault matrix kills: a local job, SSH, the client itself."""

import fcntl
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import tpujob as api
from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.emulator.daemon import control
from tests.cli_fixture import Cli, Tpujob
from tests.contract.remote.fixture import Road, Slice, one, road
from tests.e2e.test_local import SLEEPER, has_ended, workers_of
from tests.faults import notebook
from tests.forked import Child
from tests.waiting import HANG_S, until

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


def test_a_child_neither_cuts_nor_shuts_the_ssh_connections_of_its_parent(
    one: Slice, road: Callable[[WorkerAddress], Road]
) -> None:
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

    from orchestrator import fork

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
