"""The bound of a log on a worker: its two ends are kept, and whoever reads hears exactly how much is left out between them."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.vm import bounded_log
from orchestrator.vm.bounded_log import BLOCK_BYTES, BoundedLog
from tests.unit.vm.conftest import Worker, parsed
from tests.waiting import until

PART = 2 * BLOCK_BYTES


def printed(start: int, end: int) -> bytes:
    """What the job prints between two bytes: each eight of them say where they are."""
    return b"".join(b"%07d\n" % number for number in range(start // 8, end // 8 + 1))[start % 8 :][: end - start]


@pytest.mark.parametrize("holes", [True, False], ids=["holes", "a file system without holes"])
@pytest.mark.parametrize("seed", range(5))
def test_a_reader_gets_what_was_printed_or_how_much_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, holes: bool
) -> None:
    chance, path = random.Random(seed), tmp_path / "log"
    job = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    supervisor = BoundedLog(str(path), 2 * PART)
    if not holes:
        monkeypatch.setattr(bounded_log, "_punch", lambda *_: False)

    def prints() -> None:
        """Print more, also between a look of the reader and its read, until there is enough."""
        size = os.fstat(job).st_size
        if size < 40 * PART:
            os.write(job, printed(size, size + chance.choice((0, 0, 900, 30_000, 3 * PART))))
            supervisor.punch(job)

    class Racing:
        def __init__(self, path: str, *_: Any, **__: Any) -> None:
            self.file = Path(path).open("rb", buffering=0)  # noqa: SIM115 - closed at the end of the block

        def __enter__(self) -> "Racing":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def read(self, size: int) -> bytes:
            prints()
            piece = self.file.read(size)
            prints()
            return piece

    monkeypatch.setattr(bounded_log, "open", Racing, raising=False)

    def read(offset: int, limit: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield where each piece begins and ends, once it is proven."""
        for left_out, piece in BoundedLog(str(path), 2 * PART).pieces(offset, limit):
            start, offset = offset + left_out, offset + left_out + len(piece)
            assert piece == printed(start, offset)
            yield start, offset

    at = 0
    while os.fstat(job).st_size < 40 * PART:
        prints()
        for _, end in read(at):
            at = end
            if chance.random() < 0.1:
                break  # the connection is cut
    size = os.fstat(job).st_size
    for start in (0, PART - 7, PART, 2 * PART, size - PART, size):
        spans = list(read(start, size))
        gaps = [(a, b) for (_, a), (b, _) in zip([(0, start), *spans], [*spans, (size, 0)], strict=True) if a != b]
        assert gaps == ([(max(start, PART), size - PART)] if start < size - PART else [])
    assert (os.fstat(job).st_blocks * 512 <= 2 * PART + BLOCK_BYTES) is holes
    monkeypatch.setattr(bounded_log, "DRAIN_S", -1.0)
    monkeypatch.setattr(bounded_log, "LAST_BYTES", PART // 2)
    assert next(read(7, size))[0] == size - PART // 2, "nobody waits for more of a log that has a gap"
    assert next(read(7, 2 * PART))[0] == 7, "one without a gap comes as a whole"
    os.close(job)


def test_a_job_that_prints_without_end_fills_no_disk_and_its_end_is_that_of_its_script(worker: Worker) -> None:
    worker.start("echo first; yes | head -c 60000000; echo last >&2; exit 7", max_log=2 * PART)
    ended, log = worker.ended(), worker.path("main", "log")
    assert (ended["rc"], ended["log_size"]) == (7, 60_000_000 + len("first\nlast\n"))
    assert log.stat().st_size == ended["log_size"] and log.stat().st_blocks * 512 <= 2 * PART + BLOCK_BYTES
    frames = worker.output("follow", "a1", "main", "0").split(b"\n", 1)[1]
    assert frames.startswith(b"L 65536\nfirst\ny\n") and frames.count(b"G ") == 1
    assert b"G 8\n%dL 65536\n" % (ended["log_size"] - 2 * PART) in frames
    assert b"y\nlast\nS " in frames and len(frames) < 2 * PART + 2000
    resumed = worker.output("follow", "a1", "main", str(PART + 5_000_000)).split(b"\n", 1)[1]
    assert resumed.startswith(b"G 8\n%d" % (ended["log_size"] - 2 * PART - 5_000_000))
    assert parsed(worker.output("status", "a1", "main").strip())["state"] == "exited"


def test_the_log_is_kept_within_its_bound_while_the_job_runs(worker: Worker) -> None:
    worker.start("yes & until [ -e ../stop ]; do sleep 0.02; done; kill %1", max_log=2 * PART)
    log = worker.path("main", "log")
    until(lambda: log.stat().st_size > 500_000_000 and log.stat().st_blocks * 512 < 250_000_000, "holes in the log")
    worker.path("stop").touch()
    assert worker.ended()["rc"] == 0
