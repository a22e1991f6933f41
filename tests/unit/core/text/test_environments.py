"""The environment of a job: its name, the request that makes it, and the script that uses it."""

import fcntl
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.text.environments import Environment, of_training
from tests.waiting import HANG_S

ASKED = Environment(what="requirements.txt", requirements='alpha\nit\'s "quoted"\n', python="3.12")


def bash(home: Path, script: str) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    return subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=HANG_S, check=False)


@pytest.mark.parametrize("change", [
    {"requirements": "beta\n"}, {"constraints": "alpha<1\n"}, {"python": "3.13"}, {"base": "$OTHER/python"},
    {"code_sha256": "0"},
])  # fmt: skip
def test_whatever_else_is_asked_for_is_another_environment(change: dict[str, str]) -> None:
    assert replace(ASKED, **change).name != ASKED.name  # type: ignore[arg-type]


def test_what_only_describes_it_leaves_its_name() -> None:
    assert replace(ASKED, what="the same by another name", install_uv=True).name == ASKED.name


def test_the_agent_gets_the_request_as_it_was_asked_for(tmp_path: Path) -> None:
    done = bash(tmp_path, ASKED.setup("exec cat") + "echo then")
    request, then = done.stdout.splitlines()
    found = json.loads(request)
    assert (found["name"], found["requirements"], then) == (ASKED.name, ASKED.requirements, "then"), done.stderr


def test_the_setup_ends_with_the_code_of_the_agent(tmp_path: Path) -> None:
    done = bash(tmp_path, ASKED.setup("exec bash -c 'exit 7'") + "echo then")
    assert (done.returncode, done.stdout) == (7, "")


@pytest.mark.parametrize("root", ["~/tpujob/envs", "{home}/a state directory"])
def test_the_jobs_python_comes_first_and_its_environment_is_locked_meanwhile(tmp_path: Path, root: str) -> None:
    asked = replace(ASKED, root=root.format(home=tmp_path))
    place = Path(asked.root.replace("~", str(tmp_path))) / asked.name
    (place / "bin").mkdir(parents=True)
    python = place / "bin" / "python"
    python.write_text("#!/bin/sh\necho it is $VIRTUAL_ENV\n")
    python.chmod(0o755)
    lock = Path(f"{place}.lock")
    lock.touch()
    done = bash(tmp_path, asked.use(f"python; flock -n '{lock}' true || echo in use"))
    assert done.stdout.splitlines() == [f"it is {place}", "in use"], done.stderr
    with lock.open() as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_training_has_the_packages_of_its_backend_and_the_jobs_own() -> None:
    found = of_training("xla", ASKED)
    assert found.requirements.startswith("torch==2.9.0\ntorch_xla[tpu]==2.9.0\n")
    assert found.requirements.endswith(ASKED.requirements)
    assert (found.what, found.python, found.imports) == ("torch_xla and requirements.txt", "3.12", "torch, torch_xla")
    assert of_training("cpu", ASKED).name == found.name


def test_torch_tpu_has_an_environment_of_its_own_and_needs_a_newer_python() -> None:
    found = of_training("tpu", Environment())
    assert (found.what, found.imports, found.least_python) == ("torch and torch_tpu", "torch, torch_tpu", "3.11")
    assert found.name != of_training("xla", Environment()).name and "torch_xla" not in found.requirements
    assert "backend xla, which trains on the same TPU" in found.too_old and "{version}" in found.too_old


@pytest.mark.parametrize(("line", "kept", "said"), [
    ("jax[tpu]>=0.6", "jax>=0.6\n", "jax[tpu] means jax, libtpu is left out"),
    ("torch_xla[tpu, pallas]==2.9.0 ; x", "torch_xla[ pallas]==2.9.0 ; x\n",
     "torch_xla[tpu, pallas] means torch_xla[ pallas], "),
    ("libtpu==0.0.21", "", "TPU, libtpu is"), ("-f https://storage.googleapis.com/libtpu-wheels/index.html", "", ""),
    *((line, f"{line}\n", "") for line in ("jax", "jax[cuda12]", "jax[k8s,tpux]", "mylib[tpu]", "-f ./wheels")),
])  # fmt: skip
def test_without_a_tpu_the_same_requirements_mean_what_can_be_there(line: str, kept: str, said: str) -> None:
    found = Environment(requirements=f"{line}\nnumpy\n").without_tpu()
    assert found.requirements == f"{kept}numpy\n" and said in found.remark
    assert bool(found.remark) == (kept != f"{line}\n")
