"""The conversation with a packer that may be hostile: its index is bounded, and only what is wanted is asked for."""

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RemoteError, Unreachable
from orchestrator.remote.transfer import collect
from orchestrator.remote.transfer.collect import ArchivePart, Beside, Collector, CollectRequest, TooManyFiles, _ranges


def heard(directory: Path, rows: Iterator[dict[str, Any]]) -> tuple[ArchivePart, list[Any]]:
    """What a worker with this index, and an empty archive, was asked."""
    collector, part, sent = Collector(CollectRequest("a1", directory, ("*.png",))), ArchivePart(0), list[bytes]()

    def fetch() -> None:
        collector.receive(part, lambda: next(rows), sent.append, bytes)

    collector.collect(part, fetch)
    return part, [json.loads(line) for line in sent]


def row(number: int, **changes: Any) -> dict[str, Any]:
    return {"path": f"artifacts/f{number}", "size_bytes": 0, "sha256": "00"} | changes


@pytest.mark.parametrize(
    ("numbers", "ranges"),
    [([], []), ([0], [(0, 1)]), ([1, 2, 3, 7], [(1, 4), (7, 8)]), ([0, 2, 4], [(0, 1), (2, 3), (4, 5)])],
)
def test_what_is_wanted_is_said_in_ranges(numbers: list[int], ranges: list[tuple[int, int]]) -> None:
    assert list(_ranges(numbers)) == ranges


def test_all_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    part, (request, wanted) = heard(tmp_path, iter([row(0), {"hashed": 5}, row(1), {"end": 2}]))
    assert request == {"attempt": "a1", "patterns": ["*.png"], "runs": None}
    assert wanted == [[0, 2]]
    assert [path for path, _ in part.result.missing] == ["artifacts/f0", "artifacts/f1"], "of another content"
    assert (part.hashed_bytes, part.total_files) == (5, 2)


@pytest.mark.parametrize("refusal", [{}, {"why": "y"}])
def test_an_index_or_refusals_without_end_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: dict[str, str]
) -> None:
    monkeypatch.setattr(collect, "INDEX_BYTES", 100_000)
    with pytest.raises(TooManyFiles, match="one archive"):
        heard(tmp_path, (row(number, **refusal) for number in itertools.count()))


@pytest.mark.parametrize("bad", [
    {}, {"path": "x"}, row(0, size_bytes="many"), row(0, size_bytes=None), row(0, size_bytes=float("inf")),
    {"hashed": []},
], ids=str)  # fmt: skip
def test_a_row_that_makes_no_sense_is_an_error_of_the_worker(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(RemoteError, match="makes no sense"):
        heard(tmp_path, iter([bad]))


def test_a_size_that_no_disk_has_waits_and_one_that_nothing_has_is_refused(tmp_path: Path) -> None:
    index = [row(0, size_bytes=1 << 60), row(1, size_bytes=-5), row(2), {"end": 3}]
    part, (_, wanted) = heard(tmp_path, iter(index))
    assert wanted == [[2, 3]]
    assert dict(part.result.missing).keys() == {"artifacts/f0", "artifacts/f2"}
    assert "no room" in dict(part.result.missing)["artifacts/f0"]
    assert part.result.refused == [("artifacts/f1", "a negative size")]


@pytest.mark.parametrize(("came", "kind"), [(0, "waiting"), (1, "left")])
def test_a_worker_that_is_cut_off_owes_only_what_it_promised(tmp_path: Path, came: int, kind: str) -> None:
    """Both files are of one byte; the connection is cut after so many."""
    sha256 = hashlib.sha256(b"x").hexdigest()
    rows = iter([row(0, size_bytes=1, sha256=sha256), row(1, size_bytes=1, sha256=sha256, beside=True), {"end": 2}])
    request = CollectRequest("a1", tmp_path, (), beside=Beside())
    collector, part, sizes = Collector(request), ArchivePart(0), itertools.count()

    def read(size: int) -> bytes:
        if next(sizes) == came:
            raise Unreachable("cut")
        return b"x"

    with pytest.raises(Unreachable):
        collector.collect(part, lambda: collector.receive(part, lambda: next(rows), lambda data: None, read))
    found = part.incomplete("cut")
    assert [(each.worker, each.why) for each in getattr(found, kind)] == [(0, "cut")]
    assert len(found.uncollected) == 1 and len(found.files) == came
