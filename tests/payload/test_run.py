"""`python -m payload`: its files, its log, and its exit code after a failure."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("numpy")

from payload import artifacts
from payload.data import idx
from tests.payload.command import HAS_XLA, ROOT, Command, Run, needs_torch, needs_xla, play, start, succeeds
from tests.waiting import HANG_S, until

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
    place = {"TPUJOB_WORKERS": "2", "TPUJOB_COORDINATOR": f"127.0.0.1:{port}"}
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
    run = subprocess.run(
        [sys.executable, "-c", hide], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert run.returncode == 2
    assert run.stderr.startswith("error: torch is not installed: pip install 'torch==") and run.stderr.count("\n") == 1


@needs_xla
def test_several_xla_devices_in_one_process_are_refused_before_a_collective_can_abort(
    tmp_path: Path, data: Path
) -> None:
    run = play(tmp_path, SMALL, data=data, CPU_NUM_DEVICES="2")
    assert run.code == 6
    assert "error: XLA:CPU shows 2 devices in one process" in run.stdout and "Traceback" not in run.stdout
