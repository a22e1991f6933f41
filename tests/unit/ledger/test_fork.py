"""The ledger across forks: both processes go on with it, and neither takes the other's locks for its own."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.lease.lease import Intent
from orchestrator.ledger.file import LedgerUnavailable
from orchestrator.ledger.ledger import Ledger
from tests import ROOT
from tests.forked import Child
from tests.leases import lease_and_request
from tests.waiting import HANG_S


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
from orchestrator import fork
from orchestrator.ledger import file
from orchestrator.ledger.ledger import Ledger

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
