"""Killed at any moment and started again with the same command, a training is bit for bit one that was never killed."""

import functools
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.payload.command import Run, needs_torch, needs_xla, play, start, succeeds

pytestmark = [pytest.mark.torch, needs_torch]

STEPS = 16  # two epochs of eight
SMALL = {"model": "mlp", "epochs": 2, "batch_size": 32, "checkpoint_every": "4 steps", "eval": False}


def power_cut(at: int, *, writing: bool = False) -> None:
    """In a process of the training: process 0 dies while it writes the checkpoint of step `at`, or right after that step."""
    from payload.run import TrainingRun

    real_checkpoint, real_fsync, now = TrainingRun.checkpoint, os.fsync, [0]

    def checkpoint(self: TrainingRun, state: Any, *, step: int, **more: Any) -> None:
        now[0] = step
        real_checkpoint(self, state, step=step, **more)
        if not writing and step == at and self.backend.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(descriptor: int) -> None:
        if writing and now[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        real_fsync(descriptor)

    TrainingRun.checkpoint, os.fsync = checkpoint, fsync  # type: ignore[method-assign]


def dies(directory: Path, config: dict[str, Any], backend: str, data: Path, at: int, *, writing: bool = False) -> Run:
    cut = partial(power_cut, at, writing=writing)
    run = play(directory, config, "--backend", backend, data=data, first=cut)
    assert run.code == 1 and "was killed by SIGKILL" in run.stderr, run.stdout + run.stderr
    return run


Undisturbed = Callable[[str, int], Run]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Undisturbed:
    """A training that nothing happened to, to compare with; each is run once."""

    @functools.cache
    def run(backend: str, processes: int) -> Run:
        directory = tmp_path_factory.mktemp("undisturbed")
        return succeeds(directory, {**SMALL, "cores": processes}, "--backend", backend, data=data)

    return run


def losses(run: Run) -> str:
    """Of every step, in both files: metrics.jsonl holds each step once, too."""
    steps = [line for line in (run.artifacts / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    return (run.artifacts / "losses.jsonl").read_text() + "\n".join(steps)


def weights(run: Run) -> str:
    import torch

    from payload.checkpoints import digest

    state = torch.load(run.artifacts / "checkpoint.pt", weights_only=True)
    assert state["step"] == STEPS
    return digest({"model": state["model"], "optimizer": state["optimizer"]})


@pytest.mark.ci
@pytest.mark.parametrize(("backend", "processes"), [
    pytest.param("cpu", 1, marks=pytest.mark.exhaustive),
    ("cpu", 2),
    pytest.param("xla", 1, marks=[needs_xla]),
    pytest.param("xla", 2, marks=[needs_xla, pytest.mark.exhaustive]),
])  # fmt: skip
def test_a_training_killed_again_and_again_ends_like_one_that_was_not(
    tmp_path: Path, data: Path, undisturbed: Undisturbed, backend: str, processes: int
) -> None:
    config = {**SMALL, "cores": processes}
    whole = undisturbed(backend, processes)
    killed = partial(dies, tmp_path, config, backend, data)
    if backend == "cpu":  # where it is cheap, also before there is a checkpoint
        assert "going on" not in killed(3).stdout
    assert "going on" not in killed(8, writing=True).stdout
    assert "resuming after step 4 of 16" in killed(13).stdout  # between two checkpoints, in the second epoch
    last = play(tmp_path, config, "--backend", backend, data=data)
    assert last.code == 0 and "resuming after step 12 of 16" in last.stdout, last.stdout + last.stderr
    assert losses(last) == losses(whole)
    assert weights(last) == weights(whole)
    assert last.read("metrics.json")["train_loss"] == whole.read("metrics.json")["train_loss"]
    headers = [line for line in (last.artifacts / "timing.jsonl").read_text().splitlines() if "schema" in line]
    assert json.loads(headers[-1])["resumed_after_step"] == 12


def scaled(at: int | None = None) -> None:
    """fp16 on the CPU, which is refused since it is slow there, with a scale that moves at every other step; dies after
    step `at`."""
    import torch

    from payload.launch import placement

    real_place = placement.place

    def place(config: Any, *arguments: Any, **more: Any) -> Any:
        config, placed = real_place(replace(config, precision="fp32"), *arguments, **more)
        return replace(config, precision="fp16"), placed

    placement.place = place
    torch.amp.GradScaler = partial(torch.amp.GradScaler, growth_interval=2)
    if at is not None:
        power_cut(at)


def test_the_scale_of_the_loss_is_resumed_too(tmp_path: Path, data: Path) -> None:
    import torch

    whole = play(tmp_path / "whole", SMALL, "--backend", "cpu", data=data, first=scaled)
    killed = play(tmp_path / "killed", SMALL, "--backend", "cpu", data=data, first=partial(scaled, 13))
    assert (whole.code, killed.code) == (0, 1), whole.stdout + whole.stderr + killed.stdout
    last = play(tmp_path / "killed", SMALL, "--backend", "cpu", data=data, first=scaled)
    assert last.code == 0 and "resuming after step 12 of 16" in last.stdout, last.stdout + last.stderr
    assert "fp16 autocast" in last.stdout
    assert losses(last) == losses(whole) and weights(last) == weights(whole)
    scales = [
        torch.load(run.artifacts / "checkpoint.pt", weights_only=True)["backend"]["scaler"] for run in (whole, last)
    ]
    assert scales[0] == scales[1] and scales[0]["scale"] != 2.0**16, "that of the first step"


def test_a_slice_of_two_hosts_resumes_from_the_checkpoint_of_the_first(tmp_path: Path, data: Path, port: int) -> None:
    def slice_of_two(name: str, first: Callable[[], object] | None = None) -> list[Run]:
        """Both hosts, each with its own directory; `first` befalls worker 0's process."""
        place = {"TPUJOB_WORKERS": "2", "TPUJOB_COORDINATOR": f"127.0.0.1:{port}"}
        hosts = [
            start(
                tmp_path / f"{name}{worker}", SMALL, "--backend", "cpu", data=data,
                first=None if worker else first, TPUJOB_WORKER=str(worker), **place,
            )
            for worker in (0, 1)
        ]  # fmt: skip
        return [host.end() for host in hosts]

    whole, _ = slice_of_two("whole")
    first, second = slice_of_two("killed", partial(power_cut, 13))
    assert first.code == 1 and "process 0 of 1 on worker 0 was killed by SIGKILL" in first.stderr
    assert second.code == 5 and "error: lost another process of this training: " in second.stdout, second.stderr
    # The new slice has the files of the old one's first host only, as when a preempted slice is replaced.
    shutil.rmtree(second.artifacts)
    first, second = slice_of_two("killed")
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert all("resuming after step 12 of 16" in run.stdout for run in (first, second))
    assert losses(first) == losses(whole) and weights(first) == weights(whole)


def test_a_checkpoint_of_another_number_of_processes_loads(
    tmp_path: Path, data: Path, undisturbed: Undisturbed
) -> None:
    dies(tmp_path, {**SMALL, "cores": 1}, "cpu", data, 9)
    last = play(tmp_path, {**SMALL, "cores": 2}, "--backend", "cpu", data=data)
    assert last.code == 0 and "resuming after step 8 of 16" in last.stdout, last.stdout + last.stderr
    expected = undisturbed("cpu", 1).read("metrics.json")["train_loss"]
    assert last.read("metrics.json")["train_loss"] == pytest.approx(expected, rel=1e-4)


def test_a_completed_training_starts_from_the_beginning(tmp_path: Path, data: Path) -> None:
    for _ in range(2):
        run = play(tmp_path, SMALL, "--backend", "cpu", data=data)
        assert run.code == 0 and "resuming" not in run.stdout
    assert len((run.artifacts / "losses.jsonl").read_text().splitlines()) == 2


def test_another_training_in_the_same_directory_is_refused_with_a_remedy(tmp_path: Path, data: Path) -> None:
    dies(tmp_path, SMALL, "cpu", data, 9)
    other = play(tmp_path, {**SMALL, "lr": 0.02}, "--backend", "cpu", data=data)
    assert other.code == 2
    assert "checkpoint.pt is of another training (lr was 0.05, now it is 0.02); set `resume: false`" in other.stdout
    anew = play(tmp_path, {**SMALL, "lr": 0.02, "resume": False}, "--backend", "cpu", data=data)
    assert anew.code == 0 and "going on" not in anew.stdout


def patience() -> None:
    """How long a step and a checkpoint take on a busy machine is not what is tested."""
    from payload.launch import supervise
    from tests.waiting import HANG_S

    supervise.SAVE_S = HANG_S


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_saves_at_the_end_of_the_step_and_the_same_command_resumes_there(
    tmp_path: Path, data: Path, processes: int
) -> None:
    import torch

    config = {**SMALL, "epochs": 100_000, "cores": processes, "checkpoint_every": "100000 epochs"}
    command = start(tmp_path, config, "--backend", "cpu", data=data, first=patience)
    command.trains()
    command.send(signal.SIGTERM)
    run = command.end()
    assert run.code == 128 + signal.SIGTERM
    assert "stopped by SIGTERM" in run.stderr and "with a checkpoint" in run.stdout
    step = torch.load(run.artifacts / "checkpoint.pt", weights_only=True)["step"]
    assert f"stopped after step {step:,}" in run.stdout
    command = start(tmp_path, config, "--backend", "cpu", data=data)
    command.wait_for_output(f"resuming after step {step:,} of 800,000")
    command.send(signal.SIGKILL)
    command.end()


def test_no_space_for_a_checkpoint_ends_with_its_own_code_and_leaves_the_one_before(tmp_path: Path, data: Path) -> None:
    """A limit on the size of files stands for a full disk: 100 KB are enough for everything but a checkpoint."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    run = play(tmp_path, SMALL, "--backend", "cpu", data=data, first=limit)
    assert run.code == 7, run.stdout + run.stderr
    assert "MB cannot be written to" in run.stdout and "(File too large); there is no other" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr
    assert not [path.name for path in run.artifacts.iterdir() if "checkpoint" in path.name]


def test_a_loss_that_is_no_number_leaves_the_last_good_checkpoint(tmp_path: Path, data: Path) -> None:
    import torch

    from payload.checkpoints import digest

    config = {**SMALL, "lr": 30.0, "epochs": 40, "checkpoint_every": "1 steps"}
    run = play(tmp_path, config, "--backend", "cpu", data=data)
    assert run.code == 3 and "error: the " in run.stdout and "Traceback" not in run.stdout, run.stdout + run.stderr
    state = torch.load(run.artifacts / "checkpoint.pt", weights_only=True)
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())
    sha256 = state.pop("sha256")
    assert digest(state) == sha256 and not (run.artifacts / "manifest.json").exists()
