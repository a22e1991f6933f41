"""A ledger that others use, too: both sides of a fork, older versions of tpujob, and newer ones."""

import gc
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from orchestrator import __version__
from orchestrator.promise.lease.changes import (
    AttemptEnded,
    Began,
    Extended,
    Gone,
    Intent,
    ReleaseBegan,
    ResultsCollected,
)
from orchestrator.promise.lease.lease import HeldFor, LeaseState, Purpose
from orchestrator.promise.lease.run_and_attempt import Attempt, AttemptState, RunRecord
from orchestrator.promise.ledger import file
from orchestrator.promise.ledger.clocks import Clocks
from orchestrator.promise.ledger.file import LedgerIsNewer, LedgerUnavailable
from orchestrator.promise.ledger.ledger import Ledger
from orchestrator.promise.ledger.rows import GcRun, SweepRecord
from orchestrator.system import open_files
from tests import ROOT
from tests.disk import files_in_use
from tests.fakes.leases import DONE, FILES, NEWER, OPEN, SCHEMA_11, SWEPT, as_of, dump, execute, lease_and_request
from tests.forked import Child
from tests.waiting import HANG_S


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """As it lies there while it is in use."""
    path = Path(shutil.copy(SCHEMA_11, tmp_path / "ledger.sqlite3"))
    execute(path, "pragma journal_mode=wal")
    return path


@pytest.fixture
def forward(tmp_path: Path) -> list[object]:
    """What every one of these ledgers is to become."""
    path = Path(shutil.copy(SCHEMA_11, tmp_path / "forward"))
    Ledger(path).close()
    return dump(path)


def nodes(path: Path) -> list[str]:
    with closing(Ledger(path)) as ledger:
        return [lease.name.node for lease in ledger.open_leases()]


def test_a_real_ledger_of_schema_11_says_all_that_it_said(old: Path) -> None:
    ledger = Ledger(old)
    (lease,) = ledger.open_leases()
    assert (lease.name.node, lease.state, lease.held_for) == (OPEN, LeaseState.READY, HeldFor.USER)
    states = {run.id: str(attempt.state) for run, attempt in ledger.runs()}
    assert (len(states), states[DONE], states[SWEPT]) == (3, "succeeded", "failed")
    spec = ledger.run(DONE)[0].spec
    assert (spec.ports, spec.artifacts, spec.params, spec.secret_sources) == (
        (6006,), ("kept.txt",), {"lr": 0.1}, ("DEMO_TOKEN",),
    )  # fmt: skip
    assert (spec.limits.max_duration, spec.tpu.place) == (600.0, ("v5litepod-8", "us-central1-a"))
    part = ledger.run(SWEPT)[0].spec.sweep
    assert (part.name, part.number, part.variant, ledger.sweeps()[0].id) == ("rates", 2, "lr=0.3", part.id)
    assert [(each.name, each.params) for each in ledger.sweeps()[0].variants][1] == ("rates-2", {"lr": 0.3})
    ledger.close()
    with closing(sqlite3.connect(old)) as database:
        assert (file.version_of(database), file.written_by(database)) == (file.VERSION, __version__)


@pytest.mark.parametrize("version", [10, 9, 8, 7, 6, 1])
def test_a_ledger_older_than_that_says_what_may_be_billed_and_its_slices_can_be_ended(old: Path, version: int) -> None:
    as_of_11 = Ledger(old)
    ran = GcRun(1.0, "google", "acme", "local", True, 0, 0)
    as_of_11.record_gc(ran)
    known = {lease.id: (lease.name, lease.deadline, lease.state) for lease in as_of_11.leases()}
    as_of_11.close()
    as_of(old, version)
    ledger = Ledger(old)
    assert {lease.id: (lease.name, lease.deadline, lease.state) for lease in ledger.leases()} == known
    assert [str(attempt.state) for _, attempt in ledger.runs()] == ["failed", "succeeded", "succeeded"]
    (lease,) = ledger.open_leases()
    ledger.record(ReleaseBegan(lease.id, 2e9, "tpujob down"), Gone(lease.id, 2e9, "proof"))
    run = RunRecord("aaaaaaaaaa", "mnist", "mnist.yaml", "emulated", 2e9, "runs/x")
    ledger.record(Began(run, Attempt("aaaaaaaaaa-1", run.id)))
    assert ledger.open_leases() == [] and ledger.runs()[0][0] == run
    assert (ledger.gc_runs("google"), ledger.gc_runs("emulated")) == ([ran] if version > 1 else [], [])


def test_tables_only_ever_gain_columns_with_defaults_so_that_each_version_reads_the_leases_of_all_others(
    tmp_path: Path,
) -> None:
    files = {version: FILES / f"schema-{version}.sqlite3" for version in range(11, file.VERSION)}
    assert all(path.exists() for path in files.values()), "a real ledger of each version before this one"
    Ledger(tmp_path / "new").close()
    with closing(sqlite3.connect(tmp_path / "new")) as new:
        for path in files.values():
            with closing(sqlite3.connect(path)) as before:
                for (table,) in before.execute("select name from sqlite_master where type = 'table'"):
                    was, now = (db.execute(f"pragma table_info({table})").fetchall() for db in (before, new))
                    kept = [(name, kind, required) for _, name, kind, required, _, _ in now]
                    assert kept[: len(was)] == [(name, kind, required) for _, name, kind, required, _, _ in was], table
                    assert all(not row[3] or row[4] is not None for row in now[len(was) :]), table


@pytest.mark.parametrize("there", [False, True], ids=["no file", "schema 11"])
def test_of_two_first_commands_at_once_both_open_the_ledger(old: Path, there: bool) -> None:
    if not there:
        old.unlink()
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(nodes, [old] * 8)] == [[OPEN] if there else []] * 8


@pytest.mark.ci
def test_a_death_at_any_statement_leaves_the_old_ledger_or_the_new_one(old: Path, forward: list[object]) -> None:
    before = dump(old)
    seen = []
    for number in range(1, 99):
        path = Path(shutil.copy(old, old.with_name(f"at-{number}")))
        died = _dies_at(number, path)
        seen.append(dump(path))
        assert nodes(path) == [OPEN] and dump(path) == forward
        if not died:
            break
    assert [each for each in seen if each not in (before, forward)] == []
    assert seen.index(forward) == seen.count(before) > 10, "one moment at which it changes, after several statements"


def _dies_at(number: int, path: Path) -> bool:
    """Open the ledger in a process that is killed at this statement; False: it has fewer."""

    class Mortal(sqlite3.Connection):
        left = number

        def execute(self, *sql: Any) -> sqlite3.Cursor:
            Mortal.left -= 1
            if not Mortal.left:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().execute(*sql)

    pid = os.fork()
    if pid == 0:
        try:
            with patch.object(sqlite3, "connect", partial(sqlite3.connect, factory=Mortal)):
                Ledger(path)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_on_a_disk_that_is_full_an_older_ledger_is_read_and_stays_as_it_is(old: Path, forward: list[object]) -> None:
    """A limit on the size of files stands for the disk. What is billed is known, and nothing is promised."""
    before, said = dump(old), []
    for limit in (*range(0, 64_000, 4096), 200_000):
        path = Path(shutil.copy(old, old.with_name(f"at-{limit}")))

        def read(path: Path = path, limit: int = limit) -> list[str]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            ledger = Ledger(path)
            try:
                ledger.record_gc(GcRun(1.0, "google", "acme", "local", True, 0, 0))
            except LedgerUnavailable as error:
                return [each.name.node for each in ledger.open_leases()] + [error.message.rpartition(": ")[2]]
            return [each.name.node for each in ledger.open_leases()]

        with Child(read) as child:
            said.append(child.said)
        if child.said != str([OPEN]):
            assert dump(path) in (before, forward) and nodes(path) == [OPEN] and dump(path) == forward
    assert all(OPEN in each for each in said), said
    assert said[0] != str([OPEN]) == said[-1], said


@contextmanager
def refusing(start: str, code: int) -> Iterator[None]:
    """The first statement that starts with this fails with this error of SQLite's; a transaction around it stays open."""

    class Refusing(sqlite3.Connection):
        left = 1

        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql.startswith(start) and Refusing.left:
                Refusing.left -= 1
                error = sqlite3.OperationalError("refused")
                error.sqlite_errorcode = code
                raise error
            return super().execute(sql, *values)

    with patch.object(sqlite3, "connect", partial(sqlite3.connect, factory=Refusing)):
        yield


@pytest.mark.parametrize("version", [8, 1])
@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE])
def test_a_ledger_that_cannot_be_brought_forward_is_read_from_a_copy_that_takes_nothing(
    old: Path, version: int, code: int
) -> None:
    Ledger(old).close()
    as_of(old, version)
    before, files = dump(old), files_in_use()
    with refusing("insert into written", code):
        ledger = Ledger(old)
    assert open_files.in_use() == files
    assert [lease.name.node for lease in ledger.open_leases()] == [OPEN]
    with pytest.raises(LedgerUnavailable, match="readonly"):
        ledger.check_writable()
    ledger.close()
    assert dump(old) == before


@pytest.mark.parametrize(("there", "code"), [(False, sqlite3.SQLITE_FULL), (True, sqlite3.SQLITE_BUSY)])
def test_a_new_ledger_on_a_full_disk_is_refused_and_so_is_one_that_another_process_changes(
    old: Path, there: bool, code: int
) -> None:
    if not there:
        old.unlink()
    files = files_in_use()
    with refusing("insert into written", code), pytest.raises(LedgerUnavailable) as kept:
        Ledger(old)
    assert (kept.value.exit_code, open_files.in_use()) == (70, files)


@pytest.mark.parametrize(("code", "log", "read"), [
    (sqlite3.SQLITE_READONLY_DIRECTORY, None, True), (sqlite3.SQLITE_CANTOPEN, b"", True),
    (sqlite3.SQLITE_CANTOPEN, b"the last commits", False), (sqlite3.SQLITE_CORRUPT, None, False),
])  # fmt: skip
def test_a_ledger_beside_which_no_file_can_be_made_is_read_if_it_lacks_no_commit(
    old: Path, code: int, log: bytes | None, read: bool
) -> None:
    if log is not None:
        old.with_name(f"{old.name}-wal").write_bytes(log)
    files = files_in_use()
    with refusing("pragma journal_mode", code):
        if read:
            assert nodes(old) == [OPEN]
        else:
            with pytest.raises(LedgerUnavailable) as kept:
                Ledger(old)
            assert kept.value.exit_code == 70
    assert open_files.in_use() == files


def test_an_unreferenced_ledger_is_closed_at_once(tmp_path: Path) -> None:
    gc.disable()
    try:
        files = files_in_use()
        ledger = Ledger(tmp_path / "ledger.sqlite3")
        assert ledger.leases() == [] and open_files.in_use() > files
        del ledger
        assert open_files.in_use() == files
    finally:
        gc.enable()


def test_a_newer_ledger_is_read_takes_ends_and_refuses_the_rest_with_the_version_to_install(old: Path) -> None:
    Ledger(old).close()
    execute(old, *NEWER)
    before = dump(old)
    ledger = Ledger(old)
    (lease,) = ledger.open_leases()
    assert (lease.name.node, lease.purpose, lease.held_for, lease.understood) == (
        OPEN, Purpose.HOLD, HeldFor.USER, False,
    )  # fmt: skip
    run, attempt = ledger.run(DONE)
    assert (attempt.state, run.spec.ports, run.spec.artifacts) == (AttemptState.SUCCEEDED, (), ("kept.txt",))
    down = ReleaseBegan(lease.id, 2e9, "tpujob down")
    for events in ([Extended(lease.id, 2e9, 3e9)], [down, Began(run, replace(attempt, id="k928dt4bg4-9"))]):
        with pytest.raises(LedgerIsNewer, match=r"by a newer tpujob, 9\.9\.9") as refused:
            ledger.record(*events)
        assert (refused.value.exit_code, "install tpujob 9.9.9;" in str(refused.value.hint)) == (64, True)
    assert Clocks(ledger).now("emulated") > 0 and dump(old) == before
    ledger.record(down)
    assert ledger.lease(lease.id).understood, "what is to be deleted is deleted by every tpujob"
    ledger.record(Gone(lease.id, 2e9, "seen"), ResultsCollected(attempt.id, 2e9, AttemptState.FAILED))
    assert (ledger.lease(lease.id).state, ledger.attempt(attempt.id).state) == (LeaseState.GONE, AttemptState.FAILED)
    ledger.cancel_sweep("a-sweep", 2e9)
    assert ledger.is_canceled("a-sweep")
    ledger.close()
    with closing(sqlite3.connect(old)) as database:  # where it has words of its own, it keeps them
        assert database.execute("select purpose, held_for, colour from lease where id = ?", (lease.id,)).fetchall() == [
            ("lent", "a party", "blue")
        ]


def test_a_process_goes_on_while_a_newer_tpujob_brings_its_ledger_forward(old: Path) -> None:
    ledger = Ledger(old)
    ledger.leases()
    execute(old, *NEWER)
    ledger.before_fork()  # which closes it
    ledger.after_fork(in_child=False)
    run = RunRecord("aaaaaaaaaa", "mnist", "mnist.yaml", "emulated", 2e9, "runs/x")
    lease, _ = lease_and_request()
    ledger.record(Intent(lease), Began(run, Attempt("aaaaaaaaaa-1", run.id)))
    ledger.record(AttemptEnded("aaaaaaaaaa-1", 2e9, AttemptState.SUCCEEDED))
    ledger.record_sweep(SweepRecord("bbbbbbbbbb", "s", "s.yaml", 1.0))
    ledger.record_gc(GcRun(1.0, "google", "acme", "local", True, 0, 0))
    assert Clocks(ledger).now("emulated") > 0 and ledger.run(run.id)[0] == run and lease in ledger.leases()
    assert (ledger.gc_runs("google")[0].at, ledger.sweeps()[0].name) == (1.0, "s")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.sqlite3")
    yield made
    made.close()


def add(ledger: Ledger, number: int) -> str:
    lease, _ = lease_and_request(number)
    ledger.record(Intent(lease))
    return lease.id


def test_parent_and_child_both_go_on_with_it(ledger: Ledger) -> None:
    first = add(ledger, 1)
    with Child(lambda: (len(ledger.leases()), add(ledger, 2))[0]) as child:
        assert child.said == "1"
        third = add(ledger, 3)
        ids = [lease.id for lease in ledger.leases()]
        assert len(ids) == 3 and {first, third} < set(ids)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="Linux says which files a process has open")
def test_a_child_that_does_not_use_it_has_it_not_open(ledger: Ledger) -> None:
    add(ledger, 1)

    def open_files() -> list[str]:
        links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return [name for name in links if str(ledger.path) in name]  # not those that other tests left

    assert open_files() != []
    with Child(open_files) as child:
        assert child.said == "[]"


def test_what_a_child_writes_after_its_parent_was_killed_is_kept(tmp_path: Path) -> None:
    """With a copy of its parent's connection it would hold no lock of its own: the next process would take the log away."""
    path = tmp_path / "ledger.sqlite3"
    go_on, tell = os.pipe()

    def parent() -> int:
        ledger = Ledger(path)
        add(ledger, 1)

        def child() -> str:
            add(ledger, 2)
            return "wrote"

        def later() -> None:
            os.read(go_on, 1)
            add(ledger, 4)
            os.write(done, b"!")

        def start() -> str:
            threading.Thread(target=later).start()
            return child()

        return Child(start).keep()

    ended, done = os.pipe()
    with Child(lambda: "", then=parent) as killed:
        assert killed.grandchild
        killed.kill()
        other = Ledger(path)
        add(other, 3)
        other.close()
        os.write(tell, b"!")
        assert os.read(ended, 1) == b"!"
        assert len(Ledger(path).leases()) == 4
    for number in (go_on, tell, ended, done):
        os.close(number)


def test_a_fork_waits_for_the_end_of_a_transaction(ledger: Ledger) -> None:
    begun, forking = threading.Event(), threading.Event()

    def work() -> None:
        with ledger._transaction():
            begun.set()
            forking.wait(0.3)
            ledger._db.execute("insert into event (at, subject, kind, data) values (1, 'x', 'test', '{}')")

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    with Child(lambda: len(ledger.events("x"))) as child:
        forking.set()
        thread.join()
        assert child.said == "1"
    assert len(ledger.events("x")) == 1


OPENED_DURING_A_FORK = """
import os, sys, threading
from pathlib import Path
from orchestrator.system import fork
from orchestrator.promise.ledger import file
from orchestrator.promise.ledger.ledger import Ledger

def fork_once():
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)

def is_complete(path):
    file.is_complete = real
    other.start()
    while fork._forking.acquire(blocking=False):  # until the other thread is about to fork, and waits for the ledger
        fork._forking.release()
    return real(path)

ledger = Ledger(Path(sys.argv[1]))
fork_once()  # closes the connection
real, file.is_complete, other = file.is_complete, is_complete, threading.Thread(target=fork_once)
ledger.events("x")
other.join()
"""


def test_a_ledger_that_is_opened_again_while_another_thread_forks_does_not_hang(tmp_path: Path) -> None:
    """In a process of its own: the two threads would wait for each other for ever."""
    program = [sys.executable, "-c", OPENED_DURING_A_FORK, str(tmp_path / "ledger.sqlite3")]
    subprocess.run(program, cwd=ROOT, check=True, timeout=HANG_S)


def test_a_child_that_is_forked_in_the_middle_of_a_call_is_refused_and_harms_nothing(ledger: Ledger) -> None:
    """By a signal handler of the user's, perhaps."""
    with ledger._transaction():
        ledger._db.execute("insert into event (at, subject, kind, data) values (1, 'x', 'test', '{}')")

        def ask() -> object:
            try:
                return ledger.leases()
            except LedgerUnavailable as error:
                return error.message

        child = Child(ask)
        assert "when this process was forked" in child.said
    with child:
        assert len(ledger.events("x")) == 1


def test_a_ledger_that_was_closed_stays_out_of_the_way_of_a_fork(ledger: Ledger) -> None:
    ledger.close()
    with Child(lambda: "alive") as child:
        assert child.said == "alive"
