"""Requests that come at a bad moment or in a bad place: names that are taken, odd clocks, odd terminals, early signals."""

import contextlib
import itertools
import os
import pty
import secrets
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.client.session import Session
from orchestrator.core.text import names
from tests.cli_fixture import Tpujob
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
    make(tpujob, name, **{"tpujob": "1", "tpujob-lease-id": "somebody-else"})
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
