"""Killed at any moment and started again with the same command, a training is bit for bit one that was never killed."""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from payload.checkpoints import digest  # noqa: E402
from tests.payload.test_run import DEADLINE_S, ROOT, Run, data, finish, needs_xla, start, wait_until  # noqa: E402

STEPS = 16  # two epochs of eight
SMALL = {"model": "mlp", "epochs": 2, "batch_size": 32, "checkpoint_every": "4 steps", "eval": False}

# Python imports a module of this name when it starts. KILL is a step and a place: process 0 dies there as by a power cut.
KILLER = """
import os, sys
step, _, place = os.environ.get("KILL", "").partition(" ")
if step and sys.orig_argv[-1] == "payload.rank":
    import payload.artifacts, payload.run
    real_checkpoint, real_fsync, now = payload.run.Run.checkpoint, os.fsync, []

    def checkpoint(self, state, *, step, **more):
        now[:] = [step]
        real_checkpoint(self, state, step=step, **more)
        if place == "after" and step == TARGET and self.backend.rank == 0:
            os.kill(os.getpid(), 9)

    def fsync(descriptor):
        if place == "writing" and now == [TARGET]:
            os.kill(os.getpid(), 9)
        real_fsync(descriptor)

    TARGET = int(step)
    payload.run.Run.checkpoint, os.fsync = checkpoint, fsync
"""


@pytest.fixture
def killer(tmp_path: Path) -> str:
    directory = tmp_path / "killer"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(KILLER)
    return f"{directory}{os.pathsep}{ROOT}"


def one(
    tmp_path: Path,
    data: Path,
    name: str,
    backend: str,
    config: dict[str, Any],
    **environ: str,
) -> Run:
    directory = tmp_path / name
    directory.mkdir(exist_ok=True)
    return finish(*start(directory, config, "--backend", backend, data=data, **environ))


Undisturbed = Callable[[str, int], Run]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Undisturbed:
    """A training that nothing happened to, to compare with; each is run once."""

    @functools.cache
    def run(backend: str, processes: int) -> Run:
        directory = tmp_path_factory.mktemp("undisturbed")
        whole = one(directory, data, "whole", backend, {**SMALL, "cores": processes})
        assert whole.code == 0, whole.stdout + whole.stderr
        return whole

    return run


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def losses(run: Run) -> str:
    return (run.artifacts / "losses.jsonl").read_text()


def weights(run: Run) -> str:
    state = torch.load(run.artifacts / "checkpoint.pt", weights_only=True)
    assert state["step"] == STEPS
    return digest({"model": state["model"], "optimizer": state["optimizer"]})


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("backend", ["cpu", pytest.param("xla", marks=needs_xla)])
def test_a_training_killed_again_and_again_ends_like_one_that_was_not(
    tmp_path: Path,
    data: Path,
    undisturbed: Undisturbed,
    killer: str,
    backend: str,
    processes: int,
) -> None:
    config = {**SMALL, "cores": processes}
    whole = undisturbed(backend, processes)
    # While a checkpoint is being written; between two, in the second epoch; and where it is cheap, before there is one.
    kills = [("8 writing", 0), ("13 after", 4)]
    for kill, goes_on_after in [("3 after", 0), *kills] if (backend, processes) == ("cpu", 1) else kills:
        killed = one(tmp_path, data, "killed", backend, config, KILL=kill, PYTHONPATH=killer)
        assert killed.code == 1 and "was killed by SIGKILL" in killed.stderr, killed.stdout + killed.stderr
        assert (f"going on after step {goes_on_after} of 16" in killed.stdout) == (goes_on_after > 0), killed.stdout
    last = one(tmp_path, data, "killed", backend, config)
    assert last.code == 0 and "going on after step 12 of 16" in last.stdout, last.stdout + last.stderr
    assert losses(last) == losses(whole)
    assert weights(last) == weights(whole)
    assert last.read("metrics.json")["train_loss"] == whole.read("metrics.json")["train_loss"]
    headers = [line for line in (last.artifacts / "timing.jsonl").read_text().splitlines() if "schema" in line]
    assert json.loads(headers[-1])["resumed_after_step"] == 12


def slice_of_two(
    tmp_path: Path, data: Path, name: str, config: dict[str, Any], killer: str = "", kill: str = ""
) -> list[Run]:
    """Both hosts of a slice, each with its own directory; `kill` befalls worker 0's process."""
    started = []
    coordinator = f"127.0.0.1:{free_port()}"
    for worker in ("0", "1"):
        directory = tmp_path / f"{name}{worker}"
        directory.mkdir(exist_ok=True)
        place = {"TPUJOB_WORKER": worker, "TPUJOB_WORKERS": "2", "TPUJOB_COORDINATOR": coordinator}
        dies = {"KILL": kill, "PYTHONPATH": killer} if kill and worker == "0" else {}
        started.append(start(directory, config, "--backend", "cpu", data=data, **place, **dies))
    return [finish(*one) for one in started]


def test_a_slice_of_two_hosts_goes_on_from_the_checkpoint_of_the_first(
    tmp_path: Path,
    data: Path,
    killer: str,
) -> None:
    whole, _ = slice_of_two(tmp_path, data, "whole", SMALL)
    first, second = slice_of_two(tmp_path, data, "killed", SMALL, killer, "13 after")
    assert first.code == 1 and "process 0 of 1 on worker 0 was killed by SIGKILL" in first.stderr
    assert second.code == 5 and "error: lost another process of this training: " in second.stdout, second.stderr
    # The new slice has the files of the old one's first host only, as when a preempted slice is replaced.
    shutil.rmtree(second.artifacts)
    first, second = slice_of_two(tmp_path, data, "killed", SMALL)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert all("going on after step 12 of 16" in run.stdout for run in (first, second))
    assert losses(first) == losses(whole) and weights(first) == weights(whole)


def test_a_checkpoint_of_another_number_of_processes_loads(
    tmp_path: Path,
    data: Path,
    undisturbed: Undisturbed,
    killer: str,
) -> None:
    killed = one(tmp_path, data, "killed", "cpu", {**SMALL, "cores": 1}, KILL="9 after", PYTHONPATH=killer)
    assert killed.code == 1
    last = one(tmp_path, data, "killed", "cpu", {**SMALL, "cores": 2})
    assert last.code == 0 and "going on after step 8 of 16" in last.stdout, last.stdout + last.stderr
    expected = undisturbed("cpu", 1).read("metrics.json")["train_loss"]
    assert last.read("metrics.json")["train_loss"] == pytest.approx(expected, rel=1e-4)


def test_a_training_that_ended_well_is_started_anew(tmp_path: Path, data: Path) -> None:
    for _ in range(2):
        run = one(tmp_path, data, "again", "cpu", SMALL)
        assert run.code == 0 and "going on" not in run.stdout
    assert len(losses(run).splitlines()) == 2


def test_another_training_in_the_same_place_is_refused_and_told_what_to_do(
    tmp_path: Path,
    data: Path,
    killer: str,
) -> None:
    one(tmp_path, data, "place", "cpu", SMALL, KILL="9 after", PYTHONPATH=killer)
    other = one(tmp_path, data, "place", "cpu", {**SMALL, "lr": 0.02})
    assert other.code == 2
    assert "checkpoint.pt is of another training (lr was 0.05, now it is 0.02); write `resume: false`" in other.stdout
    anew = one(tmp_path, data, "place", "cpu", {**SMALL, "lr": 0.02, "resume": False})
    assert anew.code == 0 and "going on" not in anew.stdout


def test_a_damaged_checkpoint_is_left_out_aloud_and_the_one_before_it_serves(
    tmp_path: Path,
    data: Path,
    undisturbed: Undisturbed,
    killer: str,
) -> None:
    config = {**SMALL, "keep_checkpoints": 2}
    killed = one(tmp_path, data, "place", "cpu", config, KILL="13 after", PYTHONPATH=killer)
    assert sorted(path.name for path in killed.artifacts.glob("*.pt")) == ["checkpoint-000000008.pt", "checkpoint.pt"]
    newest = killed.artifacts / "checkpoint.pt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    last = one(tmp_path, data, "place", "cpu", config)
    assert "checkpoint.pt is damaged and is left out: " in last.stdout and "going on after step 8 of 16" in last.stdout
    assert losses(last) == losses(undisturbed("cpu", 1))


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_saves_at_that_very_step_and_the_same_command_goes_on_there(
    tmp_path: Path,
    data: Path,
    processes: int,
) -> None:
    config = {**SMALL, "epochs": 2000, "cores": processes, "checkpoint_every": "2000 epochs"}
    process, artifacts = start(tmp_path, config, "--backend", "cpu", data=data)
    timing = artifacts / "timing.jsonl"
    wait_until(lambda: timing.exists() and '"step"' in timing.read_text(), "the first step")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    run = finish(process, artifacts)
    assert run.code == 128 + signal.SIGTERM and time.monotonic() - began < 8
    assert "stopped by SIGTERM" in run.stderr and "and a checkpoint was written" in run.stdout
    step = torch.load(artifacts / "checkpoint.pt", weights_only=True)["step"]
    assert f"stopped after step {step:,}" in run.stdout
    process, artifacts = start(tmp_path, config, "--backend", "cpu", data=data)
    assert process.stdout is not None
    wait_for_line(process, f"going on after step {step:,} of 16,000")
    process.kill()
    process.communicate()


def wait_for_line(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if words in line:
            return
    raise AssertionError("".join(seen))


def test_no_space_for_a_checkpoint_ends_with_its_own_code_and_leaves_the_one_before(
    tmp_path: Path,
    data: Path,
) -> None:
    """A limit on the size of files stands for a full disk: 100 KB are enough for everything but a checkpoint."""
    path, artifacts = tmp_path / "train.json", tmp_path / "artifacts"
    path.write_text(json.dumps({**SMALL, "data_dir": str(data)}))
    artifacts.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "payload", "--config", str(path), "--backend", "cpu"],
        cwd=ROOT,
        env={**os.environ, "TPUJOB_ARTIFACTS": str(artifacts)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.returncode == 7, done.stdout + done.stderr
    assert "MB cannot be written to" in done.stdout and "(File too large); there is none" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not [path.name for path in artifacts.iterdir() if "checkpoint" in path.name]


def test_a_loss_that_is_no_number_leaves_the_last_good_checkpoint(
    tmp_path: Path,
    data: Path,
) -> None:
    config = {**SMALL, "lr": 30.0, "epochs": 40, "checkpoint_every": "1 steps"}
    run = one(tmp_path, data, "place", "cpu", config)
    assert run.code == 3 and "error: the " in run.stdout, run.stdout + run.stderr
    state = torch.load(run.artifacts / "checkpoint.pt", weights_only=True)
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())
    sha256 = state.pop("sha256")
    assert digest(state) == sha256 and not (run.artifacts / "manifest.json").exists()


_: Callable[..., Any] = data  # the fixture, used by name
