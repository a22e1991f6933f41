"""A pod says what it likes in its log: nothing of it leaves the run's directory, fills the memory, or ends in a traceback."""

import base64
import hashlib
import itertools
import json
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
from tests.waiting import HANG_S


class Hostile:
    """A pod that writes its log by hand, and what a client gets of it."""

    def __init__(self, place: Path) -> None:
        self.node = Node(place / "node")
        self.pod = self.node.pod()
        self.place = place / "run"
        self.place.mkdir()
        self.n, self.rows, self.contents = 0, list[Any](), b""
        self.notices: list[str] = []
        self.logged = self.metrics = 0
        self.fleet = PodFleet(self.node, [WorkerAddress(0, "10.0.0.1")], on_notice=self.notices.append)

    def says(self, **said: Any) -> None:
        self.pod.write(b"::tpujob " + json.dumps({"n": self.n, "of": "main", **said}).encode() + b"\n")
        self.n += 1

    def begins(self) -> None:
        self.says(pod={}, of=None)
        self.says(began="main")

    def ends(self, rc: Any = 0) -> None:
        self.says(ended="main", rc=rc)

    def row(self, path: Any, content: bytes, packed: bytes | None = None, **more: Any) -> None:
        """A file of the results, and what stands for its content."""
        packed = zlib.compress(content) if packed is None else packed
        digest = hashlib.sha256(content).hexdigest()
        sizes = {"size_bytes": len(content), "packed_bytes": len(packed)}
        self.rows.append({"path": path, "sha256": digest, **sizes, **more})
        self.contents += packed

    def sends(self) -> None:
        """The results, in one line, and the end."""
        whole = zlib.compress(json.dumps(self.rows).encode()) + self.contents
        self.says(results=base64.b64encode(whole).decode())
        self.says(end={"rc": 0, "results_bytes": len(whole)})

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
    for path in rows:
        pod.row(path, b"evil")
    pod.sends()
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
    for path in ("artifacts/x", "work/Name", "work/NAME"):
        pod.row(path, b"evil")
    pod.sends()
    found = pod.collected()
    assert [file.path for file in found.files] == ["work/NAME", "work/Name"]
    assert [each.path for each in found.waiting] == ["artifacts/x"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_content_that_is_not_what_the_index_says_gets_no_name(pod: Hostile) -> None:
    content = b"x" * 1000
    pod.begins()
    pod.ends()
    for name, packed in {
        "other": zlib.compress(b"y" * 1000),
        "short": zlib.compress(b"x" * 999),
        "bomb": zlib.compress(bytes(200 << 20)),
        "garbage": b"\x00" * 50,
        "cut": zlib.compress(content)[:5],
        "good": zlib.compress(content),
    }.items():
        pod.row(f"artifacts/{name}", content, packed)
    sizes: list[dict[str, Any]] = [{"size_bytes": each} for each in (1 << 40, -1, True, "1")]
    sizes += [{"packed_bytes": each} for each in (-1, True, None)]
    for number, more in enumerate(sizes):
        pod.row(f"artifacts/{number}", b"", b"", **more)
    pod.row("artifacts/good", b"again")
    pod.rows.append(["artifacts/list"])
    pod.sends()
    tracemalloc.start()
    found = pod.collected()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [file.path for file in found.files] == ["artifacts/good"]
    assert not found.waiting and len(found.refused) == 5 + len(sizes) + 2, "no other try brings them"
    assert pod.written == {"worker0/artifacts/good"} and peak < 64 << 20


def test_an_index_that_is_a_bomb_and_results_without_an_end_fill_no_memory(pod: Hostile) -> None:
    pod.begins()
    pod.ends()
    bomb = zlib.compress(bytes(200 << 20))
    for _ in range(40):
        pod.says(results=base64.b64encode(bomb).decode())
    pod.says(results=["x"])
    pod.says(end={"rc": 0, "results_bytes": len(bomb) * 40})
    tracemalloc.start()
    (problem,) = pod.collected().problems
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert problem.path == "(the rest)" and peak < 64 << 20


def test_a_bucket_is_not_trusted_either(pod: Hostile) -> None:
    """It holds an endless file."""
    row = {"size_bytes": 100_000, "sha256": hashlib.sha256(b"x" * 100_000).hexdigest()}
    names = ("artifacts/\ud800", "artifacts/endless", "artifacts/away")
    index = {"attempt": "r1-1", "rows": [{"path": name, **row} for name in names]}

    def read(worker: int, path: str) -> Iterator[bytes]:
        if path.endswith("away"):
            raise CloudUnavailable("the storage does not answer")
        yield from [json.dumps(index).encode()] if path == "index.json" else itertools.repeat(b"x" * 65536)

    pod.fleet = PodFleet(pod.node, pod.fleet.workers, on_notice=pod.notices.append, results=read)
    pod.begins()
    pod.ends()
    pod.says(end={"rc": 0, "results_bytes": 0})
    found = pod.collected()
    assert [(file.path, file.size_bytes) for file in found.files] == [("artifacts/endless", 100_000)]
    (problem,) = found.waiting
    assert problem.why == "it is in the bucket of the job: the storage does not answer" and len(found.refused) == 1
    index["rows"] = ["x" * 65536] * 600
    (problem,) = pod.collected().refused
    assert problem.why.endswith("index.json is larger than 34.6 MB, the most that a pod writes")


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
    for n, left_out in ((5, 1 << 59), (3, 0), (1 << 59, -7), (6, [])):
        pod.says(n=n, left_out=left_out)
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
