"""Disasters: kill -9 of the CLI, the guardian, of everything local; and `tpujob drill`, which plays some and may be stopped.

A bounded bill and a closed ledger follow. `make kill-sweep` goes through every single effect; here are those of the guardian
and one for each kind of moment of a recovery.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from orchestrator.drill import runner
from orchestrator.drill.bounds import PROMISES
from orchestrator.drill.runner import DISASTERS
from orchestrator.promise.guardian_process import CRASH_POINTS
from tests import ROOT
from tests.cli_fixture import Tpujob
from tests.e2e.deaths import crash_sweep
from tests.e2e.deaths.crash_sweep import CLI, GUARDIAN, RECOVERY, Point
from tests.waiting import until

# Those of commands are rows of tests/faults (1 to 6).
POINTS = [Point(GUARDIAN, f"{name}:1") for name in CRASH_POINTS]
POINTS += [Point(RECOVERY, at) for at in ("Delete:1:before", "Delete:1:after", "Record:2:before")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.killed} at {point.at}")
def test_what_is_left_finishes_within_the_promise(point: Point, tmp_path_factory: pytest.TempPathFactory) -> None:
    (verdict,) = crash_sweep.sweep([point], tmp_path_factory.mktemp("sweep"), at_once=1)
    assert verdict.reached, "no such point"
    assert verdict.problem is None, verdict.problem


@pytest.mark.exhaustive
def test_a_point_that_is_not_there_does_not_pass_for_clean(tmp_path_factory: pytest.TempPathFactory) -> None:
    (verdict,) = crash_sweep.sweep([Point(CLI, "StartSlice:1:before")], tmp_path_factory.mktemp("sweep"), at_once=1)
    assert not verdict.reached


def killed(tpujob: Tpujob, point: str, *words: str) -> None:
    done = tpujob.as_process(*words, env={"TPUJOB_CRASH_AT": point})
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.exhaustive
def test_killed_up_is_adopted_by_the_next_up(tpujob: Tpujob) -> None:
    killed(tpujob, "Create:1:after", "up", "alice", "--zone", "us-central1-a")
    again = tpujob("up", "alice")
    assert again.returncode == 0, again.stderr
    assert len(tpujob.alive()) == 1 and tpujob.lived() == 1
    assert tpujob("down", "alice").returncode == 0
    assert tpujob.alive() == []


ENDED_BY = {
    **{1: "CLI", 2: "guardian", 3: "guardian", 4: "watchdog", 5: "watchdog"},
    **{6: "CLI", 7: "CLI", 8: "guardian", 9: "watchdog", 10: "gc"},
}


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    def started(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator.cli", "drill", *arguments],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return started


@pytest.fixture(autouse=True)
def hears_ctrl_c() -> Iterator[None]:
    """As `tpujob drill` itself: what is started here would inherit that SIGINT is ignored, as in a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def drill_processes(directory: Path) -> list[str]:
    """Return every process of a drill in this directory."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            values = [*words, process.cwd(), *process.environ().values()]
        except psutil.Error:
            continue
        if any(value.startswith(f"{directory}/tpujob-drill-") for value in values):
            found.append(" ".join(words))
    return found


@pytest.mark.exhaustive
def test_ten_disasters_are_within_their_bounds_and_leave_nothing_behind(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = start("--json")
    out, err = process.communicate()
    findings = json.loads(out)
    assert [(each["number"], each["problem"]) for each in findings] == [(number, None) for number in range(1, 11)], err
    assert {each["number"]: each["ended_by"] for each in findings} == ENDED_BY
    assert all(0 <= each["unclaimed_s"] <= each["bound_s"] for each in findings)
    assert process.returncode == 0
    assert "EMULATED" in err and "nothing left behind" in err
    assert list(tmp_path.iterdir()) == [] and drill_processes(tmp_path) == []


@pytest.mark.exhaustive
def test_a_promise_that_is_not_kept_is_reported_as_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner, "LATE_S", 0.5)
    monkeypatch.setattr(runner, "AFTER_S", 0.5)
    # `tpujob gc` does not run, and the VM may not delete, so the promise of the guardian is broken.
    alone = replace(DISASTERS[9], promise=PROMISES["guardian"], gc=False)
    finding = runner.run_one(alone, tmp_path / "alone", threading.Event())
    assert finding.problem is not None and finding.ended_by == "nothing"
    assert "billed for longer than promised" in finding.problem and "left behind: a node" in finding.problem
    assert finding.unclaimed_s is not None and finding.unclaimed_s > alone.bound.seconds
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_a_fault_that_no_call_meets_is_a_problem(tmp_path: Path) -> None:
    spared = replace(DISASTERS[0], faults=({"kind": "operation_gone", "when": {"calls": "1000-"}},))
    finding = runner.run_one(spared, tmp_path / "spared", threading.Event())
    assert finding.problem == "no call met the fault operation_gone"


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_drill_that_is_stopped_removes_everything(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, number: signal.Signals
) -> None:
    process = start("--only", "4", "--only", "10")
    until(lambda: len(list(tmp_path.glob("tpujob-drill-*/*/begun"))) == 2, "the start of two jobs")
    assert drill_processes(tmp_path)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 128 + number and "stopping" in err
    assert drill_processes(tmp_path) == [] and list(tmp_path.iterdir()) == []


def test_an_unknown_number_is_refused(start: Callable[..., subprocess.Popen[str]]) -> None:
    process = start("--only", "11")
    _, err = process.communicate()
    assert process.returncode == 64 and "from 1 to 10" in err
