"""Twelve programs, judged by the real TPU compiler, which is installed once from the package index (about 1 GB)."""

import json
from pathlib import Path

import pytest

from tests.check.programs import CASES, Case
from tests.cli_fixture import Cli

JAX_JOB = """\
name: checked
tpu: {{accelerator: {accelerator}, zone: us-central1}}
python: "3.12"
requirements: [jax==0.12.0.1]
code: ./code
command: python train.py
"""
TORCH_JOB = """\
name: checked
tpu: {{accelerator: {accelerator}, zone: us-central1}}
code: ./code
command: python train.py
"""


def marked(case: Case) -> object:
    torch = (pytest.mark.torch,) if case.name.startswith("torch") else ()
    return pytest.param(case, id=case.name, marks=(pytest.mark.ci if case.ci else pytest.mark.exhaustive, *torch))


@pytest.mark.parametrize("case", [*map(marked, CASES)])
def test_each_program_has_the_right_verdict(case: Case, cli: Cli, cache: Path) -> None:
    code = cli.directory / "code"
    code.mkdir()
    (code / "train.py").write_text(case.source)
    job = TORCH_JOB if case.name.startswith("torch") else JAX_JOB
    (cli.directory / "job.yaml").write_text(job.format(accelerator=case.accelerator))
    said = cli("check", "job.yaml", env={"XDG_CACHE_HOME": str(cache)})
    assert said.returncode == {"fits": 0, "does not fit": 72, "not judged": 73}[case.verdict], said.text
    assert all(words in said.stdout for words in case.says), said.text
    assert not any(words in said.stdout for words in case.silent), said.text


CACHES = {
    "torch_fits": "import torch_xla.runtime\ntorch_xla.runtime.initialize_cache({path!r})\n",
    "jax_fits": "import jax\njax.config.update('jax_compilation_cache_dir', {path!r})\n"
    "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n",
}


@pytest.mark.exhaustive
@pytest.mark.torch
@pytest.mark.parametrize("name", CACHES)
def test_what_a_program_finds_in_its_own_cache_is_judged_all_the_same(name: str, cli: Cli, cache: Path) -> None:
    """XLA writes nothing of a program that it does not compile, and what is not seen must not count as fitting."""
    case = next(each for each in CASES if each.name == name)
    (cli.directory / "code").mkdir()
    kept = str(cli.directory / "kept")
    (cli.directory / "code" / "train.py").write_text(CACHES[name].format(path=kept) + case.source)
    (cli.directory / "job.yaml").write_text(
        (TORCH_JOB if "torch" in name else JAX_JOB).format(accelerator=case.accelerator)
    )
    first, second = (
        json.loads(cli("check", "job.yaml", "--json", env={"XDG_CACHE_HOME": str(cache)}).stdout)["graphs"]
        for _ in "12"
    )
    assert [each["name"] for each in first] == [each["name"] for each in second] != []
