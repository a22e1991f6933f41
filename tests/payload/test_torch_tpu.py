"""The wiring of TorchTPU against a stand-in for its package: the real one needs a TPU.

The stand-in registers what the real one does, under the same names, and lets the CPU do the work: the collectives "tpu_dist"
are gloo, the accelerator is the CPU. Each call of one of its names is written to a file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.payload.command import ROOT, Run, needs_torch, play

pytestmark = [pytest.mark.torch, needs_torch]

SMALL = {"epochs": 1, "batch_size": 32, "lr": 0.02}

STAND_IN = """
import os
import types
import torch
import torch.distributed as dist


def note(name, answer=None):
    def call(*args, **kwargs):
        with open(os.environ["NOTES"], "a") as file:
            file.write(f"{name} {args} {kwargs}\\n")
        return answer
    return call


def set_tpu_launch_env(*, nproc_per_node):
    note("set_tpu_launch_env")(nproc_per_node)
    os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"] = "localhost:1"


def make_group(store, rank, size, timeout):
    assert os.environ["TORCH_TPU_SLICEBUILDER_ADDRESSES"] == "localhost:1", "set before the processes started"
    note("tpu_dist")(rank, size)
    return dist.ProcessGroupGloo(store, rank, size, timeout)


dist.Backend.register_backend("tpu_dist", make_group, devices=["cpu"])
torch.accelerator.set_device_index = note("set_device_index")
torch.accelerator.current_accelerator = note("current_accelerator", torch.device("cpu"))
torch.accelerator.synchronize = note("synchronize")
torch.tpu = types.SimpleNamespace(
    manual_seed=note("manual_seed"), distributed=types.SimpleNamespace(set_tpu_launch_env=set_tpu_launch_env)
)
"""


def two_chips() -> None:
    """They are plugged in."""
    from payload import placement

    placement.look = lambda *_: placement.Host(tpu_chips=2)  # type: ignore[assignment]


def warm_up(run: Run) -> list[int]:
    lines = [json.loads(line) for line in (run.artifacts / "timing.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if line.get("compile")]


def test_the_same_loop_trains_through_torch_tpus_names(tmp_path: Path, data: Path) -> None:
    package = tmp_path / "fake" / "torch_tpu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    notes = tmp_path / "notes"
    path = f"{tmp_path / 'fake'}{os.pathsep}{ROOT}"
    environ = {"PYTHONPATH": path, "NOTES": str(notes)}
    run = play(tmp_path / "tpu", SMALL, "--backend", "tpu", data=data, first=two_chips, **environ)
    assert run.code == 0, run.stdout + run.stderr
    assert run.stdout.startswith("tpu ×2 · mnist 256 images")
    plain = play(tmp_path / "cpu", {**SMALL, "cores": 2}, "--backend", "cpu", data=data)
    assert run.read("metrics.json")["train_loss"] == plain.read("metrics.json")["train_loss"]
    assert (warm_up(run), warm_up(plain)) == ([1], []), "the first step, in which kernels are chosen, is told apart"
    said = notes.read_text().splitlines()
    assert said[0] == "set_tpu_launch_env (2,) {}" and sum("set_tpu_launch_env" in line for line in said) == 1
    assert {"tpu_dist (0, 2) {}", "tpu_dist (1, 2) {}", "set_device_index (0,) {}", "set_device_index (1,) {}"} <= set(
        said
    )
    assert sum(line.startswith("manual_seed") for line in said) == 2 * 8, "one for each step of each process"
    assert any(line.startswith("synchronize") for line in said)


def test_without_the_package_it_is_one_line_that_says_what_to_install(tmp_path: Path, data: Path) -> None:
    run = play(tmp_path, SMALL, "--backend", "tpu", data=data)
    assert run.code == 2 and run.stderr.count("\n") == 1
    assert run.stderr.startswith("error: torch_tpu is not installed: pip install torch_tpu, in an environment without")


def test_a_package_that_finds_no_tpu_is_one_line(tmp_path: Path, data: Path) -> None:
    package = tmp_path / "fake" / "torch_tpu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libtpu.so: cannot open shared object file')")
    path = f"{tmp_path / 'fake'}{os.pathsep}{ROOT}"
    run = play(tmp_path, SMALL, "--backend", "tpu", data=data, first=two_chips, PYTHONPATH=path)
    assert run.code == 2 and "Traceback" not in run.stderr
    assert "torch_tpu cannot be imported (libtpu.so: cannot open shared object file)" in run.stderr
    assert json.loads((tmp_path / "train.json").read_text())["epochs"] == SMALL["epochs"]
