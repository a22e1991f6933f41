"""Objects that several machines write at once: in a directory, and in the emulated Cloud Storage."""

import os
import resource
import signal
import socket
import stat
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.errors import AlreadyExists, AuthError, BadRequest, CloudError, CloudUnavailable
from orchestrator.places.google.error_translation import NotFound
from orchestrator.queue import store as stores
from orchestrator.queue.store import Conflict, DirectoryStore, Store, StoreUnavailable, open_store
from orchestrator.system import whole_file
from tests.disk import on_disk
from tests.emulator.fixture import Emulator, Fault
from tests.fakes.api import StubApi, StubReply
from tests.forked import Child, dies_at
from tests.waiting import serving

NAME = "queue.json"


@pytest.fixture
def bucket(shared_emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("orchestrator.places.google.objects.FIRST_PAUSE_S", 0.0)
    return open_store(f"gs://{uuid.uuid4()}/of/all/", emulator=shared_emulator.url)


@pytest.fixture
def directory(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "of" / "all"), emulator=None)


@pytest.fixture(params=["directory", "bucket"])
def store(request: pytest.FixtureRequest) -> Store:
    return request.getfixturevalue(request.param)


def files(path: Path) -> dict[str, bytes]:
    return {str(found.relative_to(path)): content for found, content in on_disk(path) if found.name != stores.LOCK}


def test_what_was_written_is_read_with_a_generation_of_its_own(store: Store) -> None:
    absent = store.read(NAME)
    assert (absent.content, absent.generation) == (b"", "")
    store.write(NAME, b"first", "")
    first = store.read(NAME)
    store.write(NAME, b"second", first.generation)
    second = store.read(NAME)
    assert (first.content, second.content, store.read("other").content) == (b"first", b"second", b"")
    assert len({"", first.generation, second.generation}) == 3
    store.delete(NAME)
    store.delete(NAME)
    assert (store.read(NAME).content, store.read(NAME).generation) == (b"", "")


def test_who_writes_in_place_of_what_is_no_more_changes_nothing(store: Store) -> None:
    store.write(NAME, b"first", "")
    first = store.read(NAME)
    store.write(NAME, b"second", first.generation)
    for stale in ("", first.generation):
        with pytest.raises(Conflict, match="was written meanwhile"):
            store.write(NAME, b"third", stale)
    assert store.read(NAME).content == b"second"
    there = store.read(NAME)
    store.delete(NAME)
    with pytest.raises(Conflict):
        store.write(NAME, b"third", there.generation)
    assert store.read(NAME).content == b""


def test_of_many_who_write_in_place_of_the_same_one_wins(store: Store) -> None:
    def write(content: bytes) -> bytes | None:
        try:
            store.write(NAME, content, "")
        except Conflict:
            return None
        return content

    with ThreadPoolExecutor(8) as pool:
        (winner,) = filter(None, pool.map(write, [f"of {number}".encode() for number in range(8)]))
    assert store.read(NAME).content == winner


def count(store: Store) -> int:
    """Add one 50 times, each time in words of its own; return how many there were after the last."""
    number = 0
    for turn in range(50):
        while True:
            found = store.read(NAME)
            number = int(found.content.partition(b" ")[0] or 0) + 1
            try:
                store.write(NAME, f"{number} {os.getpid()} {turn}".encode(), found.generation)
                break
            except Conflict:
                pass
    return number


def test_no_write_of_two_processes_is_lost(store: Store) -> None:
    with Child(lambda: count(store)) as one, Child(lambda: count(store)) as other:
        assert max(int(one.said), int(other.said)) == 100
    assert store.read(NAME).content.startswith(b"100 ")


def test_a_file_goes_in_once_and_comes_out_whole_and_private(store: Store, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "code").write_bytes(content)
    store.put("jobs/j1/code", tmp_path / "code")
    store.put("jobs/j1/code", tmp_path / "code")
    (tmp_path / "code").write_bytes(b"other")
    with pytest.raises(AlreadyExists, match="jobs/j1/code exists already, with another content"):
        store.put("jobs/j1/code", tmp_path / "code")
    for _ in range(2):
        store.fetch("jobs/j1/code", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == content
        assert stat.S_IMODE((tmp_path / "back").stat().st_mode) == 0o600
    store.delete("jobs/j1/code")
    with pytest.raises(NotFound, match="jobs/j1/code does not exist"):
        store.fetch("jobs/j1/code", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


def test_a_full_disk_costs_neither_the_record_nor_a_file_by_halves(store: Store, tmp_path: Path) -> None:
    def on_a_full_disk() -> list[str]:
        """A limit on the size of files stands for the end of the disk; this process would not get rid of it."""
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        calls: list[Callable[[], object]] = [lambda: store.fetch("code", tmp_path / "back")]
        if isinstance(store, DirectoryStore):
            calls += [
                lambda: store.write(NAME, bytes(200), record.generation),
                lambda: store.put("more", tmp_path / "code"),
            ]
        said = []
        for call in calls:
            with pytest.raises(StoreUnavailable) as refused:
                call()
            said.append(refused.value.message)
        return said

    (tmp_path / "code").write_bytes(bytes(200))
    store.put("code", tmp_path / "code")
    store.write(NAME, b"record", "")
    record, before = store.read(NAME), files(tmp_path)
    there = [
        tmp_path / "back",
        *([Path(store.where, NAME), Path(store.where, "more")] * isinstance(store, DirectoryStore)),
    ]
    with Child(on_a_full_disk) as child:
        assert child.said == str([f"{path}: File too large" for path in there])
    assert (files(tmp_path), store.read(NAME).generation) == (before, record.generation)


# -- a directory ---------------------------------------------------------------------------------------------------------


def test_a_directory_is_private_and_its_clock_is_that_of_the_machine(directory: Store) -> None:
    before = time.time()
    assert before <= directory.read(NAME).now <= time.time()
    directory.write(NAME, b"x", "")
    assert before <= directory.read(NAME).now <= time.time()
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode)
        for path in (Path(directory.where), *Path(directory.where).iterdir())
    }
    assert modes == {"all": 0o700, NAME: 0o600, stores.LOCK: 0o600}


def test_a_home_is_found_and_a_store_stays_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert {open_store(name, emulator=None).where for name in ("~/q", "q", f"{tmp_path}/q/")} == {f"{tmp_path}/q"}


@pytest.mark.parametrize("module", [stores, whole_file], ids=["around the write", "in the write"])
def test_a_kill_at_any_moment_leaves_one_record_or_the_other_and_no_lock(directory: Store, module: ModuleType) -> None:
    directory.write(NAME, b"before line 0", "")
    line = 0
    while dies_at(line, module, lambda: directory.write(NAME, b"killed", directory.read(NAME).generation)):
        found = directory.read(NAME)
        assert found.content in (f"before line {line}".encode(), b"killed")
        line += 1
        directory.write(NAME, f"before line {line}".encode(), found.generation)
    assert line > 10 and directory.read(NAME).content == b"killed"


@pytest.mark.parametrize("as_file", [True, False], ids=["a file has its name", "not ours"])
def test_a_directory_that_is_not_to_be_used_is_named(directory: Store, tmp_path: Path, as_file: bool) -> None:
    (tmp_path / "x").write_bytes(b"x")
    if as_file:
        (tmp_path / "of").write_bytes(b"")
    elif os.geteuid() == 0:
        pytest.skip("root may use every directory")
    else:
        Path(directory.where).mkdir(parents=True)
        Path(directory.where).chmod(0)
    calls: tuple[Callable[[], object], ...] = (
        lambda: directory.read(NAME), lambda: directory.write(NAME, b"y", ""), lambda: directory.delete(NAME),
        lambda: directory.put("x", tmp_path / "x"), lambda: directory.fetch("x", tmp_path / "back"),
    )  # fmt: skip
    for call in calls:
        why = "(Not a directory|a file has this name)" if as_file else "Permission denied"
        with pytest.raises(StoreUnavailable, match=rf"^{tmp_path}/of.*: {why}$"):
            call()


def test_a_lock_that_is_not_given_back_ends_in_an_error(directory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(directory, DirectoryStore)
    monkeypatch.setattr(stores, "LOOKS", 3)
    with directory._locked(Path(directory.where, NAME)):
        with pytest.raises(StoreUnavailable, match=f"{NAME}: another process holds its lock, and stands still"):
            directory.write(NAME, b"x", "")
        assert directory.read(NAME).content == b""
    directory.write(NAME, b"x", "")


# -- a bucket -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [True, False])
def test_the_clock_is_that_of_the_bucket(bucket: Store, fault: Fault, absent: bool) -> None:
    if not absent:
        bucket.write(NAME, b"x", "")
    before = bucket.read(NAME).now
    fault("clock", operation="storage.objects.get", seconds=86400.0)
    assert 86400 <= bucket.read(NAME).now - before < 2 * 86400


ONCE: Any = {"when": {"first": 1}}


@pytest.mark.parametrize(("kind", "how"), [
    ("lost_reply", ONCE), ("drop", ONCE), ("garbage", {"form": "html", **ONCE}), ("garbage", {"form": "truncated", **ONCE}),
    ("status", {"status": 503, **ONCE}), ("status", {"status": 503, "effect": True, **ONCE}),
    ("status", {"status": 429, **ONCE}),
])  # fmt: skip
def test_a_write_whose_reply_is_lost_takes_effect_once(
    bucket: Store, fault: Fault, kind: str, how: dict[str, Any]
) -> None:
    bucket.write(NAME, b"old", "")
    found = bucket.read(NAME)
    fault(kind, operation="storage.objects.insert", **how)
    bucket.write(NAME, b"new", found.generation)
    assert bucket.read(NAME).content == b"new"
    with pytest.raises(Conflict):
        bucket.write(NAME, b"late", found.generation)


@pytest.mark.parametrize(("kind", "how", "after"), [
    ("lost_reply", {}, b"new"), ("drop", {}, b""), ("status", {"status": 503}, b""), ("garbage", {"form": "html"}, b"new"),
    ("garbage", {"form": "html", "effect": False}, b""), ("hang", {"seconds": 1.0}, b""),
])  # fmt: skip
def test_what_is_never_confirmed_is_no_success(
    shared_emulator: Emulator, bucket: Store, fault: Fault, monkeypatch: pytest.MonkeyPatch,
    kind: str, how: dict[str, Any], after: bytes,
) -> None:  # fmt: skip
    monkeypatch.setattr(stores, "TRY_S", 0.2 if kind == "hang" else stores.TRY_S)
    fault(kind, operation="storage.objects.insert", **how)
    with pytest.raises(CloudUnavailable):
        open_store(bucket.where, emulator=shared_emulator.url).write(NAME, b"new", "")
    assert bucket.read(NAME).content == after


GONE_ON = StubReply(412, {"error": {"code": 412, "message": "no", "errors": [{"reason": "conditionNotMet"}]}})


def at(stub: StubApi, *replies: StubReply) -> Store:
    stub.answers(*replies)
    return open_store("gs://my-bucket/q", emulator=stub.url)


@pytest.mark.parametrize("there", [b"ours", b"theirs"])
def test_a_lost_reply_and_the_refusal_of_the_next_try_mean_what_is_there(
    stub: StubApi, monkeypatch: pytest.MonkeyPatch, there: bytes
) -> None:
    monkeypatch.setattr("orchestrator.places.google.objects.FIRST_PAUSE_S", 0.0)
    lost = StubReply(200, '{"generation": "8"', claimed_bytes=100)
    store = at(stub, lost, GONE_ON, StubReply(200, there, (("X-Goog-Generation", "8"),)))
    with ExitStack() as expected:
        if there == b"theirs":
            expected.enter_context(pytest.raises(Conflict))
        store.write(NAME, b"ours", "7")
    assert [(asked.method, asked.body) for asked in stub.asked] == [("POST", b"ours"), ("POST", b"ours"), ("GET", b"")]
    assert stub.asked[1].path.endswith("?uploadType=media&name=q%2Fqueue.json&ifGenerationMatch=7")


NO_BUCKET = "The specified bucket does not exist."
NO_ACCESS = "x@y does not have storage.objects.get access to the object."


def in_json(code: int, message: str) -> StubReply:
    reason = {404: "notFound", 403: "forbidden"}[code]
    return StubReply(code, {"error": {"code": code, "message": message, "errors": [{"reason": reason}]}})


def test_no_object_is_what_the_bucket_says_of_it_as_text_or_as_json(stub: StubApi) -> None:
    for reply in (
        StubReply(404, "No such object: my-bucket/q/queue.json"),
        in_json(404, "No such object: my-bucket/q"),
    ):
        found = at(stub, reply).read(NAME)
        assert (found.content, found.generation) == (b"", "") and abs(found.now - time.time()) < 3600


@pytest.mark.parametrize(("reply", "error", "says"), [
    (StubReply(404, NO_BUCKET), BadRequest, "there is no bucket gs://my-bucket"),
    (in_json(404, NO_BUCKET), BadRequest, "there is no bucket gs://my-bucket"),
    (StubReply(403, NO_ACCESS), AuthError, f"gs://my-bucket/q/queue.json: {NO_ACCESS}"),
    (in_json(403, NO_ACCESS), AuthError, f"gs://my-bucket/q/queue.json: {NO_ACCESS}"),
    (StubReply(404, "404 page not found"), CloudError, "404 page not found"),
    (StubReply(404, "<html><title>Not found</title></html>"), CloudError, "not in the API's form: Not found"),
])  # fmt: skip
@pytest.mark.parametrize("call", [lambda store: store.read(NAME), lambda store: store.write(NAME, b"x", "")])
def test_what_says_nothing_of_the_object_is_an_error(
    stub: StubApi, call: Callable[[Store], object], reply: StubReply, error: type[CloudError], says: str
) -> None:
    with pytest.raises(error) as refused:
        call(at(stub, reply))
    assert says in refused.value.message and not isinstance(refused.value, NotFound)
    if error is AuthError:
        assert refused.value.hint == "the role roles/storage.objectUser on gs://my-bucket has it"


def test_a_login_that_may_not_store_is_told_the_bucket(bucket: Store, fault: Fault, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    fault("status", operation="storage.objects.*", status=403)
    calls: tuple[Callable[[], object], ...] = (
        lambda: bucket.read(NAME), lambda: bucket.write(NAME, b"x", ""), lambda: bucket.delete(NAME),
        lambda: bucket.put("x", tmp_path / "x"), lambda: bucket.fetch("x", tmp_path / "back"),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(AuthError, match=f"^{bucket.where}/") as refused:
            call()
        assert "roles/storage.objectUser on gs://" in refused.value.hint
    assert not (tmp_path / "back").exists()


DATED = "Date: Mon, 01 Jan 2024 00:00:00 GMT\r\n"


@pytest.mark.parametrize("head", [
    "200 OK\r\nX-Goog-Generation: 7\r\n", "200 OK\r\nX-Goog-Generation: 7\r\nDate: soon\r\n", f"200 OK\r\n{DATED}",
    f"206 Partial Content\r\nX-Goog-Generation: 7\r\n{DATED}", "404 Not Found\r\n",
])  # fmt: skip
def test_a_reply_without_its_clock_or_its_generation_is_none(monkeypatch: pytest.MonkeyPatch, head: str) -> None:
    def answer(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(f"HTTP/1.1 {head}Content-Length: 14\r\n\r\nNo such object".encode())

    monkeypatch.setattr("orchestrator.places.google.objects.FIRST_PAUSE_S", 0.0)
    with serving(answer) as port, pytest.raises(CloudUnavailable, match="without its clock or the object's generation"):
        open_store("gs://b/q", emulator=f"http://127.0.0.1:{port}").read(NAME)


def test_what_does_not_come_whole_is_neither_a_file_nor_the_record(bucket: Store, fault: Fault, tmp_path: Path) -> None:
    (tmp_path / "code").write_bytes(bytes(200_000))
    bucket.put("code", tmp_path / "code")
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "code").write_bytes(b"before")
    fault("content_cut", operation="storage.objects.get", after_bytes=0)
    with pytest.raises(CloudUnavailable):
        bucket.read("code")
    with pytest.raises(CloudUnavailable):
        bucket.fetch("code", tmp_path / "back" / "code")
    assert files(tmp_path / "back") == {"code": b"before"}
