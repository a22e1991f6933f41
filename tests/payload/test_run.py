"""`python -m payload`: its files, its log, its exit codes; killed and started again, it is one that was never killed."""

import functools
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from payload import artifacts
from payload.data import idx
from tests.payload.command import HAS_XLA, ROOT, Command, Run, needs_torch, needs_xla, play, start, succeeds
from tests.waiting import HANG_S, ran, until

pytest.importorskip("numpy")


pytestmark = [pytest.mark.torch, needs_torch]

SMALL = {"epochs": 2, "batch_size": 32, "lr": 0.02}


@pytest.fixture(scope="session")
def emulated(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Run:
    """Two processes with one XLA device each, gloo between them: what a multi-core job is under emulation."""
    config = {**SMALL, "epochs": 9, "emulated": {"epochs": 2}}
    return play(tmp_path_factory.mktemp("emulated"), config, data=data, TPUJOB_EMULATED_CORES="2")


@needs_xla
def test_a_run_writes_its_artifacts_and_lists_them_last(emulated: Run) -> None:
    assert emulated.code == 0, emulated.stdout + emulated.stderr
    files = {entry["path"]: entry for entry in emulated.read("manifest.json")["files"]}
    written = ["checkpoint.json", "checkpoint.pt", "losses.jsonl", "metrics.json", "metrics.jsonl"]
    written += ["provenance.json", "timing.jsonl"]
    assert sorted(files) == written
    for name, entry in files.items():
        content = (emulated.artifacts / name).read_bytes()
        assert (entry["size_bytes"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert len(list(emulated.artifacts.iterdir())) == len(written) + 1, "and no temporary file is left"


@needs_xla
def test_the_log_reports_the_emulation_and_the_results(emulated: Run) -> None:
    lines = emulated.stdout.splitlines()
    assert lines[:3] == [
        "emulated: all cores of this host stand as 2 processes on XLA:CPU",
        "emulated: 2 epochs instead of 9",
        "xla:cpu ×2 · mnist 256 images · batch 32 · fp32 · mnist_cnn",
    ]
    # On a busy machine a progress line may come in between; the compile line still precedes that of its epoch.
    starts = [line.split()[0] for line in lines[3:] if "step" not in line]
    assert starts == ["compile", "epoch", "epoch", "compile", "test", "process", "process"], emulated.stdout
    assert sum(line.startswith("epoch ") and "images/s" in line for line in lines) == 2
    assert lines[-3].startswith("test accuracy ") and " of 101 images  " in lines[-3]
    assert [line.partition(":")[0] for line in lines[-2:]] == ["process 0", "process 1"]
    assert all(" s, evaluation " in line for line in lines[-2:])


@needs_xla
def test_metrics_and_provenance_agree_with_the_log(emulated: Run, data: Path) -> None:
    metrics, provenance = emulated.read("metrics.json"), emulated.read("provenance.json")
    assert metrics["test_examples"] == 101 and 0 <= metrics["test_accuracy"] <= 1
    assert len(metrics["train_loss"]) == 2 and metrics["train_loss"][1] < metrics["train_loss"][0]
    assert metrics["world"]["emulated"] is True and len(metrics["world"]["notes"]) == 2
    assert metrics["dataset"] == {
        "name": "mnist", "requested": "mnist", "synthetic": False, "train_examples": 256, "of": 256,
    }  # fmt: skip
    seconds = metrics["seconds"]
    assert set(seconds) == {
        f"{n}_s" for n in ("import", "data", "compile", "train", "profile", "eval", "checkpoint", "total")
    }
    assert seconds["compile_s"] > 0
    total_s = seconds.pop("total_s")
    assert 0 < sum(seconds.values()) <= total_s, "no second is counted twice"
    assert provenance["config"]["epochs"] == 2 and provenance["emulated"] is True
    name = idx.FILES["test_labels"]
    assert provenance["dataset"]["sha256"][name] == artifacts.sha256(data / name)


@needs_xla
def test_the_timing_file_has_every_step_and_marks_those_that_compiled(emulated: Run) -> None:
    lines = [json.loads(line) for line in (emulated.artifacts / "timing.jsonl").read_text().splitlines()]
    assert lines[0]["schema"] == 1 and lines[0]["processes"] == 2
    steps = [line for line in lines if "step" in line]
    assert [(line["epoch"], line["step"]) for line in steps] == [(e, s) for e in (1, 2) for s in range(1, 9)]
    compiling = [(line["epoch"], line["step"]) for line in steps if line.get("compile")]
    assert compiling == [(1, 1), (1, 2)], "later steps run the programs that the first two compiled"
    assert {line["span"] for line in lines if "span" in line} == {"import", "data", "compile", "checkpoint", "eval"}


@needs_xla
def test_the_checkpoint_loads_on_any_machine(emulated: Run) -> None:
    import torch

    from payload.models import build

    state = torch.load(emulated.artifacts / "checkpoint.pt", weights_only=True)
    model = build("mnist_cnn", 0)
    model.load_state_dict(state["model"])
    assert state["epoch"] == 2
    assert all(tensor.device.type == "cpu" for tensor in state["model"].values())


@pytest.mark.ci
def test_one_and_two_processes_have_the_same_loss_curve(tmp_path: Path, data: Path, request: Any) -> None:
    curves, steps = {}, {}
    for processes in (1, 2):
        config = {**SMALL, "cores": processes}
        # One of them as on a worker, where every process is a new program.
        run = succeeds(tmp_path / str(processes), config, "--backend", "cpu", data=data, real=processes == 2)
        curves[processes] = run.read("metrics.json")["train_loss"]
        losses = [json.loads(line)["losses"] for line in (run.artifacts / "losses.jsonl").read_text().splitlines()]
        assert [len(epoch) for epoch in losses] == [8, 8]
        steps[processes] = [loss for epoch in losses for loss in epoch]
    assert steps[1] == pytest.approx(steps[2], rel=1e-4), "step by step"
    assert curves[1] == pytest.approx(curves[2], rel=1e-4)
    if HAS_XLA:  # and so has the emulated TPU
        assert request.getfixturevalue("emulated").read("metrics.json")["train_loss"] == pytest.approx(
            curves[1], rel=1e-4
        )


def test_two_hosts_train_together_and_each_lists_its_own_artifacts(tmp_path: Path, data: Path, port: int) -> None:
    place: dict[str, Any] = {"TPUJOB_WORKERS": "2", "TPUJOB_COORDINATOR": f"127.0.0.1:{port}"}
    config = {**SMALL, "epochs": 1}
    hosts = [
        start(tmp_path / worker, config, "--backend", "cpu", data=data, TPUJOB_WORKER=worker, **place)
        for worker in "01"
    ]
    first, second = (host.end() for host in hosts)
    assert (first.code, second.code) == (0, 0), first.stderr + second.stderr
    assert first.read("metrics.json")["world"]["workers"] == 2
    assert first.read("metrics.json")["world"]["processes"] == 2
    assert [entry["path"] for entry in second.read("manifest.json")["files"]] == ["provenance.json"]
    assert second.stdout == "cpu ×2 · mnist 256 images · batch 32 · fp32 · mnist_cnn\n", "the first host tells the rest"
    assert "epoch 1/1" in first.stdout and "test accuracy" in first.stdout


def long_run(tmp_path: Path, data: Path) -> tuple[Command, list[Any]]:
    """Two processes in the middle of a training that would take hours."""
    config = {**SMALL, "epochs": 100_000, "cores": 2, "checkpoint": False}
    command = start(tmp_path, config, "--backend", "cpu", data=data)
    command.trains()
    ranks = sorted(psutil.Process(command.pid).children(recursive=True), key=lambda child: child.pid)
    assert len(ranks) == 2
    return command, ranks


def all_gone(ranks: list[Any]) -> bool:
    def gone(rank: Any) -> bool:
        try:
            return not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # in between
            return True

    return all(gone(rank) for rank in ranks)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_ends_all_and_is_named(tmp_path: Path, data: Path, victim: int) -> None:
    command, ranks = long_run(tmp_path, data)
    ranks[victim].kill()
    run = command.end()
    assert run.code == 1
    assert f"process {victim} of 2 on worker 0 was killed by SIGKILL; all processes were ended" in run.stderr
    assert all_gone(ranks)
    assert not (run.artifacts / "manifest.json").exists(), "only a run that ended well has one"


def test_sigterm_ends_everything_with_143_without_waiting_for_a_suspended_process(tmp_path: Path, data: Path) -> None:
    command, ranks = long_run(tmp_path, data)
    for rank in ranks:
        rank.suspend()  # nothing happens to it but what its parent does
    command.send(signal.SIGTERM)
    run = command.end()
    assert run.code == 128 + signal.SIGTERM
    assert run.stderr == "stopped by SIGTERM\n", "nor does it say that it waited for a checkpoint"
    assert all_gone(ranks)


def test_processes_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path, data: Path) -> None:
    command, ranks = long_run(tmp_path, data)
    command.send(signal.SIGKILL)
    command.end()
    until(lambda: all_gone(ranks), "the end of both processes")


def test_bad_configuration_and_bad_data_are_one_line_each(tmp_path: Path, data: Path) -> None:
    run = play(tmp_path, {"epoch": 1})
    assert (run.code, run.stdout) == (2, "")
    assert run.stderr == f"error: {tmp_path}/train.json: epoch: unknown key; did you mean `epochs`?\n"
    run = play(tmp_path, {"data_dir": str(tmp_path)})
    assert run.code == 4 and run.stderr.startswith(f"error: data_dir {tmp_path}: must hold")
    run = play(tmp_path, {"batch_size": 15, "cores": 2}, data=data)
    assert run.code == 2 and "is not a multiple of" in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_torch_xla_that_does_not_fit_torch_is_one_line_with_the_remedy(tmp_path: Path, data: Path) -> None:
    fake = tmp_path / "fake" / "torch_xla"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("raise ImportError('_XLAC.so: undefined symbol: _ZN5torch')")
    path = f"{tmp_path / 'fake'}{os.pathsep}{ROOT}"
    run = play(tmp_path, SMALL, data=data, real=True, PYTHONPATH=path)
    assert run.code == 2
    assert "error: torch_xla cannot be imported (_XLAC.so: undefined symbol: _ZN5torch): pip install" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr


def test_a_missing_torch_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    hide = "import importlib.util as u, runpy, sys; real = u.find_spec\n"
    hide += "u.find_spec = lambda name, *a: None if name == 'torch' else real(name, *a)\n"
    (tmp_path / "train.json").write_text("{}")
    hide += (
        f"sys.argv = ['payload', '--config', '{tmp_path}/train.json']; runpy.run_module('payload', run_name='__main__')"
    )
    run = ran([sys.executable, "-c", hide], cwd=ROOT)
    assert run.returncode == 2
    assert run.stderr.startswith("error: torch is not installed: pip install 'torch==") and run.stderr.count("\n") == 1


@needs_xla
def test_several_xla_devices_in_one_process_are_refused_before_a_collective_can_abort(
    tmp_path: Path, data: Path
) -> None:
    run = play(tmp_path, SMALL, data=data, CPU_NUM_DEVICES="2")
    assert run.code == 6
    assert "error: XLA:CPU shows 2 devices in one process" in run.stdout and "Traceback" not in run.stdout


STEPS = 16  # two epochs of eight
SMALL_MLP = {"model": "mlp", "epochs": 2, "batch_size": 32, "checkpoint_every": "4 steps", "eval": False}


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

    TrainingRun.checkpoint, os.fsync = checkpoint, fsync  # type: ignore[method-assign, assignment]


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
        return succeeds(directory, {**SMALL_MLP, "cores": processes}, "--backend", backend, data=data)

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
    config = {**SMALL_MLP, "cores": processes}
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

    whole = play(tmp_path / "whole", SMALL_MLP, "--backend", "cpu", data=data, first=scaled)
    killed = play(tmp_path / "killed", SMALL_MLP, "--backend", "cpu", data=data, first=partial(scaled, 13))
    assert (whole.code, killed.code) == (0, 1), whole.stdout + whole.stderr + killed.stdout
    last = play(tmp_path / "killed", SMALL_MLP, "--backend", "cpu", data=data, first=scaled)
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
        place: dict[str, Any] = {"TPUJOB_WORKERS": "2", "TPUJOB_COORDINATOR": f"127.0.0.1:{port}"}
        hosts = [
            start(
                tmp_path / f"{name}{worker}", SMALL_MLP, "--backend", "cpu", data=data,
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
    dies(tmp_path, {**SMALL_MLP, "cores": 1}, "cpu", data, 9)
    last = play(tmp_path, {**SMALL_MLP, "cores": 2}, "--backend", "cpu", data=data)
    assert last.code == 0 and "resuming after step 8 of 16" in last.stdout, last.stdout + last.stderr
    expected = undisturbed("cpu", 1).read("metrics.json")["train_loss"]
    assert last.read("metrics.json")["train_loss"] == pytest.approx(expected, rel=1e-4)


def test_a_completed_training_starts_from_the_beginning(tmp_path: Path, data: Path) -> None:
    for _ in range(2):
        run = play(tmp_path, SMALL_MLP, "--backend", "cpu", data=data)
        assert run.code == 0 and "resuming" not in run.stdout
    assert len((run.artifacts / "losses.jsonl").read_text().splitlines()) == 2


def test_another_training_in_the_same_directory_is_refused_with_a_remedy(tmp_path: Path, data: Path) -> None:
    dies(tmp_path, SMALL_MLP, "cpu", data, 9)
    other = play(tmp_path, {**SMALL_MLP, "lr": 0.02}, "--backend", "cpu", data=data)
    assert other.code == 2
    assert "checkpoint.pt is of another training (lr was 0.05, now it is 0.02); set `resume: false`" in other.stdout
    anew = play(tmp_path, {**SMALL_MLP, "lr": 0.02, "resume": False}, "--backend", "cpu", data=data)
    assert anew.code == 0 and "going on" not in anew.stdout


def patience() -> None:
    """How long a step and a checkpoint take on a busy machine is not what is tested."""
    from payload.launch import supervise

    supervise.SAVE_S = HANG_S


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_saves_at_the_end_of_the_step_and_the_same_command_resumes_there(
    tmp_path: Path, data: Path, processes: int
) -> None:
    import torch

    config = {**SMALL_MLP, "epochs": 100_000, "cores": processes, "checkpoint_every": "100000 epochs"}
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
    run = play(tmp_path, SMALL_MLP, "--backend", "cpu", data=data, first=limit)
    assert run.code == 7, run.stdout + run.stderr
    assert "MB cannot be written to" in run.stdout and "(File too large); there is no other" in run.stdout
    assert "Traceback" not in run.stdout + run.stderr
    assert not [path.name for path in run.artifacts.iterdir() if "checkpoint" in path.name]


def test_a_loss_that_is_no_number_leaves_the_last_good_checkpoint(tmp_path: Path, data: Path) -> None:
    import torch

    from payload.checkpoints import digest

    config = {**SMALL_MLP, "lr": 30.0, "epochs": 40, "checkpoint_every": "1 steps"}
    run = play(tmp_path, config, "--backend", "cpu", data=data)
    assert run.code == 3 and "error: the " in run.stdout and "Traceback" not in run.stdout, run.stdout + run.stderr
    state = torch.load(run.artifacts / "checkpoint.pt", weights_only=True)
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())
    sha256 = state.pop("sha256")
    assert digest(state) == sha256 and not (run.artifacts / "manifest.json").exists()
