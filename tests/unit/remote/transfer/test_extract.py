"""The extractor against archives that no honest packer makes. Whatever comes, nothing outside the directory changes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.remote.transfer.extract import (
    DRAFT,
    Damaged,
    Extracted,
    IndexEntry,
    RefusedFile,
    extract,
    is_there,
    open_root,
    parts_of,
)

GOOD = b"good content"


def promise(content: bytes) -> IndexEntry:
    return IndexEntry(len(content), hashlib.sha256(content).hexdigest())


def member(name: str, content: bytes = GOOD, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def archive(members: Iterable[tuple[tarfile.TarInfo, bytes]], kind: int = tarfile.GNU_FORMAT) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w", format=kind) as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return memory.getvalue()


def reader(data: bytes) -> Callable[[int], bytes]:
    source = io.BytesIO(data)

    def read(size: int) -> bytes:
        piece = source.read(size)
        if len(piece) < size:
            raise EOFError
        return piece

    return read


def extracted(data: bytes, into: Path, *names: str, **promises: IndexEntry) -> Extracted:
    """`names` are promised with GOOD; the directory must hold exactly what the result says."""
    result = Extracted()
    promised = {name: promise(GOOD) for name in names} | promises
    into.mkdir(exist_ok=True)
    try:
        extract(reader(data), into, promised, result)
    finally:
        on_disk = {
            path.relative_to(into).as_posix() for path in into.rglob("*") if not path.is_dir() or path.is_symlink()
        }
        assert on_disk == set(result.files)
        assert all((into / name).is_file() and not (into / name).is_symlink() for name in on_disk)
    return result


def why(result: Extracted) -> list[str]:
    return [reason for _, reason in result.refused]


def test_regular_files_and_directories_come(tmp_path: Path) -> None:
    long = "artifacts/" + "n" * 180
    data = archive([member("artifacts", b"", type=tarfile.DIRTYPE), member("artifacts/a/b"), member(long)])
    result = extracted(data, tmp_path / "into", "artifacts/a/b", long)
    assert result.refused == []
    assert result.files == {"artifacts/a/b": promise(GOOD), long: promise(GOOD)}
    assert (tmp_path / "into" / "artifacts" / "a" / "b").read_bytes() == GOOD
    assert (tmp_path / "into" / long).stat().st_mode & 0o7133 == 0


ATTACKS = {
    "../x": "a path with empty, . or .. components",
    "a/../../x": "a path with empty, . or .. components",
    "/tmp/x": "an absolute path",
    "C:/x": "an absolute path",
    "c:x": "an absolute path",
    "a//x": "a path with empty, . or .. components",
    "./x": "a path with empty, . or .. components",
    "a\\..\\x": "a backslash in the path",
    "a\nb": "a control character in the path, or it is not UTF-8",
    "a\x1b]0;t\x07b": "a control character in the path, or it is not UTF-8",
    "a\udcffb": "a control character in the path, or it is not UTF-8",
    "/".join("d" * 40): "a path that is too deep or too long",
    "n" * 300: "a path that is too deep or too long",
}


@pytest.mark.parametrize("name", ATTACKS, ids=repr)
def test_paths_that_are_not_plain_are_refused_even_when_promised_and_others_come(tmp_path: Path, name: str) -> None:
    data = archive([member("before"), member(name), member("after")])
    result = extracted(data, tmp_path / "into", "before", name, "after")
    assert set(result.files) == {"before", "after"}
    assert why(result) == [ATTACKS[name]]
    assert result.refused[0][0].isprintable()
    assert {path.name for path in tmp_path.iterdir()} == {"into"}


@pytest.mark.parametrize("bad", ["", "\0", "a\0b"])
def test_names_that_a_tar_cannot_even_carry_are_refused(bad: str) -> None:
    with pytest.raises(RefusedFile):
        parts_of(bad)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a FIFO"),
        (tarfile.CONTTYPE, "a contiguous file"),
        (b"Z", "an entry of a kind that is not used here"),
    ],
)
def test_everything_but_files_and_directories_is_refused_and_others_come(
    tmp_path: Path, kind: bytes, reason: str
) -> None:
    data = archive([member("before"), member("odd", b"", type=kind, linkname="/etc/passwd"), member("after")])
    result = extracted(data, tmp_path / "into", "before", "odd", "after")
    assert set(result.files) == {"before", "after"}
    assert why(result) == [reason]


def test_a_link_to_outside_and_then_a_file_through_it_writes_nothing_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    data = archive([member("d", b"", type=tarfile.SYMTYPE, linkname=str(outside)), member("d/x")])
    result = extracted(data, tmp_path / "into", "d", "d/x")
    assert list(outside.iterdir()) == []
    assert set(result.files) == {"d/x"}  # in a real directory d


def test_a_link_that_appears_in_the_directory_meanwhile_is_not_followed(tmp_path: Path) -> None:
    """Another process races this one: O_NOFOLLOW, not the absence of links in the archive, must hold. A link where
    a file belongs is replaced itself."""
    outside = tmp_path / "outside"
    outside.mkdir()
    into = tmp_path / "into"
    into.mkdir()
    (into / "d").symlink_to(outside)
    (into / "f").symlink_to(outside / "f")
    result = Extracted()
    data = archive([member("d/x"), member("f"), member("ok")])
    extract(reader(data), into, {name: promise(GOOD) for name in ("d/x", "f", "ok")}, result)
    assert list(outside.iterdir()) == []
    assert set(result.files) == {"f", "ok"} and not (into / "f").is_symlink()


def test_what_lies_under_a_name_is_replaced_by_a_whole_file_or_stays(tmp_path: Path) -> None:
    into = tmp_path / "into"
    (into / "d").mkdir(parents=True)
    for name in ("a", "b", "d/x"):
        (into / name).write_bytes(b"from before")
    data = archive([member("a"), member("b", b"evil content"), member("d"), member("c", bytes(5000))])
    result = Extracted()
    with pytest.raises(EOFError):
        extract(
            reader(data[:5000]),
            into,
            {"a": promise(GOOD), "b": promise(b"other content"), "d": promise(GOOD), "c": promise(bytes(5000))},
            result,
        )
    assert {path.name: path.read_bytes() for path in into.rglob("*") if path.is_file()} == {
        "a": GOOD,
        "b": b"from before",
        "x": b"from before",
    }
    assert [path for path, _ in result.refused] == ["b", "d"], "of another size; a directory is in the way"


def test_what_is_there_already_is_known_by_its_content_and_never_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "good").write_bytes(GOOD)
    (tmp_path / "d" / "bad").write_bytes(GOOD[::-1])
    (tmp_path / "link").symlink_to("d/good")
    (tmp_path / "way").symlink_to("d")
    root = open_root(tmp_path)
    seen = [
        name
        for name in ("d/good", "d/bad", "link", "way/good", "../x", "d", "none")
        if is_there(root, name, promise(GOOD))
    ]
    assert seen == ["d/good"]


def test_a_draft_that_a_killed_process_left_is_no_hindrance_and_no_name_for_an_entry(tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    (into / DRAFT).symlink_to(tmp_path / "precious")
    result = extracted(archive([member("a"), member(DRAFT)]), into, "a", DRAFT)
    assert set(result.files) == {"a"} and not (tmp_path / "precious").exists()


def test_a_sparse_file_is_refused_and_what_follows_comes(tmp_path: Path) -> None:
    info, _ = member("sparse", b"x" * 512, type=tarfile.GNUTYPE_SPARSE)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1  # one more header block, which says that it is the last
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    data = bytes(header) + bytes(512) + b"x" * 512 + archive([member("after")])
    result = extracted(data, tmp_path / "into", "sparse", "after")
    assert set(result.files) == {"after"}
    assert why(result) == ["a sparse file"]


def test_a_pax_header_cannot_rename_what_follows(tmp_path: Path) -> None:
    data = archive([member("plain", pax_headers={"path": "../evil", "size": "999999"})], tarfile.PAX_FORMAT)
    result = extracted(data, tmp_path / "into", "plain", "../evil")
    assert "an entry of a kind that is not used here" in why(result)
    assert {path.name for path in tmp_path.iterdir()} == {"into"}


def test_the_same_path_twice_comes_once(tmp_path: Path) -> None:
    result = extracted(archive([member("x"), member("x")]), tmp_path / "into", "x")
    assert why(result) == ["the same path twice"]


@pytest.mark.parametrize("second", ["metrics.JSON", "METRICS.json", "Dir/b", "stra\u00dfe2", "ﬁle"])
def test_paths_that_differ_only_in_case_are_refused(tmp_path: Path, second: str) -> None:
    firsts = ["metrics.json", "dir/a", "strasse2", "file"]
    result = extracted(archive([member(name) for name in [*firsts, second]]), tmp_path / "into", *firsts, second)
    assert set(result.files) == set(firsts)
    assert "only in case" in why(result)[0]


def test_a_file_where_a_directory_is_and_the_other_way_round(tmp_path: Path) -> None:
    data = archive([member("a"), member("a/b"), member("c/d"), member("c")])
    result = extracted(data, tmp_path / "into", "a", "a/b", "c/d", "c")
    assert set(result.files) == {"a", "c/d"}
    assert len(result.refused) == 2


def test_what_the_index_did_not_promise_is_refused(tmp_path: Path) -> None:
    assert why(extracted(archive([member("x")]), tmp_path / "into")) == ["it is not in the index"]


def test_other_content_than_promised_is_not_kept_and_may_come_yet(tmp_path: Path) -> None:
    data = archive([member("x", b"evil content"), member("y")])
    result = extracted(data, tmp_path / "into", "x", "y")
    assert set(result.files) == {"y"}
    ((path, reason),) = result.missing
    assert path == "x" and "changed meanwhile" in reason and result.refused == []


def test_another_size_than_promised_is_refused_for_good(tmp_path: Path) -> None:
    bomb = bytes(3000)
    data = archive([member("small"), member("bomb", bomb), member("after")])
    result = extracted(data, tmp_path / "into", "small", "bomb", "after")
    assert set(result.files) == {"small", "after"}
    assert "another size" in why(result)[0]


def test_an_endless_archive_is_left(tmp_path: Path) -> None:
    info, _ = member("x", b"")
    info.size = 1 << 60
    endless = iter([info.tobuf(tarfile.GNU_FORMAT)])
    with pytest.raises(Damaged, match="much larger"):
        extract(lambda size: next(endless, bytes(size)), tmp_path, {}, Extracted())


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.XHDTYPE, tarfile.REGTYPE])
def test_entries_without_end_are_left(tmp_path: Path, kind: bytes) -> None:
    header = member("x", b"", type=kind)[0].tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(Damaged, match="without end"):
        extract(lambda _: header, tmp_path, {}, Extracted())


def test_a_sparse_header_without_end_is_left(tmp_path: Path) -> None:
    info, _ = member("sparse", b"", type=tarfile.GNUTYPE_SPARSE)
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[482] = 1  # another header block follows
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    first = iter([bytes(header)])
    with pytest.raises(Damaged, match="much larger"):
        extract(lambda size: next(first, b"\1" * size), tmp_path, {}, Extracted())


def test_a_disk_that_takes_no_more_ends_it_and_leaves_no_half_file(tmp_path: Path) -> None:
    def full(size: int) -> None:
        if size == 5000:
            raise OSError(errno.ENOSPC, "No space left on device")

    data = archive([member("a"), member("b", bytes(5000)), member("c")])
    (tmp_path / "into").mkdir()
    result = Extracted()
    with pytest.raises(OSError, match="No space"):
        extract(
            reader(data),
            tmp_path / "into",
            {"a": promise(GOOD), "b": promise(bytes(5000)), "c": promise(GOOD)},
            result,
            full,
        )
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["a"]
    assert result.refused == []


def test_a_path_without_end_is_left(tmp_path: Path) -> None:
    header = member("x", b"", type=tarfile.GNUTYPE_LONGNAME)[0]
    header.size = 1 << 30
    with pytest.raises(Damaged, match="path without end"):
        extracted(header.tobuf(tarfile.GNU_FORMAT), tmp_path / "into")


def test_a_cut_archive_leaves_no_half_file(tmp_path: Path) -> None:
    data = archive([member("a"), member("b", bytes(5000))])
    with pytest.raises(EOFError):
        extracted(data[:3000], tmp_path / "into", "a", b=promise(bytes(5000)))
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["a"]


@settings(max_examples=150, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6),
    names=st.lists(st.text(max_size=30), max_size=4),
)
def test_no_damage_to_an_archive_reaches_anything_outside(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]], names: list[str]
) -> None:
    base = tmp_path_factory.mktemp("x")
    members = [member(name) for name in names if "\0" not in name and not any(0xD800 <= ord(c) < 0xE000 for c in name)]
    data = bytearray(archive([*members, member("ok")]))
    for position, value in flips:
        data[position % len(data)] = value
    with contextlib.suppress(Damaged, EOFError):
        extracted(bytes(data), base / "into", "ok", *names)
    assert [path.name for path in base.iterdir()] == ["into"]


def test_long_runs_of_zeros_become_holes_and_the_content_stays_the_same(tmp_path: Path) -> None:
    content = bytes(8 << 20) + b"weights" + bytes(8 << 20)
    result = extracted(archive([member("big", content)]), tmp_path / "out", big=promise(content))

    assert (tmp_path / "out" / "big").read_bytes() == content
    assert result.files["big"].size_bytes == len(content)
    assert (tmp_path / "out" / "big").stat().st_blocks * 512 < 4 << 20
