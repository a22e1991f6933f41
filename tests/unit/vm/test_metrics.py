"""The tail of a job's metrics.jsonl, which the job may change in any way."""

import os
from pathlib import Path

import pytest

from orchestrator.vm import metrics
from orchestrator.vm.metrics import MetricsTail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def look(tail: MetricsTail) -> list[bytes]:
    return list(tail.pieces(last=True))


def test_each_look_yields_the_new_complete_lines(path: Path) -> None:
    tail = MetricsTail(path, 0)
    assert look(tail) == []
    path.write_bytes(b"1\n2\n3")
    assert look(tail) == [b"", b"1\n2\n"]
    with path.open("ab") as file:
        file.write(b"3\n")
    assert look(tail) == [b"33\n"] and look(tail) == []


def test_it_goes_on_at_a_byte_that_another_process_reached(path: Path) -> None:
    path.write_bytes(b"1\n2\n")
    assert look(MetricsTail(path, 2)) == [b"2\n"]


def test_a_file_that_was_truncated_begins_anew(path: Path) -> None:
    tail = MetricsTail(path, 0)
    path.write_bytes(b"1\n2\n")
    look(tail)
    path.write_bytes(b"7\n")
    assert look(tail) == [b"", b"7\n"]


def test_a_file_that_was_replaced_begins_anew(path: Path) -> None:
    tail = MetricsTail(path, 0)
    path.write_bytes(b"1\n")
    look(tail)
    other = path.with_name("other")
    other.write_bytes(b"7\n8\n9\n")
    other.rename(path)
    assert look(tail) == [b"", b"7\n8\n9\n"]


def test_a_line_without_end_comes_in_pieces(path: Path) -> None:
    path.write_bytes(b"x" * (metrics.PIECE_BYTES + 10))
    assert look(MetricsTail(path, 0)) == [b"", b"x" * metrics.PIECE_BYTES]


def test_one_look_does_not_keep_the_log_waiting(path: Path) -> None:
    path.write_bytes(b"1234567\n" * (metrics.LOOK_BYTES // 4))
    tail = MetricsTail(path, 0)
    assert sum(map(len, tail.pieces())) == metrics.LOOK_BYTES
    assert list(tail.pieces()) == [], "the next look is later"
    assert sum(map(len, look(tail))) == metrics.LOOK_BYTES


def test_there_is_an_end_to_what_is_sent_of_a_file_that_is_replaced_all_the_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MOST_BYTES", 100)
    tail, sent = MetricsTail(path, 0), 0
    for _ in range(9):
        path.unlink(missing_ok=True)
        path.write_bytes(b"1234567\n" * 5)
        sent += sum(map(len, look(tail)))
    assert sent <= 140


@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_what_is_no_regular_file_is_left_alone(path: Path, kind: str) -> None:
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/etc/hostname")
    assert look(MetricsTail(path, 0)) == []
