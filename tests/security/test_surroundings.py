"""What the user's machine lacks is no bug of tpujob: one clear line, before anything is created; and what exists still ends."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli import dispatch
from orchestrator.cli.console import console
from tests.cli_fixture import Said, Tpujob

ON_A_SLICE = "tpu: {zone: us-central1-a}\ncommand: ls\n"
UP = ("up", "bob", "--zone", "us-central1-a")
GONE = "the working directory does not exist any more"


def within(tpujob: Tpujob, setting: str, *words: str) -> Said:
    """Run the command as a process, after this line of a shell."""
    process = tpujob.start(*words, before=("bash", "-c", f'{setting} && exec "$0" "$@"'))
    out, err = process.communicate()
    return Said(words, process.returncode, out, err)


def assert_refused(said: Said, why: str) -> None:
    assert said.returncode == 64 and why in said.stderr and "hint:" in said.stderr, said.text
    assert "bug" not in said.text and "Traceback" not in said.text, said.text


@pytest.mark.ci
@pytest.mark.parametrize(("setting", "why"), [
    ("ulimit -n 24", "open files here, and this process may open 24"),
    ("ulimit -v 200000", "MiB of memory here, and this process may use 195"),
], ids=["open files", "memory"])  # fmt: skip
def test_what_a_limit_of_the_process_rules_out_is_known_before_the_create(
    tpujob: Tpujob, setting: str, why: str
) -> None:
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    (tpujob.directory / "local.yaml").write_text("on: local\ncommand: ls\n")
    with tpujob.promising_nothing():
        for command in (("run", tpujob.job(ON_A_SLICE)), ("run", "local.yaml"), ("submit", "job.yaml"), UP):
            assert_refused(within(tpujob, setting, *command), why)
    assert not (tpujob.directory / "runs").exists()
    assert "alice" in within(tpujob, setting, "status").stdout
    assert within(tpujob, setting, "down", "alice").returncode == 0 and tpujob.alive() == []


def test_in_a_directory_that_was_deleted_what_needs_it_is_refused_and_the_rest_works(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPUJOB_GUARDIAN", "on")
    gone, job = "mkdir gone && cd gone && rmdir ../gone", str(tpujob.directory / tpujob.job(ON_A_SLICE))
    refused = f"run --zone us-central1-a -- ls; run {job}; submit {job}; report x; init --example mnist; init; plan x"
    with tpujob.promising_nothing():
        for words in map(str.split, refused.split(";")):
            assert_refused(within(tpujob, gone, *words), GONE)
    for words in (UP, ("status",), ("list",), ("down", "bob"), ("gc", "--local")):
        assert within(tpujob, gone, *words).returncode == 0
    assert (tpujob.lived(), tpujob.alive()) == (1, [])


def test_a_run_whose_directory_is_deleted_meanwhile_ends_with_the_code_of_its_job(tpujob: Tpujob) -> None:
    (tpujob.directory / "there").mkdir()
    job = tpujob.job("tpu: {zone: us-central1-a}\ncommand: echo begun; sleep 1; exit 5\n", "there/job.yaml")
    process = tpujob.start("run", Path(job).name, before=("bash", "-c", 'cd there && exec "$0" "$@"'))
    tpujob.until("begun", process)
    shutil.rmtree(tpujob.directory / "there")
    out, err = process.communicate()
    assert process.returncode == 5 and "absent (checked" in out and tpujob.alive() == [], err


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_on_a_disk_without_file_locks_nothing_is_created_and_what_exists_is_torn_down(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    real: Callable[[int, int], None] = fcntl.flock

    def flock(fd: int, how: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(tpujob.own_state):
            raise OSError(number, os.strerror(number))
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    (tpujob.directory / "local.yaml").write_text("on: local\ncommand: ls\n")
    with tpujob.promising_nothing():
        for command in (("run", tpujob.job(ON_A_SLICE)), ("run", "local.yaml"), ("submit", "job.yaml"), UP):
            assert_refused(tpujob(*command), "is on a disk without file locks (flock)")
    assert tpujob("status").returncode == 0
    assert tpujob("down", "alice").returncode == 0 and tpujob.alive() == []


@pytest.mark.parametrize(("error", "why"), [
    (OSError(errno.EMFILE, "Too many open files"), "may open no more files"),
    (OSError(errno.ENOLCK, "No locks available"), "has no file locks"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "gets no more memory"),
    (MemoryError(), "gets no more memory"), (RuntimeError("can't start new thread"), "gets no more memory"),
    (ImportError("x.so: failed to map segment from shared object"), "gets no more memory"),
    (FileNotFoundError(errno.ENOENT, "No such file or directory", "x"), "a bug in tpujob"),
    (RuntimeError("another"), "a bug in tpujob"),
], ids=repr)  # fmt: skip
def test_wherever_the_machine_refuses_something_it_is_said_and_a_bug_stays_a_bug(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], error: Exception, why: str
) -> None:
    def call() -> int:
        raise error

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(dispatch, "_call", call)
    console.cache_clear()
    assert dispatch.dispatch() == (70 if "bug" in why else 64)
    assert why in capfd.readouterr().err
