"""What docs/your-own-script.md, sweeps.md, preemption.md and teams-and-ci.md show works: files and commands, by the CLI."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.cli_fixture import Cli
from tests.waiting import ran, until
from tests.wheels import stand_in

PAGE = (ROOT / "docs" / "your-own-script.md").read_text(encoding="utf-8")
FILE = re.compile(r"^```\w*\n# (?P<name>[\w/]+\.\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```sh\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
START = "To try it without a Google Cloud project"

pytestmark = pytest.mark.exhaustive


def commands(section: str) -> list[str]:
    """Return the blocks of commands below a heading of the page, in order."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [found["text"] for found in COMMANDS.finditer(text)]


def program_of(cli: Cli) -> Path:
    """Return a directory with a program `tpujob`."""
    programs = cli.directory / "bin"
    programs.mkdir()
    (programs / "tpujob").write_text(f'#!/bin/sh\nexec {shlex.join(cli.program)} "$@"\n')
    (programs / "tpujob").chmod(0o755)
    return programs


class Reader:
    """Someone who types what the page says, in a directory with the files of the page."""

    def __init__(self, cli: Cli) -> None:
        self.cli, self.directory = cli, cli.directory / "project"
        for found in FILE.finditer(PAGE):
            path = self.directory / found["name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(found["text"])
        requirements = self.directory / "requirements.txt"
        requirements.write_text(requirements.read_text().replace("[tpu]", ""))  # as the page says
        self._bin = program_of(cli)
        (lent,) = COMMANDS.findall(PAGE.split(START)[1].split("\n## ")[0])
        self.types(lent)

    def starts(self, block: str) -> subprocess.Popen[str]:
        path = f"{self._bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return self.cli.start("-euc", block, program=("bash",), cwd=self.directory, env={"PATH": path})

    def types(self, block: str) -> str:
        """Return what the commands printed, once all of them have succeeded."""
        process = self.starts(block)
        out, err = process.communicate()
        assert process.returncode == 0, out + err
        return out + err

    def artifacts(self, run: str) -> Path:
        (directory,) = (self.directory / "runs").glob(f"{run}-*")
        return directory / "worker0" / "artifacts"


@pytest.fixture
def reader(cli: Cli) -> Reader:
    return Reader(cli)


def last_line(path: Path) -> dict[str, float]:
    return dict(json.loads(path.read_text().splitlines()[-1]))


@pytest.mark.torch
def test_one_run_of_a_script_without_a_job_file(reader: Reader) -> None:
    run, look = commands("One run")
    reader.types(run)
    assert last_line(reader.artifacts("train") / "metrics.jsonl")["accuracy"] > 0.5
    seen = reader.types(look)
    assert "step 200 loss" in seen and "loss" in seen
    assert reader.cli.alive() == []


@pytest.mark.torch
def test_init_writes_a_job_file_that_plans_and_runs(reader: Reader) -> None:
    (block,) = commands("A job file")
    said = reader.types(block)
    assert "ships" in said and said.count("succeeded") == 2
    assert reader.cli.alive() == []


@pytest.mark.torch
def test_a_sweep_of_six_runs_over_two_slices_and_ends_in_one_table(reader: Reader) -> None:
    (block,) = commands("A sweep")
    said = reader.types(block)
    assert "6 variants, over 2 slices" in said
    assert reader.cli.lived() == 2 and reader.cli.alive() == []
    compared = json.loads(reader.types("tpujob compare lr-sweep --json"))
    assert [run["params"]["lr"] for run in compared["runs"]] == [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
    assert all("accuracy" in run["metrics"] and "loss" in run["metrics"] for run in compared["runs"])


@pytest.mark.torch
def test_a_preempted_run_goes_on_where_its_checkpoint_was(reader: Reader) -> None:
    run, preempt = commands("A preemption")
    process = reader.starts(run)
    assert process.stdout is not None and process.stderr is not None
    lease = next(line for line in process.stderr if line.startswith("lease"))
    node = lease.split()[1]
    for line in process.stdout:
        if "step 100 loss" in line:
            break
    reader.types(preempt.replace("NODE", node))
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    (written,) = re.findall(r"attempt 2 goes on from .*metrics up to step ([\d,]+)\), saved", out + err)
    saved = written.replace(",", "")  # a slow machine may be beyond step 1,000 by then
    (resumed,) = re.findall(r"worker0 \| resuming after step (\d+)", out)
    assert 100 <= int(resumed) < 3000 and int(saved) <= int(resumed)  # the checkpoint is written before the figures
    lines = (reader.artifacts("spot") / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [
        *range(20, int(saved) + 1, 20),
        *range(int(resumed) + 20, 3001, 20),
        3000,
    ]
    assert reader.cli.lived() == 2 and reader.cli.alive() == []


@pytest.mark.torch
@pytest.mark.timeout(900)  # its bytes are hashed on both sides, on a machine that may be busy
def test_a_sparse_checkpoint_of_seven_gigabytes_is_collected_and_stays_sparse(reader: Reader) -> None:
    (block,) = commands("A large checkpoint")
    reader.types(block)
    found = (reader.artifacts("large") / "checkpoint.bin").stat()
    assert found.st_size == 7 << 30
    assert found.st_blocks * 512 < 100 << 20
    assert reader.cli.alive() == []


@pytest.mark.torch
@pytest.mark.parametrize(("example", "module", "package", "script", "longer"), [
    ("jax", "jax", "jax-0.9", "jax/train_jax.py", "--steps 400"),
    ("keras-tpustrategy", "tensorflow", "tensorflow_tpu-2.19.1", "keras/train_keras.py", "--epochs 4"),
])  # fmt: skip
def test_the_examples_of_other_frameworks_run_have_figures_and_resume(
    reader: Reader, example: str, module: str, package: str, script: str, longer: str
) -> None:
    """As a job, in the environment that its requirements ask for; then its script, again and for longer, where it ended.

    There is no index: what stands for its package there is the framework of this environment, on its CPU.
    """
    wheels = reader.directory / "wheels"
    name, version = package.split("-")
    stand_in(wheels, name, version, pytest.importorskip(module), extra="tpu")
    init, run = next(block.splitlines() for block in commands("JAX and Keras") if f"{example}.yaml" in block)
    reader.types(init)
    with (reader.directory / "jobs" / f"{example}.yaml").open("a") as job:
        job.write(f"env: {{PIP_NO_INDEX: 1, PIP_FIND_LINKS: 'file://{wheels}'}}\n")
    said = reader.types(run)
    assert "1 requirement: 1 package" in said and reader.cli.alive() == []
    artifacts = reader.artifacts(example)
    before = (artifacts / "metrics.jsonl").read_text()
    reader.types(f"TPUJOB_ARTIFACTS={artifacts} TPU_LOAD_LIBRARY=0 {sys.executable} jobs/{script} {longer}")
    after = (artifacts / "metrics.jsonl").read_text()
    assert after.startswith(before) and len(after) > len(before) > 0
    steps = [json.loads(line)["step"] for line in after.splitlines()]
    assert steps == sorted(set(steps)), "no step was done twice"
    assert all(isinstance(json.loads(line)["loss"], float) for line in after.splitlines())


def files_of(page: str, cli: Cli) -> Path:
    """Return a directory with the files that the page shows."""
    directory = cli.directory / "project"
    directory.mkdir()
    for found in FILE.finditer((ROOT / "docs" / page).read_text(encoding="utf-8")):
        (directory / found["name"]).write_text(found["text"])
    return directory


def test_the_sweep_of_the_page_is_compared_over_its_seeds(cli: Cli) -> None:
    files_of("sweeps.md", cli)
    swept = cli("run", "project/sweep.yaml")
    assert (swept.returncode, cli.lived(), cli.alive()) == (0, 2, []), swept.text
    table = cli("compare", "lr-sweep", "--over", "seed").stdout.splitlines()
    assert table[:2] == ["lr\t0.01\t0.03\t0.1", "runs\t2\t2\t2"]
    assert table[2] == "loss\t0.8329 ± 0.0071\t0.5588 ± 0.0071\t0.1366 ± 0.0071"
    again = cli("run", "project/sweep.yaml")
    assert (again.returncode, cli.lived()) == (0, 2), "what succeeded is not run again"


def test_the_script_of_the_page_goes_on_after_a_preemption(cli: Cli) -> None:
    files_of("preemption.md", cli)
    process = cli.start("run", "project/spot.yaml")
    cli.until("starting after step 0", process)
    (node,) = (row["node"] for row in json.loads(cli("status", "--json").stdout)["slices"])
    until(lambda: any(cli.emulator_directory.glob("vms/**/artifacts/checkpoint.json")), "a checkpoint")
    # Long enough on any machine: the script saves its work and ends, which ends the slice, too.
    assert cli("emulator", "preempt", node, "--notice", "1h").returncode == 0
    printed, said = process.communicate()
    assert process.returncode == 0, said
    (step,) = re.findall(r"restart +attempt 2 goes on at step (\d+), saved", said)
    assert int(step) >= 10 and f"worker0 | starting after step {step}\n" in printed
    shown = cli.only_run()
    assert [row["cause"] for row in shown["attempts"]] == ["preempted", None]
    checkpoint = json.loads((Path(shown["directory"]) / "worker0/artifacts/checkpoint.json").read_text())
    assert (checkpoint["step"], cli.alive()) == (300, [])


def test_the_tests_of_the_page_pass(cli: Cli) -> None:
    directory = files_of("teams-and-ci.md", cli)
    (directory / "job.yaml").write_text("tpu: {accelerator: v5e-8, zone: us-central1-a}\ncommand: echo trained\n")
    done = ran(
        [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "test_job.py"],
        cwd=directory,
        env={**os.environ, **cli.env, "PATH": f"{program_of(cli)}:{os.environ['PATH']}"},
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
