"""A `train:` job from YAML to proven absence, on real torch_xla."""

import json
import shutil
import subprocess

import pytest

from tests import ROOT
from tests.cli_fixture import NO_DELAYS, Cli
from tests.programs_fixture import needs_xla
from tests.unit.test_docs import reference

pytestmark = [pytest.mark.torch, needs_xla]

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
AS_A_STRANGER = {"TPUJOB_GUARDIAN": "on", **dict.fromkeys(NO_DELAYS, "0.3")}  # each step takes long enough to be listed


@pytest.mark.long
def test_the_first_command_of_the_readme_trains_and_prints_what_the_readme_shows(cli: Cli) -> None:
    """The transcript is of such a run with all of its images; `make transcript` writes it anew."""
    transcript = reference("transcript")
    (cli.directory / "jobs").mkdir()
    shutil.copy(ROOT / "jobs" / "mnist.yaml", cli.directory / "jobs")
    without_network = ("--env", "https_proxy=http://127.0.0.1:9", "--env", "no_proxy=")  # nothing listens there
    few = ("--set", "train.emulated.examples=768", "--env", "OMP_NUM_THREADS=1")
    process = cli.start(*transcript.RUN, *few, *without_network, env=AS_A_STRANGER, stderr=subprocess.STDOUT)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    shown = transcript.transcript_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert transcript.shape(printed) == transcript.shape(shown), "run `make transcript`"
    run = cli.only_run()
    assert run["metrics"]["world"]["processes"] == 2 and run["metrics"]["dataset"]["name"] == "mnist-sample"
    assert run["metrics"]["test_examples"] == 2000
    names = {file["path"].removeprefix("worker0/artifacts/") for file in run["files"]}
    assert {"timing.jsonl", "metrics.json", "provenance.json", "checkpoint.pt", "manifest.json"} <= names
    (timing,) = cli.directory.glob("runs/*/worker0/artifacts/timing.jsonl")
    header, *lines = [json.loads(line) for line in timing.read_text().splitlines()]
    assert header["schema"] == 1 and sum("step" in line for line in lines) == 3 * 768 // 128
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
