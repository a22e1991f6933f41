"""`tpujob check` as a person uses it, with the real TPU compiler."""

import json
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.check import compiler
from tests.check.programs import CASES
from tests.check.test_programs import JAX_JOB
from tests.cli_fixture import Cli
from tests.waiting import until

TRAIN = """\
name: train
tpu: {{accelerator: {accelerator}, zone: us-central1}}
train:
  model: mnist_cnn
  dataset: mnist
  batch_size: {batch_size}
  cores: all
  emulated: {{cores: 2, examples: 1200}}
"""


@pytest.fixture
def checking(cli: Cli, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cli


def program_of(cli: Cli, name: str, more: str = "") -> str:
    """Write a job with one of the twelve programs; its file."""
    case = next(each for each in CASES if each.name == name)
    (cli.directory / "code").mkdir(exist_ok=True)
    (cli.directory / "code" / "train.py").write_text(case.source + more)
    return cli.job(JAX_JOB.format(accelerator=case.accelerator))


def steady(cli: Cli, accelerator: str, batch_size: int) -> Mapping[str, Any]:
    """Return the program of a training step, as a check describes it."""
    said = cli("check", cli.job(TRAIN.format(accelerator=accelerator, batch_size=batch_size)), "--steps", "2", "--json")
    assert said.returncode == 0, said.text
    return dict(json.loads(said.stdout)["graphs"][-1])


@pytest.mark.exhaustive
@pytest.mark.torch
def test_a_check_has_the_shapes_of_one_real_chip_and_not_those_of_the_emulation(checking: Cli) -> None:
    """The emulation has 2 processes and 1,200 examples; the chips are 8, and the training set is 60,000 images."""
    eight, one = steady(checking, "v5litepod-8", 1024), steady(checking, "v5litepod-1", 128)
    assert (eight["replicas"], one["replicas"]) == (8, 1)
    assert [60000, 28, 28] in [each["shape"] for each in eight["parameters"]]

    def of(graph: Mapping[str, Any]) -> list[list[int]]:
        """The values whose first side is the batch of a chip."""
        return sorted(each["shape"] for each in graph["largest"] if each["shape"][:1] == [128])

    assert of(eight) == of(one) != []
    assert eight["argument_bytes"] == pytest.approx(one["argument_bytes"], rel=0.01)


@pytest.mark.ci
def test_what_was_checked_is_in_the_plan_until_the_program_changes_and_may_be_a_condition(checking: Cli) -> None:
    job = program_of(checking, "jax_too_large")
    assert "not checked" in checking("plan", job).text
    said = checking("run", job, "--check")
    assert said.returncode == 72 and "does not fit" in said.stderr, said.text
    assert checking.requests() == [], "no call to the API"
    assert "checked: does not fit v5litepod-1" in checking("plan", job).text
    page = next((checking.directory / "runs" / "checks").glob("*/check.html")).read_text()
    assert "does not fit" in page and "65536,131072" in page
    program_of(checking, "jax_too_large", more="print('another program')\n")
    assert "not checked" in checking("plan", job).text


SLEEPS = """\
name: sleeps
tpu: {accelerator: v5litepod-1, zone: us-central1}
command: exec sleep 601.5
"""


def words_of(process: psutil.Process) -> list[str]:
    """The command line of a process; nothing once it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.ci
def test_ctrl_c_ends_the_program_and_the_compiler_and_leaves_no_file(checking: Cli) -> None:
    compiler.install(lambda stage, text: None)
    temporary = checking.directory / "temporary"
    temporary.mkdir()
    command = checking.begin("check", checking.job(SLEEPS), env={"TMPDIR": str(temporary)})
    started = psutil.Process(command.process.pid)
    below: list[psutil.Process] = []

    def plays() -> bool:
        below[:] = started.children(recursive=True)
        return any("601.5" in words_of(each) for each in below)

    command.until_true(plays, "a program that runs")
    command.press(signal.SIGINT)
    assert command.code() == 130, command.said
    until(lambda: not [each for each in below if each.is_running()], "the end of every process")
    assert list(temporary.iterdir()) == []


@pytest.mark.ci
def test_a_limit_of_this_machine_is_no_verdict(checking: Cli) -> None:
    said = checking("check", checking.job(SLEEPS), "--within", "1s")
    assert said.returncode == 73, said.text
    assert "the limit of 1 s on this machine ended the program" in said.stdout


@pytest.mark.exhaustive
@pytest.mark.torch
def test_of_a_batch_that_does_not_fit_the_largest_that_does_is_found(checking: Cli) -> None:
    job = TRAIN.format(accelerator="v5litepod-1", batch_size=60000).replace("examples: 1200", "examples: 60000")
    said = checking("check", checking.job(job))
    assert said.returncode == 72, said.text
    ((fits, too_large),) = re.findall(r"batch_size: ([\d,]+) fits.*, and ([\d,]+) does not", said.stdout)
    assert 30_000 < int(fits.replace(",", "")) < int(too_large.replace(",", "")) < 60_000
