"""The scripts that run on a worker, run here by a real bash with a stand-in for the worker's python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.core.text import scripts
from tests.waiting import HANG_S

REQUIREMENTS = ("torch==2.9.0", "torch_xla[tpu]==2.9.0")
PYTHON = """#!/bin/bash
echo "python3 $*" >> "$HOME/calls"
if [ "$1 $2" = "-m venv" ]; then
  [ -e "$HOME/no-venv" ] && exit 1
  mkdir -p "$3/bin"
  cp "$0" "$3/bin/python"
fi
if [ "$1 $2" = "-m pip" ] && [ -e "$HOME/no-network" ]; then echo "pip: no network" >&2; exit 2; fi
exit 0
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


def test_the_setup_installs_the_pinned_requirements_into_an_environment_named_by_them(home: Path) -> None:
    done = run(home, scripts.train_setup(REQUIREMENTS))
    assert done.returncode == 0, done.stderr
    name = scripts.environment_name(REQUIREMENTS)
    assert any(call.endswith("torch==2.9.0 torch_xla[tpu]==2.9.0") for call in calls(home))
    assert (home / "tpujob" / "venvs" / name / ".complete").exists()


def test_a_complete_environment_is_used_again(home: Path) -> None:
    run(home, scripts.train_setup(REQUIREMENTS))
    before = calls(home)
    again = run(home, scripts.train_setup(REQUIREMENTS))
    assert again.returncode == 0 and "is there already" in again.stdout and calls(home) == before


def test_an_incomplete_environment_is_created_again(home: Path) -> None:
    (home / "no-network").touch()
    failed = run(home, scripts.train_setup(REQUIREMENTS))
    assert failed.returncode != 0 and "no network" in failed.stderr
    (home / "no-network").unlink()
    assert run(home, scripts.train_setup(REQUIREMENTS)).returncode == 0


def test_a_jobs_own_setup_follows_and_works_in_that_environment(home: Path) -> None:
    (home / "tpujob").mkdir()
    own = scripts.chain(("command -v python >seen", "exit 3"))
    whole = scripts.train_setup(REQUIREMENTS) + scripts.in_train_environment(own, REQUIREMENTS)
    for _ in ("made", "there already"):
        done = subprocess.run(
            ["bash", "-c", whole],
            cwd=home,
            env={"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 3, "that of the job's own command"
        seen = (home / "seen").read_text().strip()
        assert f'"{seen}"'.replace(str(home), "$HOME") == scripts.train_python(REQUIREMENTS)


def test_torch_tpu_has_an_environment_of_its_own() -> None:
    tpu, xla = scripts.requirements_of("tpu"), scripts.requirements_of("xla")
    assert scripts.requirements_of("cpu") == xla and not any("torch_xla" in wanted for wanted in tpu)
    assert scripts.train_python(tpu) != scripts.train_python(xla)
    assert "import torch, torch_tpu;" in scripts.train_setup(tpu) and "import torch, torch_xla;" in scripts.train_setup(
        xla
    )


def test_torch_tpu_is_not_installed_below_python_3_11_and_one_line_says_why(home: Path) -> None:
    older = "import platform, sys; sys.version_info = (3, 10, 12); platform.python_version = lambda: '3.10.12'"
    shim = home / "bin" / "python3"
    shim.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} -c "{older}\n$2"\necho installed\n')
    done = run(home, scripts.train_setup(scripts.TORCH_TPU_REQUIREMENTS))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "setup: backend: tpu needs Python 3.11 or newer, and this image has 3.10.12; backend xla trains on the same TPU\n"
    )
    shim.write_text(shim.read_text().replace("(3, 10, 12)", "(3, 11, 0)"))
    assert "installed" in run(home, scripts.train_setup(scripts.TORCH_TPU_REQUIREMENTS)).stdout


def test_other_requirements_are_another_environment() -> None:
    assert scripts.environment_name(REQUIREMENTS) != scripts.environment_name(("torch==2.8.0",))


def test_the_main_script_runs_the_payload_with_that_environments_python(home: Path) -> None:
    run(home, scripts.train_setup(REQUIREMENTS))
    done = run(home, scripts.train_main(scripts.train_python(REQUIREMENTS)))
    assert done.returncode == 0 and calls(home)[-1] == "python3 -m payload --config train.json"


def test_on_an_emulated_worker_the_environment_is_the_one_that_the_emulator_names(home: Path) -> None:
    own = scripts.in_train_environment("command -v python3", None)
    environment = f"export TPUJOB_EMULATED_TRAINING={home / 'bin'}\n"
    assert run(home, environment + own).stdout.strip() == str(home / "bin" / "python3")
    (home / "bin" / "python").symlink_to("python3")
    assert run(home, environment + scripts.train_main(scripts.train_python(None))).returncode == 0
    assert calls(home)[-1] == "python3 -m payload --config train.json"
    older = run(home, own)
    assert older.returncode != 0 and "tpujob emulator stop" in older.stderr


@pytest.mark.parametrize("worker", ["0", "1"])
def test_a_lent_device_is_announced_once_before_the_command(home: Path, worker: str) -> None:
    script = f"export TPUJOB_WORKER={worker}\n" + scripts.announce_lent_device("echo mine; exit 3\n")
    assert (run(home, script).returncode, run(home, script).stdout) == (3, "mine\n")
    lent = run(home, "export TPUJOB_EMULATED_LENT=torch\n" + script).stdout
    assert lent.endswith("mine\n") and ("this machine's torch is lent" in lent) == (worker == "0")


def test_a_chain_ends_at_the_first_command_that_fails(home: Path) -> None:
    done = run(home, scripts.chain(("echo one", "exit 3", "echo two")))
    assert (done.returncode, done.stdout) == (3, "one\n")
