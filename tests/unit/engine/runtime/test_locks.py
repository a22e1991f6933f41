"""The locks of leases and attempts: seen by other processes and threads, dropped at their end, never kept by a fork."""

import errno
import fcntl
import os
import signal
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from orchestrator.engine.runtime.locks import FileLocks
from tests.forked import Child, in_thread
from tests.waiting import until


@pytest.fixture
def locks(tmp_path: Path) -> FileLocks:
    return FileLocks(tmp_path / "locks")


@pytest.fixture
def others(tmp_path: Path) -> FileLocks:
    """As another process sees them."""
    return FileLocks(tmp_path / "locks")


def test_a_lock_is_seen_by_others_and_ends_with_its_process(locks: FileLocks, others: FileLocks) -> None:
    with Child(lambda: locks.lock("lease")) as process:
        assert process.said == "True"
        assert others.is_locked("lease") and not others.lock("lease")
        process.kill()
        assert not others.is_locked("lease") and others.lock("lease")


def test_a_lease_that_was_never_locked_is_not_locked(locks: FileLocks) -> None:
    assert not locks.is_locked("lease")


def test_a_question_that_takes_long_keeps_no_owner_from_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question shares the lock for a moment, which is long where the machine is busy."""
    locks = FileLocks(tmp_path)
    slow = os.open(tmp_path / "lease.lock", os.O_RDONLY | os.O_CREAT)
    fcntl.flock(slow, fcntl.LOCK_SH)
    looks = iter(range(1000))
    monkeypatch.setattr(
        "orchestrator.engine.runtime.locks.time.sleep", lambda _: os.close(slow) if next(looks) == 999 else None
    )
    assert locks.lock("lease")
    assert FileLocks(tmp_path).is_locked("lease") and not FileLocks(tmp_path).lock("lease")


# -- threads -----------------------------------------------------------------------------------------------------------


def test_another_thread_is_refused_as_another_process_is(locks: FileLocks) -> None:
    assert locks.lock("lease") and locks.lock("lease"), "the thread that has it may ask again"
    assert in_thread(lambda: (locks.lock("lease"), locks.is_locked("lease"), locks.is_held("lease"))) == (
        False,
        True,
        False,
    )
    assert locks.is_held("lease")


def test_another_thread_cannot_unlock_it(locks: FileLocks, others: FileLocks) -> None:
    locks.lock("lease")
    in_thread(lambda: locks.unlock("lease"))
    assert locks.is_held("lease") and others.is_locked("lease")
    locks.unlock("lease")
    assert not others.is_locked("lease")


def test_a_thread_that_ended_without_unlocking_holds_nothing(locks: FileLocks) -> None:
    assert in_thread(lambda: locks.lock("lease"))
    assert not locks.is_locked("lease")
    assert locks.lock("lease") and locks.is_held("lease")


def test_of_two_threads_that_ask_at_once_one_gets_the_lock(locks: FileLocks) -> None:
    together, answered = threading.Barrier(8), threading.Barrier(8)
    got: list[bool] = []

    def ask() -> None:
        together.wait()
        got.append(locks.lock("lease"))
        answered.wait()  # while every thread lives

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]


def test_closing_drops_what_every_thread_has_locked(locks: FileLocks, others: FileLocks) -> None:
    locked, closed = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (locks.lock("lease"), locked.set(), closed.wait()))
    thread.start()
    locked.wait()
    assert others.is_locked("lease")
    locks.close()
    assert not others.is_locked("lease")
    closed.set()
    thread.join()


# -- forks -------------------------------------------------------------------------------------------------------------


def test_the_lock_of_a_killed_process_is_free_while_its_forked_children_live(
    locks: FileLocks, others: FileLocks
) -> None:
    with Child(lambda: locks.lock("lease"), then=lambda: Child(lambda: "alive").keep()) as parent:
        assert parent.grandchild is not None and others.is_locked("lease")
        parent.kill()
        os.kill(parent.grandchild, 0)
        assert not others.is_locked("lease") and others.lock("lease")


def test_a_forked_child_does_not_hold_its_parents_lock_and_takes_nothing_from_it(
    locks: FileLocks, others: FileLocks
) -> None:
    locks.lock("lease")

    def in_child() -> tuple[bool, bool, bool]:
        found = locks.is_held("lease"), locks.is_locked("lease"), locks.lock("lease")
        locks.unlock("lease")
        locks.close()
        return found

    with Child(in_child) as child:
        assert child.said == "(False, True, False)"
        assert others.is_locked("lease") and locks.is_held("lease")
    assert others.is_locked("lease"), "nor does the end of the child drop it"
    locks.unlock("lease")
    assert not others.is_locked("lease")


def test_a_child_that_is_forked_in_the_middle_of_a_question_keeps_nothing_of_it(
    locks: FileLocks, others: FileLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would share the lock for as long as it lives, and no other process could take it."""
    assert locks.lock("lease")
    locks.unlock("lease")
    flock, children = fcntl.flock, []

    def forks(fd: int, how: int) -> None:
        flock(fd, how)
        if not children:
            children.append(Child(lambda: "alive"))
            assert children[0].said == "alive"

    monkeypatch.setattr(fcntl, "flock", forks)
    assert not locks.is_locked("lease")
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr("orchestrator.engine.runtime.locks.LOOKS", 1)
    with children[0] as child:
        os.kill(child.pid, 0)
        assert others.lock("lease")


def test_a_child_that_another_thread_forks_while_a_lock_is_taken_keeps_nothing_of_it(
    locks: FileLocks, others: FileLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork waits until the descriptor is one that children close."""
    opened, going = threading.Event(), threading.Event()
    real = os.open

    def slow(*words: object, **more: object) -> int:
        number = real(*words, **more)  # type: ignore[arg-type]
        if threading.current_thread() is threading.main_thread():
            opened.set()
            going.wait(0.2)  # a fork that does not wait comes here
        return number

    children: list[Child] = []

    def fork() -> None:
        opened.wait()
        children.append(Child(lambda: "alive"))
        going.set()

    thread = threading.Thread(target=fork)
    thread.start()
    monkeypatch.setattr(os, "open", slow)
    assert locks.lock("lease")
    monkeypatch.setattr(os, "open", real)
    thread.join()
    with children[0] as child:
        assert child.said == "alive"
        locks.unlock("lease")
        assert not others.is_locked("lease"), "the child has the descriptor"


def test_a_program_that_is_executed_inherits_no_lock(locks: FileLocks, others: FileLocks) -> None:
    def start_program() -> int:
        locks.lock("lease")
        return os.posix_spawn("/bin/sleep", ["sleep", "600"], {})

    with Child(start_program) as parent:
        program = int(parent.said)
        try:
            parent.kill()
            os.kill(program, 0)
            until(lambda: not others.is_locked("lease"), "the lock to be free")
        finally:
            os.kill(program, signal.SIGKILL)


def test_a_lock_about_which_the_disk_gives_no_answer_may_be_held(
    locks: FileLocks, others: FileLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert locks.lock("lease")
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    assert others.is_locked("lease"), "its owner is not called dead"
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(errno.EOPNOTSUPP, "Operation not supported")))
    assert not others.is_locked("lease")
