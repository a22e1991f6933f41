"""The scripts that run on a worker, run here by a real bash with a stand-in for the worker's python."""

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.core.text import scripts
from tests.waiting import HANG_S

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
