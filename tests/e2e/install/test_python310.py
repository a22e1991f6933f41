"""A whole run on VMs whose `python3` is 3.10, as that of today's TPU VM images: watchdog, agent and job."""

import os
from pathlib import Path

import psutil

from tests.cli_fixture import Tpujob

JOB = """
name: older
tpu: {zone: us-central1-a}
code: code
command: |
  cat shipped
  python3 -c 'import sys; print("on", *sys.version_info[:2])'
  echo result > "$TPUJOB_ARTIFACTS/result.txt"
"""


def watchdogs(worker: Path) -> list[str]:
    """The programs in which this worker's watchdog runs."""
    script = str(worker.resolve() / "watchdog" / "watchdog.py")
    found = [process.info for process in psutil.process_iter(["cmdline", "exe"])]
    return [each["exe"] for each in found if script in (each["cmdline"] or []) and "python" in str(each["exe"])]


def test_a_run_on_python_3_10_has_its_artifacts_while_its_watchdog_watches(tpujob: Tpujob, python310: str) -> None:
    (tpujob.directory / "code").mkdir()
    (tpujob.directory / "code" / "shipped").write_text("as it was\n")
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    (node,) = tpujob.alive()
    assert tpujob("stop", "alice").returncode == 0
    (worker,) = [
        path.parent
        for path in tpujob.emulator_directory.glob("vms/*/worker0/startup-script")
        if node.rpartition("/")[2] in path.read_text()
    ]
    python3 = worker / "python" / "bin" / "python3"
    python3.unlink()
    python3.write_text(f'#!/bin/sh\nexec {python310} "$@"\n')
    python3.chmod(0o755)
    up = tpujob("up", "alice")
    assert up.returncode == 0, up.text
    done = tpujob("run", tpujob.job(JOB))
    assert done.returncode == 0, done.text
    assert "worker0 | as it was\nworker0 | on 3 10\n" in done.stdout and "alice is kept until" in done.stdout
    (artifact,) = tpujob.directory.glob("runs/older-*/worker0/artifacts/result.txt")
    assert artifact.read_text() == "result\n"
    assert f"exec {python310}" in python3.read_text(), "the worker kept it"
    assert watchdogs(worker) == [os.path.realpath(python310)]
    assert tpujob("down", "alice").returncode == 0
    assert tpujob.alive() == []
