"""The emulated Cloud Storage: `data:` of a job as a worker fetches it, and objects that go up and come down whole."""

import base64
import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloud_tpu_emulator.api.storage import StoredObject
from orchestrator.errors import AlreadyExists, CloudUnavailable
from orchestrator.places.google.error_translation import NotFound
from orchestrator.places.google.objects import Objects
from orchestrator.vm.buckets import data
from orchestrator.vm.buckets.cloud_storage import Storage
from orchestrator.vm.buckets.crc32c import combined, crc32c
from orchestrator.vm.buckets.data_objects import Failed
from tests.emulator.fixture import Emulator
from tests.fakes.api import Request, StubApi, StubReply
from tests.waiting import held_port, until

LARGE = os.urandom(5 << 20) + bytes(30 << 20) + os.urandom(5 << 20)  # of three parts, with a hole
FILES = {"d/a": b"a" * 3_000_000, "d/sub/b": b"", "d/sub/c": b"c" * 2000, "d/large": LARGE, "other/x": b"x"}


class Bucket:
    """One of the shared emulator, with the job of a worker that reads it."""

    def __init__(self, emulator: Emulator, name: str, directory: Path) -> None:
        self.emulator, self.name, self.directory, self.runs = emulator, name, directory, 0
        self.objects = Objects(emulator=emulator.url)

    def put(self, name: str, content: bytes) -> None:
        (self.directory / "content").write_bytes(content)
        self.objects.delete(f"gs://{self.name}/{name}")
        self.objects.upload(f"gs://{self.name}/{name}", self.directory / "content")

    def start(self, path: str) -> subprocess.Popen[str]:
        """Begin to fetch gs://NAME/PATH into ./data of a new job."""
        self.runs += 1
        self.work.mkdir(parents=True)
        fetching = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator.vm", "data"],
            cwd=self.work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "STORAGE_EMULATOR_HOST": self.emulator.url, "GCE_METADATA_HOST": "127.0.0.1:1"},
        )  # fmt: skip
        request = {"data": {"./data": f"gs://{self.name}/{path}"}, "root": str(self.directory / "cache")}
        fetching.stdin.write(json.dumps(request))
        fetching.stdin.close()
        fetching.stdin = None
        return fetching

    def fetch(self, path: str = "d", rc: int = 0) -> str:
        """Fetch; return what it said."""
        fetching = self.start(path)
        said, _ = fetching.communicate()
        assert fetching.returncode == rc, said
        return said

    def until_a_part_is_asked_for(self) -> None:
        part = f"{self.name}/o/d%2Flarge?alt=media"
        until(lambda: part in str(self.emulator.request("GET", "/_emulator/requests")), "the first part")

    @property
    def work(self) -> Path:
        return self.directory / str(self.runs) / "work"

    def found(self) -> dict[str, bytes]:
        """What the job has, by the names of the objects."""
        there = self.work / "data"
        return {f"d/{path.relative_to(there)}": path.read_bytes() for path in there.rglob("*") if path.is_file()}

    @contextmanager
    def fault(self, kind: str, operation: str, **how: Any) -> Iterator[None]:
        self.emulator.request(
            "POST", "/_emulator/faults", {"kind": kind, "operation": f"storage.objects.{operation}", **how}
        )
        try:
            yield
        finally:
            self.emulator.request("DELETE", "/_emulator/faults")


@pytest.fixture
def bucket(shared_emulator: Emulator, tmp_path: Path, request: pytest.FixtureRequest) -> Bucket:
    made = Bucket(shared_emulator, f"data-{abs(hash(request.node.nodeid))}", tmp_path)
    for name, content in FILES.items():
        made.put(name, content)
    return made


WANTED = {name: content for name, content in FILES.items() if name.startswith("d/")}


@pytest.mark.parametrize(("kind", "operation", "how"), [
    pytest.param("status", "*", {"status": 503, "when": {"probability": 0.3, "seed": 3}}, id="a storm of 503"),
    pytest.param("hang", "*", {"seconds": 1.0, "when": {"calls": "1,3"}}, id="it hangs"),
    pytest.param("slow", "*", {"seconds": 0.3}, id="it answers late"),
    pytest.param("lost_reply", "list", {"when": {"first": 2}}, id="it loses a page"),
    pytest.param("garbage", "list", {"form": "html", "when": {"first": 1}}, id="a sign-in page"),
    pytest.param("garbage", "list", {"form": "types", "when": {"first": 1}}, id="a list of something else"),
    pytest.param("content_cut", "get", {"after_bytes": 700_000, "when": {"calls": "2-9"}}, id="contents are cut"),
    pytest.param("content_wrong", "get", {"when": {"calls": "2-3"}}, id="wrong contents of the right size"),
])  # fmt: skip
def test_every_file_arrives_as_it_is_whatever_the_bucket_does(
    bucket: Bucket, kind: str, operation: str, how: dict[str, Any]
) -> None:
    with bucket.fault(kind, operation, **how):
        said = bucket.fetch()
    assert bucket.found() == WANTED, said
    assert (bucket.work / "data/large").stat().st_blocks * 512 < 30 << 20, "the hole is kept"


def test_a_second_run_fetches_what_changed_and_reads_nothing_that_the_first_one_wrote(bucket: Bucket) -> None:
    assert "4 files, 44.9 MB of gs://" in bucket.fetch()
    first = bucket.work / "data"
    (first / "a").unlink()
    (first / "new").write_bytes(b"n")
    assert (first / "sub/c").stat().st_mode & 0o777 == 0o444
    (first / "sub/c").chmod(0o644)
    (first / "sub/c").write_bytes(b"w" * 2000)
    assert " 2.0 KB fetched" in bucket.fetch(), "only the file that was written to"
    assert bucket.found() == WANTED
    bucket.put("d/a", b"newer")
    bucket.objects.delete(f"gs://{bucket.name}/d/sub/c")
    assert " 5 B fetched" in bucket.fetch()
    assert bucket.found() == {"d/a": b"newer", "d/sub/b": b"", "d/large": LARGE}


def test_what_a_killed_fetch_has_is_not_fetched_again(bucket: Bucket) -> None:
    with bucket.fault("slow", "get", seconds=60.0, when={"calls": "3-"}):  # the first call asks what the object is
        fetching = bucket.start("d/large")
        until(lambda: [*bucket.directory.glob("cache/*/*/drafts/*.parts")], "the first part")
        os.killpg(fetching.pid, signal.SIGKILL)
        fetching.communicate()
    said = bucket.fetch("d/large")
    assert " 41.9 MB of " in said and " 41.9 MB fetched" not in said and bucket.found() == {"d/large": LARGE}, said


def test_a_fetch_that_loses_a_process_ends_and_says_so(bucket: Bucket) -> None:
    with bucket.fault("slow", "get", seconds=60.0, when={"calls": "2-"}):
        fetching = bucket.start("d/large")
        bucket.until_a_part_is_asked_for()
        psutil.Process(fetching.pid).children()[0].kill()
        assert "a process of the fetch was killed" in fetching.communicate()[0] and fetching.returncode == 1


@pytest.mark.parametrize(("then", "wanted"), [(b"newer", {**WANTED, "d/large": b"newer"}), (None, {})])
def test_an_object_that_changes_while_it_is_fetched_is_fetched_as_it_is_then(
    bucket: Bucket, then: bytes | None, wanted: dict[str, bytes]
) -> None:
    with bucket.fault("slow", "get", seconds=1.0, when={"calls": "2-4"}):
        fetching = bucket.start("d")
        bucket.until_a_part_is_asked_for()
        if then is None:
            bucket.objects.delete(f"gs://{bucket.name}/d/large")
        else:
            bucket.put("d/large", then)
        said, _ = fetching.communicate()
    wanted = wanted or {name: content for name, content in WANTED.items() if name != "d/large"}
    assert bucket.found() == wanted and ("was deleted meanwhile" in said) == (then is None), said


@pytest.mark.parametrize(("path", "fault", "why"), [
    ("none", None, "has no object 'none', and none below it"),
    ("d/su", None, "has no object 'd/su', and none below it"),
    ("twice", None, "objects that cannot be files: `twice/a` is a file and a directory at once; rename them"),
    ("d", ("status", "list", {"status": 403}), "the account of this worker may not read gs://"),
    ("d", ("page_loop", "list", {}), "does not end: a page names an earlier one as the next"),
    ("d", ("content_wrong", "get", {"when": {"calls": "2-"}}), "came with another content than its CRC32C says, 5 times"),
])  # fmt: skip
def test_what_cannot_be_fetched_ends_the_setup_with_a_line_that_says_why(
    bucket: Bucket, path: str, fault: tuple[str, str, dict[str, Any]] | None, why: str
) -> None:
    bucket.put("twice/a", b"1")
    bucket.put("twice/a/b", b"2")
    with bucket.fault(fault[0], fault[1], **fault[2]) if fault else nullcontext():
        assert why in bucket.fetch(path, rc=1)


def test_one_object_is_a_file_of_its_name_and_an_empty_one_may_stand_for_a_directory(bucket: Bucket) -> None:
    bucket.fetch("d/a")
    assert bucket.found() == {"d/a": WANTED["d/a"]}
    for name in ("d", "d/sub/", "d/empty/"):
        bucket.put(name, b"")
    bucket.fetch("d")
    assert bucket.found() == WANTED and (bucket.work / "data/empty").is_dir()


def test_a_disk_without_room_is_noticed_before_anything_is_fetched(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.emulator.url)
    monkeypatch.setattr(data, "_free", lambda path: 70_000_000)
    with pytest.raises(Failed, match=r"44\.9 MB are still to come, and 70\.0 MB are free on the disk of this worker"):
        data.Place("data", f"gs://{bucket.name}/d", bucket.directory / "cache" / "boot").bring()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("count", "size"), [(100_000, 10), (1, 20 << 30)], ids=["100,000 files", "20 GB, sparse"])
def test_a_second_run_fetches_nothing_however_much_there_is(
    emulator: Emulator, tmp_path: Path, count: int, size: int
) -> None:
    made, step, crc = Bucket(emulator, "huge", tmp_path), min(size, 1 << 20), 0
    for _ in range(size // step):
        crc = combined(crc, crc32c(bytes(step)), step) if crc else crc32c(bytes(step))
    there = emulator.state_dir / "buckets" / "huge"
    there.mkdir(parents=True)
    for number in range(count):
        stored = StoredObject(
            f"d/{number % 100}/{number}", size, "", base64.b64encode(crc.to_bytes(4, "big")).decode(), number + 1
        )
        file = there / hashlib.sha256(stored.name.encode()).hexdigest()
        file.with_suffix(".json").write_text(json.dumps(asdict(stored)))
        with file.with_suffix(".data").open("wb") as content:
            content.truncate(size)
    assert f"{count:,} file{'s'[: count != 1]}, " in made.fetch()
    found = [path for path in (made.work / "data").rglob("*") if path.is_file()]
    assert len(found) == count and {path.stat().st_size for path in found} == {size}
    assert sum(path.stat().st_blocks for path in found) * 512 < 1 << 30, "holes are kept"
    assert " 0 B fetched" in made.fetch()


def test_crc32c_is_that_of_its_definition() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    for size in (0, 1, 1024, 1025, 1700, 3389, 65536, 100_001):
        content = os.urandom(size)
        crc = 0xFFFFFFFF
        for byte in content:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        value = crc ^ 0xFFFFFFFF
        first, second = content[: size // 3], content[size // 3 :]
        assert crc32c(content) == crc32c(second, crc32c(first)) == value
        assert combined(crc32c(first), crc32c(second), len(second)) == value


@pytest.fixture
def objects(shared_emulator: Emulator) -> Objects:
    return Objects(emulator=shared_emulator.url)


def test_what_goes_up_comes_down_and_is_listed_until_it_is_deleted(objects: Objects, tmp_path: Path) -> None:
    url, content = "gs://my-bucket/runs/a b/r1/code+ö.tar.gz", os.urandom(5 << 20)
    (tmp_path / "code").write_bytes(content)
    objects.upload(url, tmp_path / "code")
    assert hashlib.sha256(b"".join(objects.download(url))).digest() == hashlib.sha256(content).digest()
    (found,) = objects.list("gs://my-bucket/runs/a b/")
    assert (found.name, found.size_bytes) == ("runs/a b/r1/code+ö.tar.gz", 5 << 20)
    assert objects.list("gs://my-bucket/other/") == []
    objects.delete(url)
    objects.delete(url)
    assert objects.list("gs://my-bucket/runs/a b/") == []
    with pytest.raises(NotFound, match=r"gs://my-bucket/runs/a b/r1/code\+ö.tar.gz does not exist"):
        b"".join(objects.download(url))


def test_an_upload_again_has_no_second_effect_and_another_content_is_refused(objects: Objects, tmp_path: Path) -> None:
    url = "gs://my-bucket/again/code"
    (tmp_path / "code").write_bytes(b"one")
    objects.upload(url, tmp_path / "code")
    objects.upload(url, tmp_path / "code")
    (tmp_path / "code").write_bytes(b"two")
    with pytest.raises(AlreadyExists, match="another content"):
        objects.upload(url, tmp_path / "code")
    assert b"".join(objects.download(url)) == b"one"


def test_a_list_has_every_page(objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.places.google.objects.PAGE", 2)
    (tmp_path / "x").write_bytes(b"")
    for name in "abcde":
        objects.upload(f"gs://pages/all/{name}", tmp_path / "x")
    assert [each.name for each in objects.list("gs://pages/all/")] == [f"all/{name}" for name in "abcde"]


def test_what_a_pod_sends_is_read_here(objects: Objects, shared_emulator: Emulator, tmp_path: Path) -> None:
    storage = Storage({"STORAGE_EMULATOR_HOST": shared_emulator.url})
    (tmp_path / "big").write_bytes(b"b" * 3_000_000)
    assert storage.send("results", "runs/r1/worker3/artifacts/big", tmp_path / "big") is None
    assert storage.fetch("results", "runs/r1/worker3/artifacts/big", tmp_path / "back") is None
    assert (tmp_path / "back").read_bytes() == b"b" * 3_000_000
    assert storage.fetch("results", "nothing", tmp_path / "none") == (
        'HTTP 404 {"error": {"code": 404, "message": "No such object: results/nothing", "errors": [{"message": '
        '"No such object: results/nothing", "domain": "global", "reason": "notFound"}]}}'
    )
    assert b"".join(objects.download("gs://results/runs/r1/worker3/artifacts/big")) == b"b" * 3_000_000


def test_a_storage_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.places.google.objects.FIRST_PAUSE_S", 0.0)
    with held_port() as port, pytest.raises(CloudUnavailable, match="cannot be reached"):
        Objects(emulator=f"127.0.0.1:{port}").delete("gs://b/x")


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 403), ({"Origin": "http://evil.example"}, 403), ({"Authorization": "Bearer no"}, 401)],
)
def test_no_web_page_and_no_other_token_reaches_a_bucket(
    shared_emulator: Emulator, headers: dict[str, str], status: int
) -> None:
    connection = http.client.HTTPConnection(shared_emulator.url.partition("://")[2])
    connection.request("GET", "/storage/v1/b/my-bucket/o", headers=headers)
    assert connection.getresponse().status == status
    connection.close()


class Breaking:
    """A storage with one object, whose next replies break off or are none; then they are whole."""

    def __init__(self, stub: StubApi) -> None:
        self.content = os.urandom(3 << 20)
        self.breaks: list[int | None] = []  # after so many bytes; None: a 503
        self.knows_ranges = True
        self.asked: list[str | None] = []
        self.objects = Objects(emulator=stub.url.partition("://")[2])
        stub.answer_with = self.answer

    def answer(self, request: Request) -> StubReply:
        asked, size = request.headers.get("range"), len(self.content)
        self.asked.append(asked)
        most = self.breaks.pop(0) if self.breaks else size
        if most is None:
            return StubReply(503)
        begin = int(asked[len("bytes=") : -1]) if asked and self.knows_ranges else 0
        headers = (("Content-Range", f"bytes {begin}-{size - 1}/{size}"),) if begin else ()
        return StubReply(206 if begin else 200, self.content[begin : begin + most], headers, claimed_bytes=size - begin)


@pytest.fixture
def breaking(stub: StubApi, monkeypatch: pytest.MonkeyPatch) -> Breaking:
    monkeypatch.setattr("orchestrator.places.google.objects.FIRST_PAUSE_S", 0.0)
    return Breaking(stub)


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_a_download_that_breaks_off_is_continued_where_it_was(breaking: Breaking, knows_ranges: bool) -> None:
    breaking.breaks, breaking.knows_ranges = [None, None, 1 << 20, None, None, 1_500_000, None], knows_ranges
    assert b"".join(breaking.objects.download("gs://b/x")) == breaking.content
    assert breaking.asked[:4] == [None, None, None, f"bytes={1 << 20}-"] and not breaking.breaks


def test_one_that_brings_nothing_more_is_given_up(breaking: Breaking) -> None:
    breaking.breaks = [1 << 20, *[None] * 100]
    with pytest.raises(CloudUnavailable):
        b"".join(breaking.objects.download("gs://b/x"))
    assert len(breaking.asked) == 4


def test_the_emulated_storage_sends_the_rest_of_an_object(shared_emulator: Emulator, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"0123456789")
    Objects(emulator=shared_emulator.url).upload("gs://ranges/x", tmp_path / "x")
    connection = http.client.HTTPConnection(shared_emulator.url.partition("://")[2])
    connection.request("GET", "/storage/v1/b/ranges/o/x?alt=media", headers={"Range": "bytes=4-"})
    reply = connection.getresponse()
    assert (reply.status, reply.getheader("Content-Range"), reply.read()) == (206, "bytes 4-9/10", b"456789")
    connection.close()
