"""What the results of a pod may cost: TPUs are billed while they are read."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.vm import pack
from orchestrator.vm.cloud_storage import Storage
from orchestrator.vm.pod_output import WORD, Output
from orchestrator.vm.pod_results import LONGEST_BYTES, NO_ROOM, NO_TIME, SMALL_BYTES, Results
from tests.pods_fixture import request


class Sent:
    """The results of a run, and what was said of them."""

    def __init__(self, place: Path) -> None:
        self.run, self.said = place / "run", place / "said"
        (self.run / "artifacts").mkdir(parents=True)
        self.read: list[str] = []

    def rows(
        self, left_s: Callable[[], float] = lambda: 100.0, storage: Storage | None = None, **keys: Any
    ) -> dict[str, str | None]:
        """Send them; return why each is not sent."""
        with self.said.open("wb") as file:
            output = Output(file.fileno())
            Results(str(self.run), request(**keys), 0, output).send(storage or Storage(), left_s)
        lines = [json.loads(line[len(WORD) :]) for line in self.said.read_bytes().splitlines()]
        return {line["file"]["path"]: line["file"].get("why") for line in lines if "file" in line}


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sent:
    found, sha256 = Sent(tmp_path), pack.hashing.sha256

    def hashed(size_bytes: int) -> Any:
        digest = sha256(size_bytes)

        class Counted:
            def update(self, piece: bytes) -> None:
                found.read.append(f"{size_bytes}")
                digest.update(piece)

            def hexdigest(self) -> str:
                return str(digest.hexdigest())

        return Counted()

    monkeypatch.setattr(pack.hashing, "sha256", hashed)
    return found


def test_a_file_that_no_log_takes_is_not_read_where_there_is_no_bucket(sent: Sent) -> None:
    (sent.run / "artifacts" / "a").write_bytes(b"a")
    with (sent.run / "artifacts" / "large").open("wb") as file:
        os.truncate(file.fileno(), LONGEST_BYTES + 1)
    assert sent.rows() == {"artifacts/a": None, "artifacts/large": NO_ROOM}
    assert sent.read == ["1"]


def test_a_large_file_takes_half_of_the_time_and_small_ones_behind_it_are_sent(sent: Sent) -> None:
    (sent.run / "artifacts" / "small").write_bytes(b"s")
    (sent.run / "artifacts" / "large").write_bytes(bytes(9 << 20))
    assert sent.rows(lambda: 10.0 - len(sent.read)) == {"artifacts/large": NO_TIME, "artifacts/small": None}
    assert sent.read == [f"{9 << 20}"] * 5 + ["1"]


def test_what_there_was_no_time_to_look_at_is_said(sent: Sent) -> None:
    for name in "abc":
        (sent.run / "artifacts" / name).write_bytes(b"x")
    assert sent.rows(lambda: 2.0 - len(sent.read)) == {
        "artifacts/a": NO_TIME,
        "artifacts/b": NO_TIME,
        "(the rest)": NO_TIME,
    }


class Bucket(Storage):
    """It takes everything at once, as long as there is time."""

    def __init__(self, left_s: Callable[[], float]) -> None:
        super().__init__({}, left_s)
        self.took: list[str] = []

    def send(self, bucket: str, name: str, path: Path) -> str | None:
        if self._left_s() <= 0:
            return NO_TIME
        self.took.append(path.name)
        return None


def test_only_small_files_are_read_again_for_the_log_where_a_bucket_takes_all(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size_bytes in (("small", 10), ("large", SMALL_BYTES + 1)):
        (sent.run / "artifacts" / name).write_bytes(bytes(size_bytes))
    read: list[str] = []
    content = pack.content
    monkeypatch.setattr(
        pack, "content", lambda path, size_bytes: read.append(Path(path).name) or content(path, size_bytes)
    )
    bucket = Bucket(lambda: 100.0)
    assert sent.rows(storage=bucket, bucket="gs://b/p") == {"artifacts/small": None, "artifacts/large": None}
    assert read == ["small"] and sorted(bucket.took) == ["large", "small"]


def test_packing_for_the_log_leaves_the_bucket_its_time(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (sent.run / "artifacts" / f"{number:02}").write_bytes(b"x")
    read: list[str] = []
    content = pack.content
    monkeypatch.setattr(
        pack, "content", lambda path, size_bytes: read.append(Path(path).name) or content(path, size_bytes)
    )
    left_s = lambda: 20.0 - len(read)  # noqa: E731 - a second for each file
    bucket = Bucket(left_s)
    assert set(sent.rows(left_s, storage=bucket, bucket="gs://b/p").values()) == {None}
    assert len(read) == 5 and len(bucket.took) == 20


def test_a_file_that_cannot_fit_into_the_log_is_not_read_again(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    (sent.run / "artifacts" / "large").write_bytes(bytes(9 << 20))
    monkeypatch.setattr(pack, "content", lambda path, size_bytes: pytest.fail("it was read"))
    assert sent.rows(inline_bytes=9000) == {"artifacts/large": NO_ROOM}


def test_what_lies_beside_the_artifacts_takes_no_room_from_a_promise(sent: Sent) -> None:
    (sent.run / "work").mkdir()
    (sent.run / "before.json").write_text('{"home": null, "of": {}, "elsewhere": {}}')
    (sent.run / "artifacts" / "model").write_bytes(os.urandom(9000))
    for name in ("a", "b", "c"):
        (sent.run / "work" / name).write_bytes(os.urandom(1000))
    rows = sent.rows(beside=True, inline_bytes=9500)
    assert rows["artifacts/model"] is None and list(rows.values()).count(NO_ROOM) == 3
