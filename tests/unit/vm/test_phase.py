"""The files of a phase: each is whole, and its lock is its supervisor's, whatever another process does at the same moment."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.vm import local
from orchestrator.vm.phase import PhaseFiles
from tests import ROOT

WRITE = """
import sys
from orchestrator.vm.phase import PhaseFiles
PhaseFiles("a1", "main", sys.argv[1]).write("stop.json", {"grace_s": 2})
"""


def test_two_processes_that_ask_a_phase_to_stop_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = PhaseFiles("a1", "main", str(tmp_path))
    Path(phase.dir).mkdir(parents=True)
    fsync, others = os.fsync, iter([[sys.executable, "-c", WRITE, str(tmp_path)]])

    def and_another_one(fd: int) -> None:
        fsync(fd)
        for argv in others:
            subprocess.run(argv, cwd=ROOT, check=True)

    monkeypatch.setattr("orchestrator.vm.phase.os.fsync", and_another_one)
    phase.write("stop.json", {"grace_s": 1})
    assert phase.read("stop.json") == {"grace_s": 1}
    assert [path.name for path in Path(phase.dir).iterdir()] == ["stop.json"]


def test_a_look_at_a_phase_does_not_keep_its_supervisor_from_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phase = PhaseFiles("a1", "main", str(tmp_path))
    Path(phase.dir).mkdir(parents=True)
    look = phase.lock(fcntl.LOCK_SH)
    assert look is not None
    ends = iter([None, None, lambda: os.close(look)])
    clock = SimpleNamespace(sleep=lambda seconds: (next(ends) or (lambda: None))())
    monkeypatch.setattr(local, "time", clock)
    local._lock(phase)
    assert phase.alive()
