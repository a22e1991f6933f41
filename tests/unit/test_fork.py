"""What a forked child closes, and when a fork may happen."""

import os
import select
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.system import fork
from tests.forked import Child
from tests.waiting import until


@contextmanager
def null() -> Iterator[fork.Descriptor]:
    descriptor = fork.Descriptor(lambda: os.open(os.devnull, os.O_RDONLY))
    yield descriptor
    descriptor.close()


def test_a_descriptor_is_open_here_and_closed_in_a_forked_child() -> None:
    with null() as descriptor:
        number = descriptor.fileno()
        with Child(lambda: (descriptor.closed, Path(f"/dev/fd/{number}").exists())) as child:
            assert child.said == "(True, False)"
        assert not descriptor.closed and os.fstat(number)


def test_a_closed_descriptor_has_no_number_and_closes_only_once() -> None:
    with null() as descriptor:
        descriptor.close()
        with null() as other:  # it may have the number of the first one
            descriptor.close()
            os.fstat(other.fileno())
        with pytest.raises(ValueError, match="closed"):
            descriptor.fileno()


def test_what_cannot_be_opened_is_not_registered() -> None:
    with pytest.raises(FileNotFoundError):
        fork.Descriptor(lambda: os.open("/nowhere/at/all", os.O_RDONLY))


def test_a_pipe_ends_with_its_process_though_forked_children_live() -> None:
    read_end, write_end = fork.pipe()
    with Child(lambda: "forked") as child:
        assert child.said == "forked" and not has_ended(read_end)
        write_end.close()
        assert has_ended(read_end)
    os.close(read_end)


def has_ended(pipe: int) -> bool:
    return bool(select.select([pipe], [], [], 0)[0]) and os.read(pipe, 1) == b""


def test_a_grandchild_inherits_as_little() -> None:
    with null() as descriptor:
        number = descriptor.fileno()

        def fork_again() -> int:
            return Child(lambda: Path(f"/dev/fd/{number}").exists()).keep()

        with Child(lambda: descriptor.closed, then=fork_again) as child:
            assert child.said == "True" and child.grandchild


def test_a_socket_is_closed_in_a_child_and_its_connection_stands_in_the_parent() -> None:
    here, there = socket.socketpair()
    fork.close_in_child(here)
    with Child(here.fileno) as child:
        assert child.said == "-1"
        here.sendall(b"x")
        assert there.recv(1) == b"x"
        here.close()
        assert has_ended(there.fileno()), "no copy keeps the connection open"
    there.close()


class Recorder:
    """Notes what it is told around a fork."""

    def __init__(self, error: Exception | None = None) -> None:
        self.told: list[str] = []
        self.error = error

    def close(self) -> None:
        self.told.append("closed")

    def before_fork(self) -> None:
        if self.error is not None:
            raise self.error
        self.told.append("before")

    def after_fork(self, *, in_child: bool) -> None:
        self.told.append("in the child" if in_child else "in the parent")


def test_what_is_registered_hears_of_a_fork_on_both_sides() -> None:
    recorder = Recorder()
    fork.register(recorder)
    with Child(lambda: recorder.told) as child:
        assert child.said == "['before', 'in the child']"
    assert recorder.told == ["before", "in the parent"]


def test_what_cannot_get_ready_keeps_nothing_else_from_it_and_hears_nothing_of_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bugs: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda bug: bugs.append(str(bug.exc_value)))
    broken, others = Recorder(RuntimeError("a bug")), [Recorder() for _ in range(5)]
    for recorder in (*others[:2], broken, *others[2:]):
        fork.register(recorder)
    for _ in range(2):
        with null() as descriptor, Child(lambda: descriptor.closed) as child:
            assert child.said == "True"
    broken.error = None  # its traceback keeps it for a while
    assert broken.told == [] and bugs == ["a bug"] * 2
    assert [recorder.told for recorder in others] == [["before", "in the parent"] * 2] * 5


def test_what_is_dropped_hears_of_nothing() -> None:
    heard: list[str] = []

    class Short(Recorder):
        def before_fork(self) -> None:
            heard.append("before")

    fork.register(Short())
    with Child(lambda: ""):
        assert heard == []


def test_a_fork_waits_for_another_thread_that_holds_it_off() -> None:
    inside, go_on, order = threading.Event(), threading.Event(), []

    def hold_off() -> None:
        with fork.no_fork():
            inside.set()
            go_on.wait(0.3)  # a fork that does not wait comes meanwhile
            order.append("held off")

    thread = threading.Thread(target=hold_off)
    thread.start()
    inside.wait()
    with Child(lambda: ""):
        order.append("forked")
        go_on.set()
        thread.join()
    assert order == ["held off", "forked"]


def test_a_fork_by_the_thread_that_holds_it_off_does_not_hang_and_the_child_can_go_on() -> None:
    with fork.no_fork():

        def in_child() -> str:
            with fork.no_fork(), null():
                return "went on"

        with Child(in_child) as child:
            assert child.said == "went on"
    thread = threading.Thread(target=fork.close_in_child, args=[Recorder()])
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it is still held off"


def test_a_failed_fork_leaves_nothing_held_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.geteuid() == 0:
        pytest.skip("root has no limit of processes")
    resource.setrlimit(resource.RLIMIT_NPROC, (1, limits[1]))
    try:
        with pytest.raises(BlockingIOError):
            os.fork()
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, limits)
    with null():
        pass


def test_programs_that_are_executed_get_neither_end_of_a_pipe() -> None:
    read_end, write_end = fork.pipe()
    program = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    try:
        write_end.close()
        until(lambda: has_ended(read_end), "the end of the pipe")  # the kernel wakes us shortly before it closes
    finally:
        os.kill(program, 9)
        os.waitpid(program, 0)
        os.close(read_end)
