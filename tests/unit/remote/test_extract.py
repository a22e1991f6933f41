"""The extractor against archives that no honest packer makes. Whatever comes, nothing outside the directory changes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.remote.extract import Damaged, Extracted, Limits, Promise, Refused, extract, parts_of

GOOD = b"good content"


def promise(content: bytes) -> Promise:
    return Promise(len(content), hashlib.sha256(content).hexdigest())


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


def extracted(data: bytes, into: Path, *names: str, limits: Limits | None = None, **promises: Promise) -> Extracted:
    """`names` are promised with GOOD; the directory must hold exactly what the result says."""
    result = Extracted()
    promised = {name: promise(GOOD) for name in names} | promises
    into.mkdir(exist_ok=True)
    try:
        extract(reader(data), into, promised, limits or Limits(), result)
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
    assert result.size_bytes == 2 * len(GOOD)
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
    with pytest.raises(Refused):
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
    """Somebody else on this machine races us: O_NOFOLLOW, not the absence of links in the archive, must hold."""
    outside = tmp_path / "outside"
    outside.mkdir()
    into = tmp_path / "into"
    into.mkdir()
    (into / "d").symlink_to(outside)
    (into / "f").symlink_to(outside / "f")
    result = Extracted()
    data = archive([member("d/x"), member("f"), member("ok")])
    extract(reader(data), into, {name: promise(GOOD) for name in ("d/x", "f", "ok")}, Limits(), result)
    assert list(outside.iterdir()) == []
    assert set(result.files) == {"ok"}


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


def test_other_content_than_promised_is_not_kept(tmp_path: Path) -> None:
    data = archive([member("x", b"evil content"), member("y")])
    result = extracted(data, tmp_path / "into", "x", "y")
    assert set(result.files) == {"y"}
    assert "not what the index says" in why(result)[0]


def test_too_many_files(tmp_path: Path) -> None:
    names = [f"f{number}" for number in range(6)]
    result = extracted(archive([member(name) for name in names]), tmp_path / "into", *names, limits=Limits(files=4))
    assert list(result.files) == names[:4]
    assert why(result) == ["more than 4 files"] * 2


def test_a_bomb_of_zeros_is_refused_by_its_announced_size(tmp_path: Path) -> None:
    bomb = bytes(3000)
    data = archive([member("small"), member("bomb", bomb), member("after")])
    result = extracted(data, tmp_path / "into", "small", "after", limits=Limits(size_bytes=2500), bomb=promise(bomb))
    assert set(result.files) == {"small", "after"}
    assert "would exceed 2,500 bytes" in why(result)[0]


def test_an_endless_archive_is_left(tmp_path: Path) -> None:
    info, _ = member("x", b"")
    info.size = 1 << 60
    endless = iter([info.tobuf(tarfile.GNU_FORMAT)])
    with pytest.raises(Damaged, match="much larger"):
        extract(lambda size: next(endless, bytes(size)), tmp_path, {}, Limits(size_bytes=10_000), Extracted())


@pytest.mark.parametrize("kind", [tarfile.DIRTYPE, tarfile.XHDTYPE, tarfile.REGTYPE])
def test_entries_without_end_are_left(tmp_path: Path, kind: bytes) -> None:
    header = member("x", b"", type=kind)[0].tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(Damaged, match="without end"):
        extract(lambda _: header, tmp_path, {}, Limits(files=5), Extracted())


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
