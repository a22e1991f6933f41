"""The environment of a job, variables that name files, and the scripts that run on a worker, by a real bash."""

import fcntl
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.text import scripts
from orchestrator.core.text.scripts import Environment, of_training
from orchestrator.engine.guardian.process import with_absolute_paths
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


def test_relative_paths_are_those_of_the_directory_and_all_else_stays() -> None:
    given = {
        "KUBECONFIG": "team.yaml:/etc/kube:~/kube::", "GOOGLE_APPLICATION_CREDENTIALS": "keys/robot.json",
        "SSL_CERT_FILE": "/etc/a:b.pem", "TPUJOB_TOKEN_FILE": "", "PATH": "bin",
    }  # fmt: skip
    assert with_absolute_paths(given, "/home/me") == {
        **given,
        "KUBECONFIG": "/home/me/team.yaml:/etc/kube:~/kube::",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/keys/robot.json",
    }


PYTHON = """#!/bin/bash
echo "python3 $*" >> "$HOME/calls"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "python3"
    shim.write_text(PYTHON)
    shim.chmod(0o755)
    return tmp_path


def run(home: Path, script: str) -> subprocess.CompletedProcess[str]:
    env = {"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=HANG_S, check=False)


def calls(home: Path) -> list[str]:
    return (home / "calls").read_text().splitlines() if (home / "calls").exists() else []


def test_the_main_script_of_a_training_runs_the_payload(home: Path) -> None:
    done = run(home, scripts.train_main("python3"))
    assert done.returncode == 0 and calls(home)[-1] == "python3 -m payload --config train.json"


def test_on_an_emulated_worker_the_environment_is_the_one_that_the_emulator_names(home: Path) -> None:
    own = scripts.in_lent_environment("command -v python3")
    environment = f"export TPUJOB_EMULATED_TRAINING={home / 'bin'}\n"
    assert run(home, environment + own).stdout.strip() == str(home / "bin" / "python3")
    older = run(home, own)
    assert older.returncode != 0 and "tpujob emulator stop" in older.stderr


@pytest.mark.parametrize(("worker", "found"), [("0", "lent"), ("1", "lent"), ("0", "its own")])
def test_a_lent_device_is_announced_once_before_the_command(home: Path, worker: str, found: str) -> None:
    (home / "bin" / "python3").write_text(f"#!/bin/bash\necho {found}\n")
    script = f"export TPUJOB_WORKER={worker}\n" + scripts.announce_lent_device("echo mine; exit 3\n")
    assert (run(home, script).returncode, run(home, script).stdout) == (3, "mine\n")
    lent = run(home, "export TPUJOB_EMULATED_LENT=torch\n" + script).stdout
    assert lent.endswith("mine\n") and ("this machine's torch is lent" in lent) is (worker == "0" and found == "lent")


def test_a_chain_ends_at_the_first_command_that_fails(home: Path) -> None:
    done = run(home, scripts.chain(("echo one", "exit 3", "echo two")))
    assert (done.returncode, done.stdout) == (3, "one\n")
