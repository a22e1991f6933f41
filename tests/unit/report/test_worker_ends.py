"""How the workers of a failed job ended: alike ones in one line, each one in JSON."""

import os
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.core.lease.run_and_attempt import WorkerEnd
from orchestrator.report import worker_ends
from orchestrator.report.files.log_files import TAIL_BYTES
from orchestrator.report.worker_ends import MOST_GROUPS, WorkerReport, first_failures, lines, reports


def failed(worker: int, last: str = "ValueError: bad shape", code: int | None = 1) -> WorkerReport:
    return WorkerReport(worker, code, False, last)


def test_workers_that_fail_alike_are_said_once() -> None:
    workers = [
        failed(index, f"[worker{index}] ValueError: shape ({index}, 4) at 0x7f{index:02x}") for index in range(64)
    ]
    assert lines(workers) == ["64 workers ended with 1, alike: [worker0] ValueError: shape (0, 4) at 0x7f00"]


def test_each_way_to_fail_has_its_own_line_with_its_workers() -> None:
    workers = [failed(index) for index in range(64)]
    workers[63] = failed(63, code=2)
    workers[7] = failed(7, "FileNotFoundError: data.bin")
    assert lines(workers) == [
        "worker0 to worker6 and worker8 to worker62 ended with 1, alike: ValueError: bad shape",
        "worker7 ended with 1: FileNotFoundError: data.bin",
        "worker63 ended with 2: ValueError: bad shape",
    ]


def test_failures_come_before_those_that_were_stopped_and_those_that_succeeded() -> None:
    workers = [
        WorkerReport(0, 0, False, "done"), WorkerReport(1, 143, True, "step 7"),
        WorkerReport(2, None, True, "step 8"), failed(3, ""), failed(4, "", None),
    ]  # fmt: skip
    assert lines(workers) == [
        "worker3 ended with 1, without output",
        "worker4 ended with an unknown code, without output",
        "worker1 and worker2 were stopped",
        "worker0 succeeded",
    ]
    assert first_failures(workers) == [3, 4]


def test_a_job_on_one_worker_needs_no_line() -> None:
    assert lines([failed(0)]) == [] and lines([]) == []


def test_many_ways_to_fail_are_cut_and_counted() -> None:
    told = lines([failed(index, "x" * (index + 1)) for index in range(MOST_GROUPS + 5)])
    assert len(told) == MOST_GROUPS + 1
    assert told[-1] == "5 more ended in 5 other ways: `show --json` has them all"


def test_a_long_last_line_is_cut() -> None:
    (line,) = lines([failed(0, "y" * 4000), failed(1, "y" * 4000)])
    assert len(line) < 300 and line.endswith("y…")


@pytest.mark.parametrize(("log", "last"), [
    (b"a\nValueError: no\n\n \n", "ValueError: no"), (b"a\nno newline", "no newline"), (b"", ""),
    (b"x" * 3 * TAIL_BYTES + b"\nafter a long line\n", "after a long line"), (b"50 %\r100 %\n", "100 %"),
    (b"\x1b[31mred\x1b[0m \x1b]0;title\x07\n", "red"), (b"\xff\xfe\n", "\ufffd\ufffd"),
])  # fmt: skip
def test_the_last_line_of_a_log_is_safe_and_is_the_last_with_text(tmp_path: Path, log: bytes, last: str) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker3.log").write_bytes(log)
    (told,) = reports([WorkerEnd(3, 1)], tmp_path)
    assert asdict(told) == {"worker": 3, "exit_code": 1, "stopped": False, "last_line": last}


def test_a_log_that_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs" / "worker0.log")
    assert worker_ends.reports([WorkerEnd(0, 1)], tmp_path)[0].last_line == ""
