"""The bound of a log on a worker: its two ends are kept, and each reader gets exactly how much is left out between them."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.vm import bounded_log
from orchestrator.vm.bounded_log import BLOCK_BYTES, BoundedLog
from tests.unit.vm.conftest import Worker
from tests.waiting import until

PART = 2 * BLOCK_BYTES


def printed(start: int, end: int) -> bytes:
    """What the job prints between two bytes: each eight of them say where they are."""
    return b"".join(b"%07d\n" % number for number in range(start // 8, end // 8 + 1))[start % 8 :][: end - start]


@pytest.mark.parametrize(("seed", "holes"), [(1, True), (2, True), (3, True), (4, False)])
def test_a_reader_gets_what_was_printed_or_how_much_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, holes: bool
) -> None:
    """Not `holes`: the file system has none."""
    chance, path, fstat = random.Random(seed), str(tmp_path / "log"), os.fstat
    job, supervisor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), BoundedLog(path, 2 * PART)
    if not holes:
        monkeypatch.setattr(bounded_log, "sys", SimpleNamespace(platform="darwin"))

    def slow_fstat(file: int) -> os.stat_result:
        """The job prints before a reader that has asked for the size does what follows."""
        found, size = fstat(file), fstat(job).st_size
        if file != job and size < 40 * PART:
            os.write(job, printed(size, size + chance.choice((0, 0, 900, 30_000, 3 * PART))))
            supervisor.punch(job)
        return found

    def read(offset: int, limit: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield where each piece begins and ends, once it is proven."""
        for left_out, piece in BoundedLog(path, 2 * PART).pieces(offset, limit):
            start, offset = offset + left_out, offset + left_out + len(piece)
            assert piece == printed(start, offset)
            yield start, offset

    monkeypatch.setattr(os, "fstat", slow_fstat)
    at = 0
    while (size := fstat(job).st_size) < 40 * PART:
        for _, end in read(at):
            at = end
            if chance.random() < 0.1:
                break  # the connection is cut
    for start in (0, PART - 7, PART, 2 * PART, size - PART, size):
        read_bytes = sum(end - begin for begin, end in read(start, size))
        assert size - start - read_bytes == max(size - PART - max(start, PART), 0)
    assert (fstat(job).st_blocks * 512 <= 2 * PART + BLOCK_BYTES) is holes
    monkeypatch.setattr(bounded_log, "DRAIN_S", -1.0)
    monkeypatch.setattr(bounded_log, "LAST_BYTES", PART // 2)
    assert next(read(7, size))[0] == size - PART // 2, "more of a log that has a gap is not waited for"
    assert next(read(7, 2 * PART))[0] == 7, "one without a gap comes as a whole"
    monkeypatch.undo()
    os.close(job)


def test_a_job_that_prints_without_end_fills_no_disk_and_its_end_is_that_of_its_script(worker: Worker) -> None:
    worker.start("yes & until [ -e ../stop ]; do sleep 0.02; done; kill %1; wait; echo last; exit 7", max_log=2 * PART)
    log = worker.path("main", "log")
    until(lambda: log.stat().st_size > 500_000_000 and log.stat().st_blocks * 512 < 250_000_000, "holes in the log")
    worker.path("stop").touch()
    size = worker.ended()["log_size"]
    assert worker.ended()["rc"] == 7 and log.stat().st_size == size
    assert log.stat().st_blocks * 512 <= 2 * PART + BLOCK_BYTES
    for offset in (PART, PART + 5_000_000):
        frames = worker.output("follow", "a1", "main", str(offset)).split(b"\n", 1)[1]
        gap = b"%d" % (size - PART - offset)
        assert frames.startswith(b"G %d\n%sL 65536\n" % (len(gap), gap)) and b"\nlast\nS " in frames
