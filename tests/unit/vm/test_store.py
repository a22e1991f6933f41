"""What a worker keeps of what was shipped: whole, checked, and no more than its newest runs need."""

import hashlib
import json
import os
import signal
import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.hosts.shipping.sending import BLOCK_BYTES, encoded
from orchestrator.vm.files.store import Manifest
from tests.unit.vm.conftest import Worker, parsed
from tests.waiting import until


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Tree:
    files: Mapping[str, bytes]
    executable: Sequence[str] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    directories: Sequence[str] = ()

    @property
    def manifest(self) -> bytes:
        files = [[path, sha256(data), len(data), int(path in self.executable)] for path, data in self.files.items()]
        shape = {"files": files, "links": list(self.links.items()), "directories": list(self.directories)}
        return json.dumps(shape).encode()

    @property
    def id(self) -> str:
        return sha256(self.manifest)

    def head(self) -> bytes:
        packed = zlib.compress(self.manifest)
        return b"%d\n%s" % (len(packed), packed)

    def stream(self) -> bytes:
        """All of it, for a worker that has nothing of it yet."""
        return self.head() + blocks(b"".join({sha256(data): data for data in self.files.values()}.values()))


def blocks(content: bytes) -> bytes:
    return b"".join(encoded(content[at : at + BLOCK_BYTES]) for at in range(0, len(content), BLOCK_BYTES))


LARGE = os.urandom(9 << 20)


def answers(worker: Worker, tree: Tree, stdin: bytes) -> list[dict[str, object]]:
    return [parsed(line) for line in worker.output("receive", tree.id, stdin=stdin).splitlines()]


def store(worker: Worker, *parts: str) -> Path:
    return worker.home.joinpath("tpujob", "store", *parts)


def stored(worker: Worker) -> set[str]:
    return {path.name for path in store(worker, "objects").glob("*/*")}


def run(worker: Worker, tree: Tree, script: str = "true", **more: str) -> dict[str, object]:
    answer = worker.start(script, manifest=tree.id, **more)
    if "error" not in answer:
        worker.ended()
    return answer


def test_a_tree_arrives_and_is_unpacked_as_it_was(worker: Worker) -> None:
    tree = Tree(
        {
            "run.sh": b"#!/bin/sh\n",
            "pkg/a.py": b"print(1)\n",
            "pkg/copy.py": b"print(1)\n",
            "pkg/empty": b"",
            "large": LARGE,
        },
        executable=["run.sh"],
        links={"link": "pkg/a.py", "pkg/up": "../run.sh"},
        directories=["out/deep"],
    )
    assert answers(worker, tree, tree.stream()) == [
        {"manifest": False},
        {"missing": [[0, 3]], "offset": 0},
        {"stored": 3},
    ]
    assert run(worker, tree) == {"started": True}
    work = worker.path("work")
    assert {path: (work / path).read_bytes() for path in tree.files} == tree.files
    modes = {path: (work / path).stat().st_mode & 0o777 for path in ("run.sh", "large", "pkg", "out/deep")}
    assert modes == {"run.sh": 0o755, "large": 0o644, "pkg": 0o755, "out/deep": 0o755}
    assert str((work / "link").readlink()) == "pkg/a.py" and str((work / "pkg" / "up").readlink()) == "../run.sh"
    assert not list(store(worker, "drafts").iterdir())


def test_what_is_here_is_not_asked_for_again(worker: Worker) -> None:
    first = Tree({"a": b"1", "b": b"2", "c": b"3"})
    answers(worker, first, first.stream())
    assert answers(worker, first, b"") == [{"manifest": True}, {"missing": [], "offset": 0}, {"stored": 0}]
    second = Tree({"a": b"1", "b": b"new", "c": b"3", "d": b"4"})
    said = answers(worker, second, second.head() + blocks(b"new" + b"4"))
    assert said == [{"manifest": False}, {"missing": [[1, 2], [3, 4]], "offset": 0}, {"stored": 2}]


def test_a_job_that_writes_to_its_files_changes_no_later_run(worker: Worker) -> None:
    tree = Tree({"a": b"as shipped"})
    answers(worker, tree, tree.stream())
    run(worker, tree, "echo changed >> a; chmod 777 a")
    assert worker.start("cat a", attempt="a2", manifest=tree.id) == {"started": True}
    log = worker.home / "tpujob" / "runs" / "a2" / "main" / "log"
    until(log.exists)
    assert until(log.read_text) == "as shipped"


def test_after_a_cut_a_large_file_goes_on_where_it_was(worker: Worker) -> None:
    tree = Tree({"a": b"small", "large": LARGE, "z": b"last"})
    cut = tree.stream()[: -(4 << 20)]
    assert answers(worker, tree, cut)[-1] == {"error": "EOFError: the connection was cut"}
    assert stored(worker) == {sha256(b"small")}, "the large one is not whole"
    whole = b"".join(tree.files.values())
    there = (store(worker, "drafts", sha256(LARGE))).stat().st_size
    assert there > 3 << 20
    said = answers(worker, tree, tree.head() + blocks(whole[5 + there :]))
    assert said[1:] == [{"missing": [[1, 3]], "offset": there}, {"stored": 2}]
    assert run(worker, tree) == {"started": True} and worker.path("work", "large").read_bytes() == LARGE


def test_a_receiver_that_is_killed_leaves_nothing_half_that_is_used(worker: Worker) -> None:
    tree = Tree({"a": b"small", "large": LARGE})
    process = worker.popen("receive", tree.id)
    assert process.stdin is not None and process.stdout is not None
    stream = tree.stream()
    process.stdin.write(stream[: len(stream) // 2])
    process.stdin.flush()
    draft = store(worker, "drafts", sha256(LARGE))
    until(lambda: draft.exists() and draft.stat().st_size > 1 << 20, "the first bytes")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert stored(worker) == {sha256(b"small")} and not list(store(worker, "manifests").iterdir())
    assert "is not in its store" in str(run(worker, tree)["error"])


def test_two_receivers_of_the_same_at_once_do_no_harm(worker: Worker) -> None:
    tree = Tree({"large": LARGE})
    stuck = worker.popen("receive", tree.id)  # its connection was cut, and it has not noticed
    assert stuck.stdin is not None and stuck.stdout is not None
    stuck.stdin.write(tree.stream()[: 5 << 20])
    stuck.stdin.flush()
    until(lambda: store(worker, "drafts", sha256(LARGE)).exists())
    said = answers(worker, tree, tree.stream())
    assert said[1:] == [{"missing": [[0, 1]], "offset": 0}, {"stored": 1}]
    stuck.kill()
    stuck.communicate()
    assert run(worker, tree) == {"started": True} and worker.path("work", "large").read_bytes() == LARGE


@pytest.mark.parametrize("stream", [
    pytest.param(lambda tree: tree.head() + encoded(b"another one"), id="another content"),
    pytest.param(lambda tree: tree.head() + b"Z\0\0\0\x04junk", id="not zlib"),
    pytest.param(lambda tree: tree.head() + b"R\x7f\xff\xff\xff", id="an endless block"),
    pytest.param(lambda tree: b"5\nxxxxx", id="no manifest"),
])  # fmt: skip
def test_what_arrives_damaged_is_not_stored(worker: Worker, stream: object) -> None:
    tree = Tree({"a": b"the content"})
    said = answers(worker, tree, stream(tree))[-1]  # type: ignore[operator]
    assert "error" in said or said == {"changed": sha256(b"the content")}
    assert stored(worker) == set() and not list(store(worker, "manifests").iterdir())


def test_a_content_that_was_damaged_later_is_found_removed_and_sent_again(worker: Worker) -> None:
    tree = Tree({"a": b"1", "b": b"2"})
    answers(worker, tree, tree.stream())
    store(worker, "objects", sha256(b"2")[:2], sha256(b"2")).write_bytes(b"X")
    assert "b in the store of this worker was damaged" in str(run(worker, tree)["error"])
    assert worker.status()["state"] == "none" and not worker.path("work").exists()
    assert not list(worker.path().glob(".draft*")), "what was unpacked so far takes no room"
    assert answers(worker, tree, blocks(b"2"))[1:] == [{"missing": [[1, 2]], "offset": 0}, {"stored": 1}]
    assert run(worker, tree) == {"started": True}


def test_saved_work_lies_over_the_code_and_leaves_the_store(worker: Worker) -> None:
    code, saved = Tree({"out/a": b"of the code", "b": b"2"}), Tree({"work/out/a": b"saved", "artifacts/c.pt": LARGE})
    for tree in (code, saved):
        answers(worker, tree, tree.stream())
    assert run(worker, code, 'cat out/a b; cat "$TPUJOB_ARTIFACTS/c.pt" | wc -c', saved=saved.id) == {"started": True}
    assert worker.log() == f"saved2{len(LARGE)}\n"
    assert stored(worker) == {sha256(b"of the code"), sha256(b"2")}, "a large checkpoint is not there twice"


def test_a_job_may_put_a_directory_where_its_code_has_a_file_or_a_link_and_the_other_way_round(worker: Worker) -> None:
    code = Tree({"file": b"1", "linked/a": b"2", "directory/b": b"3"}, links={"link": "linked"})
    saved = Tree({"work/file/x": b"4", "work/link/a": b"5", "work/directory": b"6"})
    for tree in (code, saved):
        answers(worker, tree, tree.stream())
    assert run(worker, code, "cat file/x link/a directory linked/a", saved=saved.id) == {"started": True}
    assert worker.log() == "4562"


def test_zeros_are_holes_in_the_store_and_in_the_work(worker: Worker) -> None:
    tree = Tree({"checkpoint": bytes(64 << 20) + b"end"})
    answers(worker, tree, tree.stream())
    run(worker, tree)
    paths = [*store(worker, "objects").glob("*/*"), worker.path("work", "checkpoint")]
    assert [path.stat().st_size for path in paths] == [(64 << 20) + 3] * 2
    assert all(path.stat().st_blocks * 512 < 1 << 20 for path in paths)
    assert hashlib.sha256(paths[1].read_bytes()).hexdigest() == sha256(tree.files["checkpoint"])


def test_the_newest_manifests_stay_and_what_was_used_in_the_last_hour(worker: Worker) -> None:
    old = [Tree({"common": b"c", "own": b"%d" % number}) for number in range(7)]
    for tree in old[:6]:
        answers(worker, tree, tree.stream() if tree is old[0] else tree.head() + blocks(tree.files["own"]))
    assert len(list(store(worker, "manifests").iterdir())) == 6, "all of them are young"
    for number, tree in enumerate(old[:6]):
        then = time.time() - 10_000 + number
        os.utime(store(worker, "manifests", tree.id), (then, then))
    answers(worker, old[6], old[6].head() + blocks(old[6].files["own"]))
    until(lambda: len(list(store(worker, "manifests").iterdir())) == 4)
    assert {path.name for path in store(worker, "manifests").iterdir()} == {tree.id for tree in old[3:]}
    assert stored(worker) == {sha256(b"c")} | {sha256(tree.files["own"]) for tree in old[3:]}


def test_a_damaged_manifest_and_an_abandoned_draft_do_not_stay_for_ever(worker: Worker) -> None:
    trees = [Tree({"own": b"%d" % number}) for number in range(6)]
    for tree in trees[:5]:
        answers(worker, tree, tree.stream())
    damaged = store(worker, "manifests", trees[4].id)
    damaged.write_bytes(b"")  # the VM lost its power
    draft = store(worker, "drafts", sha256(b"never completed"))
    draft.write_bytes(b"never")
    then = time.time() - 10_000
    os.utime(draft, (then, then))
    assert answers(worker, trees[5], trees[5].stream())[-1] == {"stored": 1}
    until(lambda: not draft.exists() and not damaged.exists())
    assert stored(worker) == {sha256(tree.files["own"]) for tree in trees if tree is not trees[4]}


def test_a_full_disk_is_one_answer(worker: Worker) -> None:
    tree = Tree({"large": LARGE})
    argv = [worker.python, "-m", "orchestrator.vm", "receive", tree.id]
    limited = ["bash", "-c", 'ulimit -f 2048; trap "" XFSZ; exec "$@"', "bash", *argv]  # a file may have 2 MiB
    env = {**os.environ, "HOME": str(worker.home)}
    said = subprocess.run(limited, input=tree.stream(), stdout=subprocess.PIPE, env=env, check=False).stdout
    assert set(parsed(said.splitlines()[-1])) == {"free"}
    assert stored(worker) == set()


def manifest(files: object = (), links: object = (), directories: object = ()) -> Manifest:
    return Manifest(json.dumps({"files": files, "links": links, "directories": directories}).encode())


ONE = sha256(b"1")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../x", "a//x", "./x", "", "a/", "x\0y", 5])
def test_a_manifest_cannot_name_a_place_elsewhere(path: object) -> None:
    for shape in ({"files": [[path, ONE, 1, 0]]}, {"links": [[path, "a"]]}, {"directories": [path]}):
        with pytest.raises((ValueError, AttributeError, TypeError)):
            manifest(**shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["/etc", "..", "../x", "a/../../x", "a/..", "./a", "a//b", "", "../../../x"])
def test_a_link_cannot_lead_out_even_over_other_links(target: str) -> None:
    with pytest.raises(ValueError, match="link out of the directory"):
        manifest(links=[["up", target]])


def test_links_within_are_fine() -> None:
    made = manifest(
        files=[["a/b/c", ONE, 1, 0]], links=[["a/b/up", "../../x"], ["a/self", "."], ["d", "a/b"], ["a/top", ".."]]
    )
    assert len(made.links) == 4


@pytest.mark.parametrize("shape", [
    {"files": [["a", ONE, 1, 0], ["a", ONE, 1, 0]]}, {"files": [["a", ONE, 1, 0], ["a/b", ONE, 1, 0]]},
    {"files": [["a/b", ONE, 1, 0]], "links": [["a", "c"]]}, {"links": [["a", "c"]], "directories": ["a/b"]},
    {"files": [["a", "../../.ssh/id_rsa", 1, 0]]}, {"files": [["a", ONE, -1, 0]]},
    {"files": [["a", ONE, True, 0]]},
])  # fmt: skip
def test_nothing_is_written_through_a_link_and_no_path_comes_twice(shape: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"twice|bad"):
        manifest(**shape)
