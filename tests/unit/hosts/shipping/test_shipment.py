"""A shipment depends on nothing but its content, and what travels to a worker is what it was offered."""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import RemoteError, UserError
from orchestrator.hosts.shipping import sending, store
from orchestrator.hosts.shipping.sending import BLOCK_BYTES, HEADER, Blocks, Selection, Sending, encoded
from orchestrator.hosts.shipping.shipment import Shipment, make_shipment, shipment_in_place
from orchestrator.hosts.shipping.tree import Source, survey


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("print(1)\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o744)
    (root / "empty").mkdir()
    (root / "link").symlink_to("pkg/a.py")
    return root


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


def ship(tree: Path, place: Path, **more: bytes) -> Shipment:
    sources = {".": Source(tree, gitignore=True)} | {name: Source(content) for name, content in more.items()}
    return make_shipment(survey(sources), place)


def test_the_same_content_elsewhere_later_and_for_another_user_is_the_same_shipment(
    tree: Path, place: Path, tmp_path: Path
) -> None:
    first = ship(tree, place, x=b"1")
    copy = tmp_path / "copy"
    (copy / "pkg").mkdir(parents=True)
    (copy / "empty").mkdir(mode=0o700)
    (copy / "link").symlink_to(copy / "pkg" / "a.py")
    (copy / "run.sh").write_bytes((tree / "run.sh").read_bytes())
    (copy / "run.sh").chmod(0o700)
    (copy / "pkg" / "a.py").write_bytes((tree / "pkg" / "a.py").read_bytes())
    (copy / "pkg" / "a.py").chmod(0o600)
    os.utime(copy / "run.sh", (0, time.time() - 10**7))
    again = ship(copy, tmp_path / "other store", x=b"1")
    assert again.manifest == first.manifest and again.id == first.id
    assert first.id == hashlib.sha256(first.manifest.text).hexdigest()


@pytest.mark.parametrize("change", [
    lambda root: (root / "pkg" / "a.py").write_text("print(2)\n"),
    lambda root: (root / "pkg" / "a.py").chmod(0o755),
    lambda root: (root / "pkg" / "a.py").rename(root / "pkg" / "b.py") and (root / "link").unlink(),
    lambda root: (root / "empty").rmdir(),
    lambda root: (root / "link").unlink(),
])  # fmt: skip
def test_any_change_is_another_shipment(tree: Path, place: Path, change: Callable[[Path], object]) -> None:
    first = ship(tree, place)
    change(tree)
    assert ship(tree, place).id != first.id


def test_what_is_shipped_is_what_was_there_when_it_was_made(tree: Path, place: Path) -> None:
    made = ship(tree, place)
    (tree / "run.sh").write_text("changed while the run waits for capacity\n")
    (tree / "pkg" / "a.py").unlink()
    contents = {hashlib.sha256(path.read_bytes()).hexdigest() for path in made.contents.values()}
    assert contents == set(made.contents) and len(contents) == made.files == 2


def test_a_new_content_with_an_old_date_is_read_again(tree: Path, place: Path) -> None:
    path = tree / "pkg" / "a.py"
    before, first = path.stat(), ship(tree, place)
    path.write_text("print(2)\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ship(tree, place).id != first.id


def test_a_damaged_store_costs_only_time(tree: Path, place: Path) -> None:
    first = ship(tree, place)
    next(iter(first.contents.values())).write_bytes(b"cut")
    again = ship(tree, place)
    assert again.id == first.id
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == name for name, path in again.contents.items())


def test_a_damaged_manifest_is_written_again_and_keeps_nothing_from_being_deleted(
    tree: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KEEP", 1)
    made = [ship(tree, place, version=b"%d" % number) for number in range(3)]
    for number, each in enumerate(made, 1):
        each.release()
        (place / "manifests" / each.id).write_bytes(b"")  # this machine lost its power
        os.utime(place / "manifests" / each.id, (number, number))
    again = ship(tree, place, version=b"2")
    assert again.id == made[2].id and (place / "manifests" / again.id).read_bytes() == again.manifest.text
    assert {path.name for path in (place / "manifests").iterdir()} == {again.id}
    assert {path.name for path in (place / "objects").glob("*/*")} == set(again.contents)


def test_a_secret_that_was_allowed_is_found_once_it_is_not(tree: Path, place: Path) -> None:
    (tree / "deploy.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    (tree / ".tpujobignore").write_text("!deploy.pem\n")
    ship(tree, place)
    (tree / ".tpujobignore").unlink()
    with pytest.raises(UserError, match="looks like a secret"):
        ship(tree, place)


def test_a_large_file_is_stored_in_pieces_and_progress_counts_them(tree: Path, place: Path) -> None:
    content = os.urandom(5 << 20) + b"end"
    (tree / "large").write_bytes(content)
    told: list[tuple[int, int]] = []
    made = make_shipment(survey({".": Source(tree)}), place, lambda done, total: told.append((done, total)))
    assert told[-1] == (made.size_bytes, made.size_bytes) and len(told) > 5
    assert made.contents[hashlib.sha256(content).hexdigest()].read_bytes() == content


def test_the_store_keeps_the_newest_and_those_of_living_processes(
    tree: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KEEP", 2)
    (place / "objects").mkdir(parents=True)
    (place / "objects" / ".draft-of-a-killed-process").write_text("x")
    in_use = ship(tree, place, version=b"in use")
    made = [ship(tree, place, version=b"%d" % number) for number in range(5)]
    os.utime(place / "manifests" / in_use.id, (0, 0))
    for number, each in enumerate(made, 1):
        os.utime(place / "manifests" / each.id, (number, number))
        each.release()
    last = ship(tree, place, version=b"last")
    left = {path.name for path in (place / "manifests").iterdir()}
    assert left == {in_use.id, last.id, made[-1].id}
    kept = {path.name for path in (place / "objects").glob("*/*")}
    assert kept == {name for each in (in_use, last, made[-1]) for name in each.contents}
    assert not list((place / "objects").glob(".draft*"))


def test_saved_work_is_read_where_it_is(tree: Path) -> None:
    sources = {"artifacts": Source(tree / "pkg", everything=True)}
    (tree / "pkg" / "x.pyc").write_text("a result like any other")
    (tree / "pkg" / ".env").write_text("of the job itself")
    made = shipment_in_place(survey(sources))
    assert set(made.contents.values()) == {tree / "pkg" / name for name in ("a.py", "x.pyc", ".env")}


def shipment(tmp_path: Path, *contents: bytes) -> Shipment:
    sources = {f"{number:03}": Source(content) for number, content in enumerate(contents)}
    return make_shipment(survey(sources), tmp_path / "store")


def decoded(stream: bytes) -> Iterator[tuple[bytes, bytes]]:
    while stream:
        kind, size = HEADER.unpack(stream[: HEADER.size])
        data, stream = stream[HEADER.size :][:size], stream[HEADER.size :][size:]
        if kind == b"0":
            stream = data + stream
            data = bytes(size)
        yield kind, zlib.decompress(data) if kind == b"Z" else data


def sent(made: Shipment, missing: list[list[int]], offset: int = 0) -> list[tuple[bytes, bytes]]:
    blocks = Blocks(made, Selection.of({"missing": missing, "offset": offset}, made))
    stream = [(block, size) for block, size in blocks]
    assert sum(size for _, size in stream) == blocks.size_bytes
    return list(decoded(b"".join(block for block, _ in stream)))


def test_the_stream_holds_the_missing_contents_one_after_the_other(tmp_path: Path) -> None:
    contents = [os.urandom(size) for size in (10, BLOCK_BYTES, 3 * BLOCK_BYTES + 7, 1, 5)]
    made = shipment(tmp_path, *contents)
    assert b"".join(data for _, data in sent(made, [[0, 5]])) == b"".join(contents)
    assert b"".join(data for _, data in sent(made, [[0, 1], [2, 4]])) == contents[0] + contents[2] + contents[3]
    assert b"".join(data for _, data in sent(made, [[2, 3]], 1000)) == contents[2][1000:]
    assert sent(made, []) == []


def test_equal_contents_travel_once_and_empty_ones_never(tmp_path: Path) -> None:
    made = shipment(tmp_path, b"same", b"", b"same", b"other")
    assert made.files == 4 and [size for _, size in made.manifest.contents] == [4, 5]


def test_text_is_packed_zeros_are_counted_and_noise_travels_as_it_is() -> None:
    text, noise = b"def main():\n    return 1\n" * 30_000, os.urandom(100_000)
    assert [kind for kind, _ in decoded(encoded(text))] == [b"Z"] and len(encoded(text)) < len(text) / 10
    assert [kind for kind, _ in decoded(encoded(noise))] == [b"R"] and len(encoded(noise)) == len(noise) + HEADER.size
    assert len(encoded(bytes(BLOCK_BYTES))) == HEADER.size
    for data in (text, noise, bytes(777)):
        assert b"".join(part for _, part in decoded(encoded(data))) == data


@pytest.mark.parametrize("answer", [
    *({"missing": [[0, 3]], "offset": 0}, {"missing": [[-1, 1]], "offset": 0}, {"missing": [[1, 1]], "offset": 0}),
    *({"missing": [[1, 2], [0, 1]], "offset": 0}, {"missing": [[0, 1], [0, 1]], "offset": 0}),
    *({"missing": [["0", "1"]], "offset": 0}, {"missing": [[0]], "offset": 0}),
    *({"missing": [[0.0, 1.5]], "offset": 0}, {"missing": "../../.ssh/id_rsa", "offset": 0}),
    *({"missing": {"/etc/passwd": 1}, "offset": 0}, {"missing": [[0, 1]], "offset": -5}),
    *({"missing": [[0, 1]], "offset": 10}, {"missing": [[0, 1]]}, {"missing": [], "offset": 4}, {"offset": 0}),
])  # fmt: skip
def test_a_worker_gets_nothing_that_it_was_not_offered(tmp_path: Path, answer: dict[str, Any]) -> None:
    with pytest.raises(RemoteError, match="a worker asks for"):
        Selection.of(answer, shipment(tmp_path, b"0123456789", b"x"))


def test_a_file_that_becomes_shorter_while_it_is_sent_is_an_error(tmp_path: Path) -> None:
    made = shipment(tmp_path, b"0123456789")
    next(iter(made.contents.values())).write_bytes(b"012")
    with pytest.raises(RemoteError, match="was cut while it was sent"):
        sent(made, [[0, 1]])


class Call:
    """A running `receive` on a worker that has the manifest, and then gives this answer."""

    name = "worker0"

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answers, self.connection = iter([{"manifest": True}, answer]), self

    def __call__(self, *_: Any, **__: Any) -> Call:
        return self

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def answer(self, limit: int = 0) -> dict[str, Any]:
        return next(self.answers)


EMPTY = hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize(("answer", "said"), [
    ({"changed": EMPTY}, "asks for what it was not offered"),
    ({"changed": "0" * 64}, "asks for what it was not offered"),
    ({"changed": ["x"]}, "asks for what it was not offered"),
    ({"changed": None}, "asks for what it was not offered"),
    ({"changed": hashlib.sha256(b"text").hexdigest()}, "000 arrived with another content than announced"),
    ({"free": 1000}, "no room on its disk .* 1 KB is free"),
    ({"free": "much"}, "no room on its disk .* nothing that it can tell is free"),
    ({"free": -1}, "no room on its disk .* nothing that it can tell is free"),
])  # fmt: skip
def test_whatever_a_worker_complains_about_is_an_error_of_that_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], said: str
) -> None:
    call: Any = Call(answer)
    monkeypatch.setattr(sending, "WorkerCall", call)
    with pytest.raises(RemoteError, match=f"worker0: .*{said}"):
        Sending().send(call, shipment(tmp_path, b"text", b""))
