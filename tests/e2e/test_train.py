"""A `train:` job from YAML to proven absence, on real torch_xla."""

import importlib.util
import json

import pytest

from tests.cli_fixture import Cli

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="needs the `local` extra"),
]

JOB = """
name: tiny
tpu: {zone: us-central1-a}
train:
  model: mlp
  dataset: synthetic
  epochs: 9
  batch_size: 64
  emulated: {cores: 2, examples: 256, test_examples: 512, epochs: 1}
env: {OMP_NUM_THREADS: "1"}
limits: {max_duration: 30m}
"""


def test_two_processes_train_and_their_artifacts_arrive_checked(cli: Cli) -> None:
    done = cli("run", cli.job(JOB))
    assert done.returncode == 0, done.stderr + done.stdout
    assert "worker0 | xla:cpu ×2 · synthetic 256 of 60,000 images · batch 64 · fp32" in done.stdout
    assert "on generated digits, not real images" in done.stdout
    run = cli.only_run()
    assert run["metrics"]["world"]["processes"] == 2 and run["metrics"]["dataset"]["synthetic"] is True
    assert run["metrics"]["test_examples"] == 512
    names = {file["path"].removeprefix("worker0/artifacts/") for file in run["files"]}
    assert {"timing.jsonl", "metrics.json", "provenance.json", "checkpoint.pt", "manifest.json"} <= names
    (timing,) = cli.directory.glob("runs/*/worker0/artifacts/timing.jsonl")
    header, *lines = [json.loads(line) for line in timing.read_text().splitlines()]
    assert header["schema"] == 1 and sum("step" in line for line in lines) == 4
    assert cli.alive() == []


def test_without_torch_the_missing_extra_is_named_and_nothing_is_created(cli: Cli) -> None:
    hidden = cli.directory / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name.partition('.')[0] == 'torch_xla' else find(name, *a)\n"
    )
    path = f"{hidden}:{cli.env['PYTHONPATH']}"
    done = cli("run", cli.job(JOB), env={"PYTHONPATH": path})
    assert done.returncode == 64 and "has no torch_xla" in done.stderr and "pip install" in done.stderr
    assert not cli.emulator_directory.exists()
