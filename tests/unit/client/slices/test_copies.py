"""What the words of `tpujob scp` mean, and how its programs end."""

import errno
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from orchestrator import fork
from orchestrator.client.slices import copies
from orchestrator.client.slices.copies import LEASH, Copy, Place, Said, check_sources, parse, place
from orchestrator.core.lease.cloud_api import WorkerAddress
from orchestrator.errors import UserError
from tests.waiting import HANG_S, until


@pytest.mark.parametrize(("word", "meaning"), [
    ("mine:x", Place("x", "mine")), ("mine:", Place("", "mine")), ("mine:2:x", Place("x", "mine", 2)),
    ("mine:2:", Place("", "mine", 2)), ("mine:2", Place("2", "mine")),
    ("mine:/a b/*:c\nd", Place("/a b/*:c\nd", "mine")), ("mine:x:2:y", Place("x:2:y", "mine")),
    ("./mine:x", Place("./mine:x")), ("/tmp/12:30", Place("/tmp/12:30")), (":x", Place(":x")),
    ("a b", Place("a b")), ("-r", Place("-r")),
])  # fmt: skip
def test_a_place_is_remote_where_scp_would_see_a_host(word: str, meaning: Place) -> None:
    assert place(word) == meaning


def test_workers_are_named_in_the_place_or_by_the_option() -> None:
    copy = parse(["mine:1:a", "mine:b", "dir"], None, recursive=True)
    assert copy == Copy("mine", (Place("a", "mine", 1), Place("b", "mine")), Place("dir"), recursive=True)
    assert parse(["a", "mine:"], "3", recursive=False).worker == 3
    assert parse(["a", "mine:"], "all", recursive=False).everywhere
    assert parse(["mine:a", "mine:b", "dir"], "all", recursive=False).everywhere
    assert not parse(["mine:0:a", "mine:1:"], None, recursive=False).everywhere


@pytest.mark.parametrize(("words", "worker", "message"), [
    (["mine:a"], None, "nothing to copy to"), (["a", "b"], None, "neither SRC nor DST names a slice"),
    (["mine:a", "yours:b"], None, "one slice at a time, not mine and yours"),
    (["mine:1:a", "b"], "2", "named twice"), (["mine:1:a", "b"], "all", "named twice"),
    (["mine:a", "mine:b"], "all", "from this machine to all workers, or from them"),
    (["mine:a", "b", "c"], "all", "from this machine to all workers, or from them"),
    (["a", "mine:b", "mine:"], "all", "from this machine to all workers, or from them"),
    (["a", "mine:"], "-1", "--worker -1: must be the index of a worker"),
    (["a", "mine:"], "", "must be the index"), (["a", "mine:"], "²", "must be the index"),
])  # fmt: skip
def test_what_scp_cannot_be_asked_is_said_before_anything_is(
    words: list[str], worker: str | None, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        parse(words, worker, recursive=False)


@pytest.mark.parametrize("worker", [None, "all"])
def test_local_files_that_cannot_be_copied_are_said_once_and_before_a_connection(
    tmp_path: Path, worker: str | None
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "file").touch()
    missing = parse([f"{tmp_path}/file", f"{tmp_path}/none", "mine:"], worker, recursive=True)
    with pytest.raises(UserError, match=r"none: No such file or directory"):
        check_sources(missing)
    with pytest.raises(UserError, match=r"tree: is a directory\b") as raised:
        check_sources(parse([f"{tmp_path}/tree", "mine:"], worker, recursive=False))
    assert raised.value.hint == "copy it with `-r`"
    check_sources(parse([f"{tmp_path}/tree", f"{tmp_path}/file", "mine:"], worker, recursive=True))
    check_sources(parse(["mine:none", "here"], worker, recursive=False))


def test_what_scp_says_alike_of_several_workers_is_shown_once_whatever_their_names() -> None:
    workers = [WorkerAddress(index, f"10.0.0.{index}", 22000 + index, instance=f"w-{index}") for index in range(4)]
    said, shown = Said("node", workers), list[tuple[int, list[str]]]()
    for index in (2, 0, 1):
        lines = [f"ssh: connect to host 10.0.0.{index} port {22000 + index}: refused", f"node-{index}: w-{index} lost"]
        said(index, 255, lines, lambda *words: shown.append(words))
    assert [index for index, _ in shown] == [2]
    said(3, 1, ["scp: shard-1: No such file"], lambda *words: shown.append(words))
    said(2, 1, ["scp: shard-2: No such file"], lambda *words: shown.append(words))
    said(1, 0, [], lambda *words: shown.append(words))
    assert [lines[0] for _, lines in shown[1:]] == ["scp: shard-1: No such file", "scp: shard-2: No such file"]


def test_a_program_on_a_leash_keeps_its_code_its_arguments_and_its_output() -> None:
    process, leash = fork.start(
        ["sh", "-c", LEASH, "scp", "sh", "-c", 'cat; echo "$@"; exit 5', "x", "a b", "$HOME"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.communicate(timeout=HANG_S)[0] == b"a b $HOME\n"
    assert process.returncode == 5
    leash.close()


def test_a_program_on_a_leash_ends_with_it() -> None:
    process, leash = fork.start(["sh", "-c", LEASH, "scp", "sleep", "1000"], stdout=subprocess.PIPE)
    here = psutil.Process(process.pid)
    family = until(lambda: [each for each in here.children(recursive=True) if "sleep" in each.cmdline()], "the program")
    leash.close()
    assert process.wait(HANG_S) != 0
    psutil.wait_procs(family, HANG_S)
    assert process.stdout is not None and os.read(process.stdout.fileno(), 1) == b"", "nothing holds its output"
    process.stdout.close()


def test_a_worker_whose_scp_cannot_be_started_counts_as_failed_and_the_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, said = fork.start, list[str]()

    def failing(argv: list[str], **options: Any) -> Any:
        if argv[-1] == f"{tmp_path}/1":
            raise OSError(errno.EMFILE, "Too many open files")
        return start(argv, **options)

    monkeypatch.setattr(copies.fork, "start", failing)
    monkeypatch.setattr(copies, "_argv_for", lambda _shell, _copy, worker: ["touch", f"{tmp_path}/{worker}"])
    monkeypatch.setattr(copies, "AT_ONCE", 1)
    workers = [WorkerAddress(index, "127.0.0.1") for index in range(3)]
    shell: Any = SimpleNamespace(
        fleet=SimpleNamespace(workers=workers), lease=SimpleNamespace(name=SimpleNamespace(node="node"))
    )
    session: Any = SimpleNamespace(reporter=SimpleNamespace(notice=lambda _stage, text: said.append(text)))
    copy = Copy("mine", (Place("a"),), Place("", "mine"), everywhere=True)
    assert copies.copy_everywhere(session, shell, copy, lambda _worker, _lines: None) == 255
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]
    assert said == ["worker1: scp cannot be started: Too many open files"]
