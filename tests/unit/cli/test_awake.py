"""The inhibitor is a process of the system's that must end with ours; fake ones on PATH play it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.cli.awake import stay_awake

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="plays systemd-inhibit")


def put(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = directory / "systemd-inhibit"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_without_such_a_program_nothing_is_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert stay_awake("why") is False


def test_a_refusal_is_not_taken_for_a_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "exit 1", monkeypatch)
    assert stay_awake("why") is False


def test_the_inhibitor_ends_with_the_process_that_wanted_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, f"echo $$ > {tmp_path}/pid; exec cat", monkeypatch)
    code = "from orchestrator.cli.awake import stay_awake; import os; print(stay_awake('why')); os._exit(9)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True"
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.02)
    pytest.fail("the inhibitor outlived us")
