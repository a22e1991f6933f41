"""Requests at a bad moment or on a machine that lacks something: one clear line, and what exists still ends."""

import contextlib
import errno
import fcntl
import itertools
import os
import pty
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.session.session import Session
from orchestrator.cli import dispatching
from orchestrator.cli.console.output import console
from orchestrator.text import names
from tests.cli_fixture import Said, Tpujob
from tests.contract.commands.test_gc import NODES, make
from tests.contract.commands.test_gc import names as names_of

JOB = "tpu: {zone: us-central1-a}\ncommand: echo hello\n"


def others(*values: Any) -> list[Any]:
    """What the first of its kind shows already."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.exhaustive)
        for value in values
    ]


# -- other people's slices --------------------------------------------------------------------------------------------


def test_38_a_slice_that_has_our_name_and_another_run_is_neither_adopted_nor_deleted(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: 5)
    name = names.node_name(Session.open().owner, names.new_run_id(5))
    make(tpujob, name, **{"tpujob": "1", "tpujob-lease-id": "another-lease"})
    with tpujob.creating_nothing():
        said = tpujob("run", tpujob.job(JOB))
    assert said.returncode == 70, said.text
    assert f"a slice named {name} exists that tpujob did not create; it is neither used nor deleted" in said.stderr
    assert names_of(tpujob) == {name}
    shown = tpujob("status").stdout
    assert f"(no owner label: {name}, v5litepod-4, us-central1-a, " in shown
    assert "not in this machine's ledger" in shown
    deletes = [row for row in tpujob.requests() if row["method"] == "DELETE" and name in row["path"]]
    assert [row for row in deletes if not row["path"].endswith("-probe")] == []


# -- runs and names that are taken -------------------------------------------------------------------------------------


def test_32_an_id_that_could_be_several_is_answered_with_their_list(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count(100)
    monkeypatch.setattr(secrets, "randbits", lambda bits: next(numbers))
    for _ in range(2):
        assert tpujob("run", tpujob.job(JOB)).returncode == 0
    for command in ("cancel", "show", "logs", "attach"):
        said = tpujob(command, "0000000")
        assert said.returncode == 64 and "'0000000' could be any of these: 0000000" in said.stderr
    assert tpujob("cancel", "zzzzzzzzzz").stderr.startswith("there is no run 'zzzzzzzzzz'")


def test_14_a_job_is_submitted_with_an_end_and_a_worst_case_or_not_at_all(tpujob: Tpujob) -> None:
    """Every limit has a default, so none can be missing: what they amount to is said."""
    said = tpujob("submit", tpujob.job("tpu: {zone: us-central1-a}\nlimits: {max_duration: 6m}\ncommand: sleep 60\n"))
    assert said.returncode == 0, said.text
    run = said.stdout.strip()
    assert "the job goes on without this process, until" in said.stderr and "at the latest" in said.stderr
    assert "worst case if everything fails: $0.96 emulated" in said.stderr
    assert tpujob("cancel", run).returncode == 0
    assert names_of(tpujob) == set()


# -- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("year", "words"), [(1970, "behind the cloud's clock"), *others((2100, "ahead of the cloud's clock"))]
)
def test_34_a_machine_in_the_wrong_year_is_warned_and_claims_by_the_clouds_clock(
    tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch, year: int, words: str
) -> None:
    right = time.time
    offset = (year - 2026) * 365.25 * 86400
    monkeypatch.setattr(time, "time", lambda: right() + offset)
    said = tpujob("run", tpujob.job(JOB))
    assert said.returncode == 0 and words in said.stderr, said.text
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    (node,) = tpujob.emulator.request("GET", NODES)["nodes"]
    deadline = int(node["labels"]["tpujob-deadline"])
    assert right() < deadline < right() + 25 * 3600
    assert tpujob("gc", "--zone", "us-central1-a").stdout.count("claimed") >= 1
    assert len(names_of(tpujob)) == 1, "gc from here does not take it for abandoned"
    assert tpujob("down", "alice").returncode == 0 and names_of(tpujob) == set()


# -- terminals --------------------------------------------------------------------------------------------------------

ODD = {
    "dumb": {"TERM": "dumb"},
    "no-term": {"TERM": ""},
    "one-column": {"COLUMNS": "1", "LINES": "1"},
    "latin-1": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "latin-1"},
    "ascii": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "no-home": {"HOME": "/nonexistent"},
}


@pytest.mark.parametrize("odd", ["ascii", *others(*(name for name in ODD if name != "ascii"))])
def test_35_an_odd_terminal_costs_no_run(tpujob: Tpujob, odd: str) -> None:
    job = tpujob.job("tpu: {zone: us-central1-a}\ncommand: echo grün ✓\n")
    process = tpujob.start("run", job, env=ODD[odd], text=False)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert b"worker0 | gr" in out and b"absent (checked" in out
    assert names_of(tpujob) == set()


@pytest.mark.parametrize("closed", ["0<&- 1>&- 2>&-", *others("0<&-", "1>&-", "2>&-", ">/dev/full", "2>/dev/full")])
def test_35_streams_that_are_closed_or_full_cost_no_run(tpujob: Tpujob, closed: str) -> None:
    process = tpujob.start("run", tpujob.job(JOB), before=("sh", "-c", f'exec "$@" {closed}', "sh"))
    _, err = process.communicate()
    assert process.returncode == 0 and "Traceback" not in err
    assert tpujob.only_run()["state"] == "succeeded" and tpujob.lived() == 1 and names_of(tpujob) == set()


@pytest.mark.exhaustive
def test_35_on_a_terminal_one_column_wide_a_run_ends_well(tpujob: Tpujob, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm", "COLUMNS": "1", "LINES": "1"}.items():
        monkeypatch.setenv(name, value)
    leader, follower = pty.openpty()
    process = tpujob.start("run", tpujob.job(JOB), stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that there is no writer any more
        while piece := os.read(leader, 65536):
            shown += piece
    os.close(leader)
    assert process.wait() == 0, shown
    assert b"hello" in shown and names_of(tpujob) == set()


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, *others(signal.SIGTERM, signal.SIGHUP)])
def test_37_a_signal_before_the_first_call_creates_nothing(tpujob: Tpujob, number: int) -> None:
    job = tpujob.directory / "job.yaml"
    os.mkfifo(job)  # the command waits for its job file until it is written
    with tpujob.promising_nothing():
        process = tpujob.start("run", "job.yaml")
        writer = os.open(job, os.O_WRONLY)  # returns when the command reads
        process.send_signal(number)
        os.close(
            writer
        )  # for the command that was on its way into the read: it would wait there, with the signal noted
        process.communicate()
        assert process.returncode in (128 + number, -number)


# -- keys -------------------------------------------------------------------------------------------------------------


def test_27_a_key_that_others_can_read_is_not_used(tpujob: Tpujob) -> None:
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    (key,) = (tpujob.own_state / "leases").glob("*/id_ed25519")
    key.chmod(0o644)
    refused = tpujob("ssh", "alice", "--", "true")
    assert refused.returncode != 0 and "ermissions" in refused.stderr
    key.chmod(0o600)
    assert tpujob("ssh", "alice", "--", "true").returncode == 0
    assert tpujob("down", "alice").returncode == 0


@pytest.mark.exhaustive
def test_27_an_ssh_that_is_too_old_ends_with_its_own_words_and_code(
    tpujob: Tpujob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tpujob("up", "alice", "--zone", "us-central1-a").returncode == 0
    old = tmp_path / "bin" / "ssh"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'command-line: line 0: Bad configuration option: identityagent' >&2\nexit 255\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    ended = tpujob("ssh", "alice", "--", "true")
    assert ended.returncode == 255 and "Bad configuration option" in ended.stderr
    assert tpujob("down", "alice").returncode == 0


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
        for line in refused.split(";"):
            assert_refused(within(tpujob, gone, *line.split()), GONE)
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
    monkeypatch.setattr(dispatching, "_call", call)
    console.cache_clear()
    assert dispatching.dispatch() == (70 if "bug" in why else 64)
    assert why in capfd.readouterr().err
