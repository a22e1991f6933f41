"""The real world of a process: locks, what forked children share of it, effects of several calls, and its end."""

import errno
import fcntl
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from orchestrator.errors import CloudUnavailable
from orchestrator.places.vms.reach import Reach
from orchestrator.promise.effects import world as worlds
from orchestrator.promise.effects.base import Report
from orchestrator.promise.effects.cloud import DeleteAll
from orchestrator.promise.effects.locks import FileLocks
from orchestrator.promise.effects.world import RealWorld
from orchestrator.promise.guardian_process import Guardian
from orchestrator.promise.lease.changes import Intent, ReleaseBegan
from orchestrator.promise.lease.cloud_api import Operation
from orchestrator.promise.lease.lease import Lease, SliceName
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.system import fork, open_files
from tests.disk import files_in_use
from tests.fakes.leases import LedgerInMemory, lease_and_request
from tests.forked import Child, in_thread
from tests.waiting import HANG_S, until


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

    def sleep(_: float) -> None:
        if next(looks) == 999:
            os.close(slow)
            assert another.lock("lease"), "who waits for the end of the question holds nothing meanwhile"
            another.unlock("lease")

    another = FileLocks(tmp_path)
    monkeypatch.setattr("orchestrator.promise.effects.locks.time.sleep", sleep)
    assert locks.lock("lease")
    assert FileLocks(tmp_path).is_locked("lease") and not FileLocks(tmp_path).lock("lease")


def test_a_disk_that_gives_no_answer_for_a_moment_does_not_keep_the_lock_away(
    locks: FileLocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, unknown = BlockingIOError(errno.EAGAIN, "shared"), OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=[shared, unknown, None, None]))
    assert locks.lock("lease")


def test_the_files_are_for_this_user_only_whatever_the_umask(locks: FileLocks) -> None:
    before = os.umask(0)
    try:
        assert locks.lock("lease")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (locks.directory, locks.directory / "lease.lock")]
    assert modes == [0o700, 0o600]


def test_neither_a_refusal_nor_a_check_leaves_a_file_open(locks: FileLocks, others: FileLocks) -> None:
    assert locks.lock("lease")
    before = files_in_use()
    assert not others.lock("lease")
    locks.check()
    assert open_files.in_use() == before


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
    assert in_thread(lambda: locks.lock("another"))
    assert locks.lock("another"), "also for who does not ask before"


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
    flock = fcntl.flock
    children: list[Child] = []

    def forks(fd: int, how: int) -> None:
        flock(fd, how)
        if not children:
            children.append(Child(lambda: "alive"))
            assert children[0].said == "alive"

    monkeypatch.setattr(fcntl, "flock", forks)
    assert not locks.is_locked("lease")
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr("orchestrator.promise.effects.locks.LOOKS", 1)
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


NAMES = tuple(SliceName("p", f"zone-{letter}", "n") for letter in "abc")


def deleting(delete: Any) -> Any:
    return SimpleNamespace(cloud=SimpleNamespace(delete=delete))


def test_no_answer_keeps_another_delete_from_leaving() -> None:
    all_left = threading.Barrier(len(NAMES), timeout=HANG_S)

    def delete(name: SliceName) -> None:
        all_left.wait()  # an API that answers no call before all have arrived

    assert DeleteAll(NAMES).perform(deleting(delete)) == (None, None, None)


def test_each_answer_or_error_is_in_the_place_of_its_name() -> None:
    accepted, silent = (
        Operation("projects/p/locations/zone-a/operations/1", False, "delete", "n"),
        CloudUnavailable("503"),
    )
    answers: dict[str, Any] = {"zone-a": accepted, "zone-b": silent, "zone-c": None}
    answered = threading.Event()
    threading.Timer(0.02, answered.set).start()

    def delete(name: SliceName) -> Operation | None:
        answered.wait(HANG_S)
        answer = answers[name.zone]
        if isinstance(answer, CloudUnavailable):
            raise answer
        return answer

    assert DeleteAll(NAMES).perform(deleting(delete)) == (accepted, silent, None)


def test_a_bug_is_no_answer() -> None:
    def delete(name: SliceName) -> None:
        if name.zone == "zone-b":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        DeleteAll(NAMES).perform(deleting(delete))


LEASE = lease_and_request().lease


class Things:
    """A cloud, a fleet: something with an identity that counts its ends."""

    def __init__(self) -> None:
        self.ends = 0
        self.ended = threading.Event()
        self.deadline_s = 0.0

    def connect(self, deadline_s: float, on_wait: Callable[[str], None]) -> None:
        self.deadline_s = deadline_s
        on_wait("worker 1 boots")

    def cancel(self) -> None:
        self.ends += 1
        self.ended.set()

    def canceled(self, timeout_s: float) -> bool:
        return self.ended.wait(timeout_s)


@pytest.fixture
def started() -> list[Guardian]:
    return []


@pytest.fixture
def told() -> list[Report]:
    return []


@pytest.fixture
def world(tmp_path: Path, started: list[Guardian], told: list[Report]) -> RealWorld:
    opened: Any = Things

    def start() -> Guardian:
        started.append(Guardian(len(started) + 1, fork.pipe()[1]))
        return started[-1]

    clocks: Any = None
    return RealWorld(
        kind="emulated", clocks=clocks, ledger=LedgerInMemory(), locks=FileLocks(tmp_path / "locks"),
        report=told.append, start_guardian=start, open_cloud=opened,
        reach=Reach(lambda: None, lambda lease_id: tmp_path),
        channel="ssh",
    )  # fmt: skip


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Things:
    made = Things()
    monkeypatch.setattr(Reach, "fleet", lambda *_: made)
    return made


def test_the_cloud_is_opened_once_and_again_in_a_forked_child(world: RealWorld) -> None:
    ours: Any = world.cloud
    assert world.cloud is ours
    with Child(lambda: (world.cloud is ours, world.cloud is world.cloud)) as child:
        assert child.said == "(False, True)"
    assert world.cloud is ours


def test_a_guardian_is_started_once_and_again_in_a_forked_child(world: RealWorld, started: list[Guardian]) -> None:
    assert world.arm() and world.arm() and len(started) == 1
    with Child(lambda: (world.arm(), len(started), started[0].waits, started[1].waits)) as child:
        assert child.said == "(True, 2, False, True)"
    assert world.arm() and len(started) == 1


def test_without_a_wish_for_a_guardian_none_is_started(world: RealWorld) -> None:
    world.start_guardian = None
    assert world.arm() is False


def test_the_time_is_that_of_its_own_cloud_unless_another_one_is_named(world: RealWorld) -> None:
    said: list[object] = []
    clocks: Any = SimpleNamespace(now={"emulated": 1.0, "google": 2.0}.get, is_certain={"emulated": "quite"}.get)
    clocks.synchronize = lambda *words: said.append(words)
    world.clocks = clocks
    assert (world.now(), world.now("google"), world.is_time_certain()) == (1.0, 2.0, "quite")
    world.set_server_time(5.0, 4.0)
    assert said == [("emulated", 5.0, 4.0)]


def test_workers_are_waited_for_and_the_user_hears_of_it(world: RealWorld, fleet: Things, told: list[Report]) -> None:
    assert world.connect(LEASE, (), 7.0) is fleet and fleet.deadline_s == 7.0
    assert told == [Report("connect", "worker 1 boots", passing=True)]
    world.close()


def test_the_end_of_its_work_disconnects_the_workers_and_wakes_the_guardian(
    world: RealWorld, fleet: Things, started: list[Guardian]
) -> None:
    world.arm()
    world.connect(LEASE, (), 1.0)
    world.close()
    assert fleet.ends == 1 and not started[0].waits


def test_the_workers_are_disconnected_once_another_process_releases_their_slice(
    world: RealWorld, fleet: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "LOOK_S", 0.01)
    world.ledger.record(Intent(LEASE))
    locked, known = threading.Event(), world.ledger.lease

    def lease(identity: str) -> Lease:
        if locked.is_set():
            return known(identity)
        locked.set()
        raise LedgerUnavailable("the ledger is locked")

    monkeypatch.setattr(world.ledger, "lease", lease)
    world.connect(LEASE, (), 1.0)
    assert locked.wait(HANG_S) and fleet.ends == 0, "it is asked again"
    world.ledger.record(ReleaseBegan(LEASE.id, 1.0, "tpujob cancel"))
    assert fleet.ended.wait(HANG_S) and fleet.ends == 1


def test_an_effect_that_was_abandoned_leaves_nothing_open_when_it_is_late(
    world: RealWorld, fleet: Things, started: list[Guardian]
) -> None:
    world.close()
    world.connect(LEASE, (), 1.0)
    world.arm()
    assert fleet.ends == 1 and not started[0].waits


def test_a_forked_child_that_is_done_disconnects_nothing_of_its_parents(
    world: RealWorld, fleet: Things, started: list[Guardian]
) -> None:
    world.arm()
    world.connect(LEASE, (), 1.0)

    def in_child() -> int:
        world.close()
        return fleet.ends

    with Child(in_child) as child:
        assert child.said == "0"
    assert started[0].waits
