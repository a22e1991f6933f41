"""A pod says what it likes in its log: nothing of it leaves the run's directory, fills the memory, or ends in a traceback."""

import base64
import hashlib
import json
import sys
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import CloudUnavailable
from orchestrator.hosts.fleet.follow import WorkerState, WorkerStatus
from orchestrator.hosts.transfer.collect import CollectRequest, CollectResult
from orchestrator.places.gke.pods.fleet import PodFleet
from orchestrator.promise.lease.cloud_api import WorkerAddress
from tests.fakes.pods import Node
from tests.waiting import HANG_S, until

EMPTY = hashlib.sha256(b"").hexdigest()


class Hostile:
    """A pod that writes its log by hand, and what a client gets of it."""

    def __init__(self, place: Path) -> None:
        self.node = Node(place / "node")
        self.pod = self.node.pod()
        self.place = place / "run"
        self.place.mkdir()
        self.n = 0
        self.notices: list[str] = []
        self.logged = self.metrics = 0
        self.fleet = PodFleet(
            self.node, [WorkerAddress(0, "10.0.0.1")], on_notice=self.notices.append, results=self.read
        )

    def says(self, **said: Any) -> None:
        self.pod.write(b"::tpujob " + json.dumps({"n": self.n, "at": 0, "of": "main", **said}).encode() + b"\n")
        self.n += 1

    def begins(self) -> None:
        self.says(pod={}, of=None)
        self.says(began="main")

    def ends(self, rc: Any = 0) -> None:
        self.says(ended="main", rc=rc)

    def row(self, path: Any, content: bytes = b"", number: Any = 0, **more: Any) -> None:
        digest = hashlib.sha256(content).hexdigest()
        row = {"path": path, "size_bytes": len(content), "sha256": digest, "kept": "log", **more}
        self.says(file=row, row=number)

    def piece(self, number: Any, content: bytes) -> None:
        self.says(piece=number, data=base64.b64encode(content).decode())

    def read(self, worker: int, path: str) -> Iterator[bytes]:
        """The bucket: it holds an endless file."""
        if path.endswith("away"):
            raise CloudUnavailable("the storage does not answer")
        while True:
            yield b"x" * 65536

    def status(self) -> WorkerStatus:
        self.fleet.attach("r1-1", "main")
        self.fleet.follow(self._log, self._figures)
        deadline = time.monotonic() + HANG_S
        while not (status := self.fleet.wait(1.0)).ended:
            assert time.monotonic() < deadline, status
        return status.workers[0]

    def _log(self, index: int, data: bytes) -> None:
        self.logged += len(data)

    def _figures(self, index: int, data: bytes) -> None:
        self.metrics += len(data)

    def collected(self, **keys: Any) -> CollectResult:
        self.pod.close()
        self.status()
        return self.fleet.collect(CollectRequest("", self.place, (), **keys)).within(HANG_S)

    @property
    def written(self) -> set[str]:
        return {str(path.relative_to(self.place)) for path in self.place.parent.rglob("*") if path.is_file()}


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Hostile]:
    made = Hostile(tmp_path)
    yield made
    made.fleet.cancel()


BAD_PATHS = ["../out", "/etc/out", "a/../../out", "", ".", "a//b"]
ODD_PATHS = ["c:/x", "a\\b", "a\nb", "x" * 300, "/".join("x" * 140)]  # each gets a place


def test_no_path_leads_out_of_the_directory_of_its_worker(pod: Hostile) -> None:
    pod.begins()
    pod.ends()
    rows = [*BAD_PATHS, *ODD_PATHS, "artifacts/good", 7, None, {"a": 1}]
    for number, path in enumerate(rows):
        pod.row(path, b"evil", number)
    for number in range(len(rows)):
        pod.piece(number, zlib.compress(b"evil"))
    pod.says(end={"rc": 0})
    found = pod.collected()
    assert pod.written == {f"worker0/{file.place or file.path}" for file in found.files}
    assert {file.path for file in found.files} == {*ODD_PATHS, "artifacts/good"}
    assert len(found.refused) == len(BAD_PATHS) + 3 and "\n" not in "".join(pod.written)


def test_neither_a_link_nor_another_spelling_takes_a_file_elsewhere(pod: Hostile, tmp_path: Path) -> None:
    (pod.place / "worker0").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (pod.place / "worker0" / "artifacts").symlink_to(tmp_path / "elsewhere")
    pod.begins()
    pod.ends()
    for number, path in enumerate(["artifacts/x", "work/Name", "work/NAME"]):
        pod.row(path, b"evil", number)
    for number in range(3):
        pod.piece(number, zlib.compress(b"evil"))
    pod.says(end={"rc": 0})
    found = pod.collected()
    assert [file.path for file in found.files] == ["work/NAME", "work/Name"]
    assert [each.path for each in found.waiting] == ["artifacts/x"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_content_that_is_not_what_the_index_says_gets_no_name(pod: Hostile) -> None:
    content = b"x" * 1000
    pieces = {
        "other": zlib.compress(b"y" * 1000),
        "short": zlib.compress(b"x" * 999),
        "bomb": zlib.compress(bytes(200 << 20)),
        "garbage": b"\x00" * 50,
        "cut": zlib.compress(content)[:5],
        "good": zlib.compress(content),
    }
    pod.begins()
    pod.ends()
    for number, name in enumerate(pieces):
        pod.row(f"artifacts/{name}", content, number)
    pod.says(file={"path": "artifacts/huge", "size_bytes": 1 << 40, "sha256": EMPTY, "kept": "log"}, row=90)
    pod.says(file={"path": "artifacts/below", "size_bytes": -1, "sha256": EMPTY, "kept": "log"}, row=91)
    pod.says(file={"path": "artifacts/true", "size_bytes": True, "sha256": EMPTY, "kept": "log"}, row=92)
    pod.says(file={"path": "artifacts/where", "size_bytes": 0, "sha256": EMPTY, "kept": "moon"}, row=93)
    pod.says(file=["artifacts/list"], row=94)
    pod.row("artifacts/good", b"again", 95)
    for number, packed in enumerate(pieces.values()):
        pod.piece(number, packed[:3])
        pod.piece(number, packed[3:])
    pod.says(piece="no", data=7)
    pod.says(missing=["x"], why={})
    pod.says(end={"rc": 0})
    tracemalloc.start()
    found = pod.collected()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [file.path for file in found.files] == ["artifacts/good"]
    assert len(found.waiting) == 5 and len(found.refused) == 6
    assert pod.written == {"worker0/artifacts/good"} and peak < 64 << 20


def test_an_endless_file_in_the_bucket_is_cut_where_the_index_ends_it(pod: Hostile) -> None:
    pod.begins()
    pod.ends()
    pod.row("artifacts/endless", b"x" * 100_000, 0, kept="bucket")
    pod.row("artifacts/away", b"x", 1, kept="bucket")
    pod.says(end={"rc": 0})
    found = pod.collected()
    assert [(file.path, file.size_bytes) for file in found.files] == [("artifacts/endless", 100_000)]
    (problem,) = found.waiting
    assert problem.why == "it is in the bucket of the job: the storage does not answer"


def test_a_flood_of_control_lines_waits_in_the_cluster_not_in_memory(pod: Hostile) -> None:
    pod.begins()
    pod.ends()
    for number in range(20_000):
        pod.says(file={"path": f"artifacts/{number}", "size_bytes": 0, "sha256": EMPTY, "kept": "log"}, row=number)
    pod.pod.close()
    assert pod.status().rc == 0
    (follower,) = pod.fleet._following.followers

    def is_waiting() -> bool:
        frame = sys._current_frames().get(follower.thread.ident or 0)
        return len(follower.results) > 200 and frame is not None and frame.f_code.co_name == "wait"

    until(lambda: is_waiting() or follower.finished, "the end of its reading")
    assert not follower.finished and len(follower.results) <= 257


def test_words_of_a_pod_reach_the_terminal_plain_short_and_few(pod: Hostile) -> None:
    pod.begins()
    for number in range(1000):
        pod.says(say=f"\x1b[2J\x07{'x' * 5000}\n{number}")
    pod.says(say={"a": [1]})
    pod.ends()
    pod.says(end={"rc": 0, "why": "failed", "detail": "\x1b]0;evil\x07" + "x" * 5000})
    pod.pod.close()
    assert pod.status().rc == 0
    assert 0 < len(pod.notices) <= 20
    assert all(len(text) < 2000 and text.isprintable() for text in pod.notices)


@pytest.mark.parametrize("said", [
    {"ended": "main", "rc": "0"}, {"ended": "main", "rc": None, "unreachable": {"a": 1}, "why": ["deadline"]},
    {"ended": "main", "rc": 1e999, "unreachable": [["\x1b[31m"], 3] * 500}, {"ended": "main", "rc": True},
    {"end": {"phase": ["main"], "rc": {}, "why": {}, "detail": []}}, {"end": {}}, {"end": []},
])  # fmt: skip
def test_an_end_that_makes_no_sense_is_an_end_without_a_code(pod: Hostile, said: dict[str, Any]) -> None:
    pod.begins()
    pod.says(**said)
    pod.pod.close()
    end = pod.status()
    assert end.state in (WorkerState.LOST, WorkerState.EXITED) and end.rc is None
    assert len(end.unreachable) <= 8
    assert all(text.isprintable() for text in (*end.unreachable, end.why, end.detail))


def test_figures_of_a_pod_are_no_bombs(pod: Hostile) -> None:
    pod.begins()
    for data in (
        "",
        "!!",
        7,
        [1],
        base64.b64encode(b"x").decode(),
        base64.b64encode(zlib.compress(bytes(50 << 20))).decode(),
    ):
        pod.says(metrics=data)
    pod.ends()
    pod.says(end={"rc": 0})
    pod.pod.close()
    assert pod.status().rc == 0 and pod.metrics <= 64 << 10


def test_a_pod_that_counts_wildly_harms_its_own_log_only(pod: Hostile) -> None:
    pod.begins()
    pod.pod.write(b"words\n")
    for n, at in ((5, 1 << 59), (3, 0), (1 << 59, 7), (6, 6)):
        pod.says(n=n, at=at)
    pod.pod.write(b"more words\n")
    pod.pod.close()
    end = pod.status()
    assert end.final and pod.logged == len(b"words\nmore words\n")


def test_a_line_that_never_ends_and_a_name_of_a_phase_that_is_none(pod: Hostile) -> None:
    pod.begins()
    pod.says(began="x" * 1000, of="x" * 1000)
    pod.pod.write(b"y" * (8 << 20) + b"\n")
    pod.ends(3)
    pod.says(end={"rc": 3, "phase": "main"})
    pod.pod.close()
    assert pod.status().rc == 3 and pod.logged > 0
