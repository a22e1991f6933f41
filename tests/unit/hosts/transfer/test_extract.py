"""Results from a packer that may be hostile: the conversation, the disk, and nothing outside of the directory changes."""

import errno
import hashlib
import io
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import RemoteError, Unreachable
from orchestrator.hosts.transfer import places
from orchestrator.hosts.transfer.collect import Beside, CollectRequest
from orchestrator.hosts.transfer.collector import ArchivePart, Collector, TooManyFiles, _ranges
from orchestrator.hosts.transfer.extract import Extracted, IndexEntry, extract, is_there, open_root
from orchestrator.hosts.transfer.places import DRAFT, RESERVED_BYTES, DiskSpace, Places
from orchestrator.text.terminal import harmless

GOOD = b"good content"


def promise(content: bytes) -> IndexEntry:
    return IndexEntry(len(content), hashlib.sha256(content).hexdigest())


def reader(data: bytes) -> Callable[[int], bytes]:
    source = io.BytesIO(data)

    def read(size: int) -> bytes:
        piece = source.read(size)
        if len(piece) < size:
            raise EOFError
        return piece

    return read


def extracted(into: Path, *names: str, data: bytes | None = None, **wanted: IndexEntry) -> Extracted:
    """`names` are wanted with GOOD, which comes for each unless there is `data`. The directory holds what the result says,
    under names that a terminal shows as they are."""
    result = Extracted()
    every = {name: promise(GOOD) for name in names} | wanted
    into.mkdir(exist_ok=True)
    try:
        extract(reader(GOOD * len(names) if data is None else data), into, every, Places(into), result)
    finally:
        on_disk = {
            path.relative_to(into).as_posix() for path in into.rglob("*") if not path.is_dir() or path.is_symlink()
        }
        assert on_disk == {file.place for file in result.files.values()}
        assert all(harmless(name) == name for name in on_disk)
        assert all((into / name).is_file() and not (into / name).is_symlink() for name in on_disk)
    return result


def why(result: Extracted) -> list[str]:
    return [reason for _, reason in result.refused]


def test_files_come_in_the_order_of_the_index(tmp_path: Path) -> None:
    long = "artifacts/" + "n" * 180
    result = extracted(
        tmp_path / "into",
        "artifacts/a/b",
        long,
        data=GOOD * 2 + b"empty is next",
        **{"c": promise(b"empty is next"), "d": promise(b"")},
    )
    assert result.refused == []
    assert list(result.files) == ["artifacts/a/b", long, "c", "d"]
    assert (tmp_path / "into" / "artifacts" / "a" / "b").read_bytes() == GOOD
    assert (tmp_path / "into" / "c").read_bytes() == b"empty is next" and (tmp_path / "into" / "d").read_bytes() == b""
    assert (tmp_path / "into" / long).stat().st_mode & 0o7133 == 0


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/tmp/x", "a//x", "./x", "a/..", "", "a\0b", DRAFT, DRAFT.upper()]
)
def test_paths_that_no_packer_sends_are_refused_even_when_promised_and_others_come(tmp_path: Path, name: str) -> None:
    result = extracted(tmp_path / "into", "before", name, "after")
    assert set(result.files) == {"before", "after"} and result.missing == []
    assert [path for path, _ in result.refused] == [name]
    assert {path.name for path in tmp_path.iterdir()} == {"into"}


ODD = ["c:x", "a\\..\\x", "a\tb.pt", "a\nb", "a\x1b]0;t\x07b", "a\udcffb", "\u202etp.exe", "n" * 300, "/".join("d" * 150),
    "\t/x", "é\t"]  # fmt: skip


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_a_file_of_any_name_comes_and_the_next_try_finds_it(tmp_path: Path, name: str) -> None:
    into, path = tmp_path / "into", f"artifacts/{name}"
    result = extracted(into, "before", path, "after")
    assert set(result.files) == {"before", path, "after"}
    place = result.files[path].place
    assert (place == path) == (name in ODD[:2]) and place.startswith("artifacts/")
    assert (into / place).read_bytes() == GOOD
    with open_root(into) as root:
        assert is_there(root, Places(into).of(path), promise(GOOD))


def test_a_link_that_appears_in_the_directory_meanwhile_is_not_followed(tmp_path: Path) -> None:
    """Another process races this one: O_NOFOLLOW must hold. A link where a file belongs is replaced itself."""
    outside = tmp_path / "outside"
    outside.mkdir()
    into = tmp_path / "into"
    into.mkdir()
    (into / "d").symlink_to(outside)
    (into / "f").symlink_to(outside / "f")
    result = Extracted()
    extract(reader(GOOD * 3), into, {name: promise(GOOD) for name in ("d/x", "f", "ok")}, Places(into), result)
    assert list(outside.iterdir()) == []
    assert set(result.files) == {"f", "ok"} and not (into / "f").is_symlink()


def test_what_lies_under_a_name_is_replaced_by_a_whole_file_of_the_promised_content_or_stays(tmp_path: Path) -> None:
    into = tmp_path / "into"
    (into / "d").mkdir(parents=True)
    for name in ("a", "b", "d/x"):
        (into / name).write_bytes(b"from before")
    result = Extracted()
    with pytest.raises(EOFError):
        extract(
            reader(GOOD + b"evil content!" + GOOD + bytes(100)),
            into,
            {"a": promise(GOOD), "b": promise(b"other content"), "d": promise(GOOD), "c": promise(bytes(5000))},
            Places(into),
            result,
        )
    assert {path.name: path.read_bytes() for path in into.rglob("*") if path.is_file()} == {
        "a": GOOD,
        "b": b"from before",
        "x": b"from before",
        result.files["d"].place: GOOD,
    }
    ((path, reason),) = result.missing
    assert path == "b" and "changed meanwhile" in reason and result.refused == [], "it may come yet"
    assert result.files["d"].place != "d", "a directory is in the way"


def test_what_is_there_already_is_known_by_its_content_and_never_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "good").write_bytes(GOOD)
    (tmp_path / "d" / "bad").write_bytes(GOOD[::-1])
    (tmp_path / "link").symlink_to("d/good")
    (tmp_path / "way").symlink_to("d")
    names = ("d/good", "d/bad", "link", "way/good", "../x", "d", "none")
    with open_root(tmp_path) as root:
        assert [name for name in names if is_there(root, name, promise(GOOD))] == ["d/good"]


def test_a_draft_that_a_killed_process_left_is_no_hindrance_and_no_name_for_an_entry(tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    (into / DRAFT).symlink_to(tmp_path / "precious")
    result = extracted(into, "a", DRAFT)
    assert set(result.files) == {"a"} and not (tmp_path / "precious").exists()


@pytest.mark.parametrize("second", ["metrics.JSON", "METRICS.json", "Dir/b", "stra\u00dfe2", "ﬁle"])
@pytest.mark.parametrize("folds", [True, False])
def test_paths_that_differ_only_in_case_all_come(
    tmp_path: Path, second: str, folds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "_folds", lambda into: folds)
    firsts = ["metrics.json", "dir/a", "strasse2", "file"]
    result = extracted(tmp_path / "into", *firsts, second)
    assert set(result.files) == {*firsts, second}
    assert {path for path, file in result.files.items() if file.place != path} == ({second} if folds else set())


def test_a_disk_is_found_to_ignore_case(tmp_path: Path) -> None:
    (tmp_path / "worker0").mkdir()
    (tmp_path / "WORKER0").symlink_to("worker0")  # as such a disk answers
    found = Places(tmp_path / "worker0")
    assert found.of("A/x") == "A/x" and found.of("a/y").startswith("a~")


def test_a_safe_name_replaces_no_other_file(tmp_path: Path) -> None:
    safe = Places(tmp_path).of("artifacts/a\tb.pt")
    result = extracted(tmp_path / "into", safe, "artifacts/a\tb.pt")
    assert set(result.files) == {safe, "artifacts/a\tb.pt"} and result.files[safe].place == safe


def test_a_name_that_this_disk_does_not_take_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def picky(source: str, name: str, **how: int) -> None:
        if "~" not in name:
            raise OSError(errno.EILSEQ, "Illegal byte sequence")
        rename(source, name, **how)

    monkeypatch.setattr(os, "rename", picky)
    result = extracted(tmp_path / "into", "artifacts/deep/name")
    assert result.files["artifacts/deep/name"].place.startswith("artifacts/name~")


def test_a_file_where_a_directory_is_and_the_other_way_round(tmp_path: Path) -> None:
    result = extracted(tmp_path / "into", "a", "a/b", "c/d", "c")
    assert set(result.files) == {"a", "c/d", "c"}
    assert [path for path, _ in result.missing] == ["a/b"]


def test_no_more_is_read_than_the_index_says(tmp_path: Path) -> None:
    read: list[int] = []

    def endless(size: int) -> bytes:
        read.append(size)
        return (GOOD * size)[:size]

    extract(endless, tmp_path, {"a": promise(GOOD), "../b": promise(GOOD)}, Places(tmp_path), Extracted())
    assert sum(read) == 2 * len(GOOD)


def test_a_disk_that_takes_no_more_ends_it_and_leaves_no_half_file(tmp_path: Path) -> None:
    def full(size: int) -> None:
        if size == 5000:
            raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "into").mkdir()
    result = Extracted()
    with pytest.raises(OSError, match="No space"):
        extract(
            reader(GOOD + bytes(5000) + GOOD),
            tmp_path / "into",
            {"a": promise(GOOD), "b": promise(bytes(5000)), "c": promise(GOOD)},
            Places(tmp_path / "into"),
            result,
            full,
        )
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["a"]
    assert result.refused == []


@settings(max_examples=150, deadline=None)
@given(names=st.lists(st.text(max_size=30), max_size=6))
def test_no_name_reaches_anything_outside(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    base = tmp_path_factory.mktemp("x")
    every = list(dict.fromkeys([*names, "ok"]))
    result = extracted(base / "into", *every)
    assert [path.name for path in base.iterdir()] == ["into"]
    assert len(result.files) + len(result.refused) == len(every)


def test_long_runs_of_zeros_become_holes_and_the_content_stays_the_same(tmp_path: Path) -> None:
    content = bytes(8 << 20) + b"weights" + bytes(8 << 20)
    result = extracted(tmp_path / "out", data=content, big=promise(content))

    assert (tmp_path / "out" / "big").read_bytes() == content
    assert result.files["big"].size_bytes == len(content)
    assert (tmp_path / "out" / "big").stat().st_blocks * 512 < 4 << 20


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
    monkeypatch.setattr("orchestrator.hosts.transfer.collector.INDEX_BYTES", 100_000)
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


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """10,000 bytes beyond what stays free."""
    free = SimpleNamespace(free=RESERVED_BYTES + 10_000)
    monkeypatch.setattr(places.shutil, "disk_usage", lambda path: free)
    return free


def test_workers_do_not_promise_themselves_the_same_room(disk: SimpleNamespace, tmp_path: Path) -> None:
    shared = DiskSpace(tmp_path)
    assert shared.take(0, 6_000) is None
    assert "no room for 6 KB" in (shared.take(1, 6_000) or "")
    assert shared.take(1, 4_000) is None


def test_what_has_arrived_is_the_disks_to_count(disk: SimpleNamespace, tmp_path: Path) -> None:
    shared = DiskSpace(tmp_path)
    assert shared.take(0, 6_000) is None
    shared.arrived(0, 6_000)
    disk.free -= 6_000
    assert shared.take(1, 4_000) is None and shared.take(1, 1) is not None


def test_a_refusal_says_what_is_free_and_what_must_stay_free(disk: SimpleNamespace, tmp_path: Path) -> None:
    disk.free = RESERVED_BYTES // 2
    refusal = DiskSpace(tmp_path).take(0, 30_000_000)
    assert refusal == f"no room for 30.0 MB: {tmp_path} has 8.4 MB, of which 16.8 MB must stay free"


def test_a_try_that_ended_leaves_its_room_to_others(disk: SimpleNamespace, tmp_path: Path) -> None:
    shared = DiskSpace(tmp_path)
    assert shared.take(0, 9_000) is None
    shared.end(0)
    assert shared.take(1, 9_000) is None


def test_the_jobs_own_limit_counts_what_is_there_already_and_a_worker_once(
    disk: SimpleNamespace, tmp_path: Path
) -> None:
    shared = DiskSpace(tmp_path, most_bytes=5_000)
    for _ in range(3):
        shared.begin(0)
        shared.has(0, 2_000)
        assert shared.take(0, 2_000) is None
    assert "limits.max_results" in (shared.take(1, 1_001) or "") and shared.take(1, 1_000) is None


def test_nothing_but_an_empty_file_fits_on_a_full_disk(disk: SimpleNamespace, tmp_path: Path) -> None:
    disk.free = RESERVED_BYTES // 2
    assert DiskSpace(tmp_path).take(0, 1) is not None and DiskSpace(tmp_path).take(0, 0) is None
