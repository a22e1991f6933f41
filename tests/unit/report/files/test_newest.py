"""The newest that the files of a run say: its step and speed, its chips and its host; and files that make no sense."""

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.files import metrics, newest
from orchestrator.report.files.artifact_files import LAST_BYTES, last_objects
from orchestrator.report.files.newest import BESIDE, Newest

GIB = 1 << 30


def write(path: Path, *rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def steps(directory: Path, *pairs: tuple[float, int]) -> None:
    write(directory / metrics.STEPS, *({"at": at, "step": step} for at, step in pairs))


def live(directory: Path, kind: str, *rows: Any) -> None:
    write(directory / BESIDE[kind].live, *rows)


def test_a_run_without_files_says_nothing(tmp_path: Path) -> None:
    assert newest.read(tmp_path, {}) == Newest()


def test_the_rate_that_the_job_reports_comes_before_that_of_its_steps(tmp_path: Path) -> None:
    steps(tmp_path, (0.0, 0), (10.0, 50))
    found = newest.read(tmp_path, {"loss": 1.0, "tokens_per_s": 900.0, "step": 50})
    assert (found.rate, found.rate_of, found.step, found.seen_at) == (900.0, "tokens", 50, 10.0)


@pytest.mark.parametrize(
    "lines, rate",
    [
        ([(0.0, 0), (100.0, 10), (130.0, 40), (160.0, 70)], 1.0),  # of the last minute
        ([(0.0, 0), (900.0, 90)], 0.1),  # of a long run, which writes a step every few minutes
        ([(5.0, 3)], None),
        ([(9.0, 3), (5.0, 4)], None),  # a clock that was set back
    ],
)
def test_without_a_reported_rate_it_is_that_of_the_newest_steps(
    tmp_path: Path, lines: list[tuple[float, int]], rate: float | None
) -> None:
    steps(tmp_path, *lines)
    found = newest.read(tmp_path, {"loss": 1.0, "tokens_per_s": None})
    assert (found.rate, found.rate_of) == (rate, None if rate is None else "steps")


def test_of_the_chips_the_fullest_and_the_busiest_count(tmp_path: Path) -> None:
    row = {"hbm_used_bytes": [GIB, 4 * GIB], "hbm_total_bytes": [16 * GIB] * 2, "duty_cycle_percent": [5, 80.04]}
    live(tmp_path, "chips", row, {"at": 3})
    live(tmp_path, "host", {"cpu_percent": 12.5, "memory_used_bytes": 3, "memory_total_bytes": 12})
    found = newest.read(tmp_path, {})
    assert (found.hbm_percent, found.duty_percent) == (25.0, 80.0)
    assert (found.cpu_percent, found.memory_percent) == (12.5, 25.0)


def test_once_it_is_collected_the_file_of_the_worker_is_read(tmp_path: Path) -> None:
    write(tmp_path / BESIDE["chips"].collected, {"duty_cycle_percent": [7]})
    assert newest.read(tmp_path, {}).duty_percent == 7.0
    live(tmp_path, "chips", {"duty_cycle_percent": [9]})
    assert newest.read(tmp_path, {}).duty_percent == 9.0, "a copy that is there goes on"


def test_who_holds_the_chips_is_said(tmp_path: Path) -> None:
    text = "process 7 (sleep\x1b[2J) holds a chip"
    live(tmp_path, "chips", {"chips": {"worker": 0, "workers": 1, "use": "busy", "text": text}})
    remark = newest.read(tmp_path, {}).remark
    assert remark.startswith("worker0 (1 of 1): process 7") and remark.isprintable()


@pytest.mark.parametrize(
    "row",
    [
        {"hbm_used_bytes": [3], "hbm_total_bytes": [2]},
        {"hbm_used_bytes": "x", "hbm_total_bytes": None, "duty_cycle_percent": {"a": 1}},
        {"duty_cycle_percent": [101, -1, True, None, "7", 1e999]},
        {"hbm_used_bytes": [0], "hbm_total_bytes": [0]},
        {"chips": ["busy"]},
    ],
)
def test_what_makes_no_sense_is_left_out(tmp_path: Path, row: Any) -> None:
    for kind in BESIDE:
        live(tmp_path, kind, row, [row], "text", None)
    steps(tmp_path, (float("nan"), 1))
    assert newest.read(tmp_path, {}) == Newest()


def test_only_the_end_of_a_file_is_read_and_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    write(path, *({"number": number, "filled": "x" * 1000} for number in range(200)))
    with path.open("a") as file:
        file.write('{"number": 200')
    found = [row["number"] for row in last_objects(path, 1 << 16)]
    assert found == list(range(found[0], 200)) and 0 < len(found) < LAST_BYTES // 1000


def test_a_file_that_is_none_or_is_gone_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert [last_objects(tmp_path / name, 100) for name in ("directory", "link", "none")] == [[], [], []]
