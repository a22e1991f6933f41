"""A pod says what it likes in its log: nothing of it leaves the run's directory, fills the memory, or ends in a traceback."""

import base64
import hashlib
import itertools
import json
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from orchestrator.errors import CloudUnavailable
from orchestrator.hosts.fleet.follow import WorkerState
from orchestrator.hosts.transfer.collect import CollectResult
from tests.fakes.pods import Node, Pod
from tests.unit.places.gke.pods.conftest import Followed, followed, node

FIXTURES = (node, followed)


@pytest.fixture
def pod(node: Node) -> Pod:
    """A pod that writes its log by hand, and has begun."""
    node.pod().begins()
    return node.pod()


@pytest.fixture
def seen(pod: Pod, followed: Callable[..., Followed]) -> Followed:
    """What a client gets of it."""
    return followed()


def collected(pod: Pod, seen: Followed) -> CollectResult:
    """What comes of a pod that ends and sends its rows, and what else it has said before."""
    pod.ends()
    pod.sends()
    seen.end()
    return seen.collect()


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


def written(seen: Followed) -> set[str]:
    """The files that exist, below the directory for results: there are no others."""
    return {str(path.relative_to(seen.place / "results")) for path in seen.place.rglob("*") if path.is_file()}


BAD_PATHS = ["../out", "/etc/out", "a/../../out", "", ".", "a//b"]
ODD_PATHS = ["c:/x", "a\\b", "a\nb", "x" * 300, "/".join("x" * 140)]  # each gets a place


def test_no_path_leads_out_of_the_directory_of_its_worker(pod: Pod, seen: Followed) -> None:
    for path in (*BAD_PATHS, *ODD_PATHS, "artifacts/good", 7, None, {"a": 1}):
        pod.row(path, b"evil")
    found = collected(pod, seen)
    assert written(seen) == {f"worker0/{file.place or file.path}" for file in found.files}
    assert {file.path for file in found.files} == {*ODD_PATHS, "artifacts/good"}
    assert len(found.refused) == len(BAD_PATHS) + 3 and "\n" not in "".join(written(seen))


def test_a_content_that_is_not_what_the_index_says_gets_no_name(pod: Pod, seen: Followed) -> None:
    content = b"x" * 1000
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
    with little_memory():
        found = collected(pod, seen)
    assert [file.path for file in found.files] == ["artifacts/good"]
    assert not found.waiting and len(found.refused) == 5 + len(sizes) + 2, "no other try brings them"
    assert written(seen) == {"worker0/artifacts/good"}


def test_an_index_that_is_a_bomb_and_results_without_an_end_fill_no_memory(pod: Pod, seen: Followed) -> None:
    bomb = zlib.compress(bytes(200 << 20))
    for _ in range(40):
        pod.says(results=base64.b64encode(bomb).decode())
    pod.says(results=["x"])
    pod.says(end={"rc": 0, "results_bytes": len(bomb) * 40})
    with little_memory():
        (problem,) = collected(pod, seen).problems
    assert problem.path == "(the rest)"


def test_a_bucket_is_not_trusted_either(pod: Pod, followed: Callable[..., Followed]) -> None:
    """It holds an endless file."""
    row = {"size_bytes": 100_000, "sha256": hashlib.sha256(b"x" * 100_000).hexdigest()}
    names = ("artifacts/\ud800", "artifacts/endless", "artifacts/away")
    index = {"attempt": "r1-1", "rows": [{"path": name, **row} for name in names]}

    def read(worker: int, path: str) -> Iterator[bytes]:
        if path.endswith("away"):
            raise CloudUnavailable("the storage does not answer")
        yield from [json.dumps(index).encode()] if path == "index.json" else itertools.repeat(b"x" * 65536)

    found = collected(pod, followed(store=read))
    assert [(file.path, file.size_bytes) for file in found.files] == [("artifacts/endless", 100_000)]
    (problem,) = found.waiting
    assert problem.why == "it is in the bucket of the job: the storage does not answer" and len(found.refused) == 1
    index["rows"] = ["x" * 65536] * 600
    (problem,) = collected(pod, followed(store=read)).refused
    assert problem.why.endswith("index.json is larger than 34.6 MB, the most that a pod writes")


def test_words_of_a_pod_reach_the_terminal_plain_short_and_few(pod: Pod, seen: Followed) -> None:
    for number in range(1000):
        pod.says(say=f"\x1b[2J\x07{'x' * 5000}\n{number}")
    pod.says(say={"a": [1]})
    pod.ends()
    pod.says(end={"rc": 0, "why": "failed", "detail": "\x1b]0;evil\x07" + "x" * 5000})
    pod.close()
    assert seen.end().rc == 0
    assert 0 < len(seen.notices) <= 20
    assert all(len(text) < 2000 and text.isprintable() for text in seen.notices)


@pytest.mark.parametrize("said", [
    {"ended": "main", "rc": "0"}, {"ended": "main", "rc": None, "unreachable": {"a": 1}, "why": ["deadline"]},
    {"ended": "main", "rc": 1e999, "unreachable": [["\x1b[31m"], 3] * 500}, {"ended": "main", "rc": True},
    {"end": {"phase": ["main"], "rc": {}, "why": {}, "detail": []}}, {"end": {}}, {"end": []},
])  # fmt: skip
def test_an_end_that_makes_no_sense_is_an_end_without_a_code(pod: Pod, seen: Followed, said: dict[str, Any]) -> None:
    pod.says(**said)
    pod.close()
    end = seen.end()
    assert end.state in (WorkerState.LOST, WorkerState.EXITED) and end.rc is None
    assert len(end.unreachable) <= 8
    assert all(text.isprintable() for text in (*end.unreachable, end.why, end.detail))


def test_figures_of_a_pod_are_no_bombs(pod: Pod, seen: Followed) -> None:
    packed = (base64.b64encode(each).decode() for each in (b"x", zlib.compress(bytes(50 << 20))))
    for data in ("", "!!", 7, [1], *packed):
        pod.says(metrics=data)
    pod.ends()
    pod.says(end={"rc": 0})
    pod.close()
    assert seen.end().rc == 0 and len(seen.metrics) <= 64 << 10


def test_a_pod_that_counts_wildly_harms_its_own_log_only(pod: Pod, seen: Followed) -> None:
    pod.write(b"words\n")
    for n, left_out in ((5, 1 << 59), (3, 0), (1 << 59, -7), (6, [])):
        pod.says(n=n, left_out=left_out)
    pod.write(b"more words\n")
    pod.close()
    end = seen.end()
    assert end.final and len(seen.log) == len(b"words\nmore words\n")
