"""`data:` of a job, as the verb of a worker fetches it from the emulated Cloud Storage, whatever that does meanwhile."""

from __future__ import annotations

import base64
import hashlib
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

from orchestrator.emulator.api.storage import StoredObject
from orchestrator.places.google.objects import Objects
from orchestrator.vm import data
from orchestrator.vm.crc32c import combined, crc32c
from orchestrator.vm.data_objects import Failed
from tests.emulator_fixture import Emulator
from tests.waiting import until

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
        assert fetching.stdin is not None
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
