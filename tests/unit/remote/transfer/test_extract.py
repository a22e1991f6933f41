"""The extractor against contents and names that no honest packer sends. Nothing outside the directory changes."""

import errno
import hashlib
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.text.terminal import harmless
from orchestrator.remote.transfer import places
from orchestrator.remote.transfer.extract import Extracted, IndexEntry, extract, is_there, open_root
from orchestrator.remote.transfer.places import DRAFT, Places

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
