"""What a call prints of many workers: the log of worker 0, and why a hidden one failed."""

from pathlib import Path

import pytest

from orchestrator.client.events import LogLines, Notice, WorkerEnded, Workers
from orchestrator.client.functions.printing import Printer


def test_a_call_on_many_workers_prints_the_log_of_worker0_and_the_end_of_one_that_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show = Printer()
    show(Workers(16, Path("/runs/x/logs")))
    for worker in range(16):
        show(LogLines(worker, (f"step {worker}",)))
    show(WorkerEnded("main", 5, 1))
    show(Notice("released", "absent"))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "logs     showing worker0; the logs of the other 15 are in /runs/x/logs",
        "worker0 | step 0",
        "failed   worker5 ended with 1; the end of its log (/runs/x/logs/worker5.log):",
        "worker5 | step 5",
        "released absent",
    ]


def test_the_calls_of_a_map_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    show = Printer()
    show(Workers(8, Path("/logs"), variant="x=1"))
    show(LogLines(1, ("hidden",), variant="x=1"))
    show(LogLines(1, ("shown",), variant="x=2"))
    assert capsys.readouterr().err.splitlines()[1:] == ["x=2 worker1 | shown"]
