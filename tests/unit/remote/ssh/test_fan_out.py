"""Work on many workers at once: every result, the right error, and an end at any moment."""

from __future__ import annotations

import threading
import time

import pytest

from orchestrator.errors import CommandFailed, HostKeyMismatch, RemoteError, TunnelRefused, Unreachable
from orchestrator.remote.ssh.fan_out import FanOutAbandoned, Wakeup, combined_error, fan_out
from tests.waiting import HANG_S


def test_results_come_in_the_order_of_the_items() -> None:
    assert fan_out(range(100), lambda item: item * 2, Wakeup(), limit=7) == [item * 2 for item in range(100)]


def test_no_more_than_the_limit_run_at_once() -> None:
    running: list[int] = []
    most: list[int] = []

    def work(item: int) -> None:
        running.append(item)
        most.append(len(running))
        time.sleep(0.005)
        running.remove(item)

    fan_out(range(20), work, Wakeup(), limit=3)
    assert max(most) <= 3


def test_one_failure_is_raised_itself_and_several_with_all_their_messages() -> None:
    def fail(item: int) -> None:
        raise (
            Unreachable(f"worker{item} is silent", hint="look")
            if item % 2
            else CommandFailed(["x"], 1, "", worker=item)
        )

    with pytest.raises(CommandFailed, match="worker0"):
        fan_out([0], fail, Wakeup())
    with pytest.raises(Unreachable) as raised:
        fan_out([1, 3], fail, Wakeup())
    assert raised.value.message == "worker1 is silent (2 alike: worker1 and worker3)" and raised.value.hint == "look"
    with pytest.raises(RemoteError, match=r"^worker0: x ended with code 1: \(no output\); worker1 is silent$"):
        fan_out([0, 1], fail, Wakeup())


def test_a_bug_is_not_hidden_among_failures() -> None:
    def fail(item: int) -> None:
        raise ZeroDivisionError if item == 1 else Unreachable("silent")

    with pytest.raises(ZeroDivisionError):
        fan_out([0, 1, 2], fail, Wakeup())


def test_a_wrong_host_key_is_raised_before_the_others_have_answered() -> None:
    never, answered = threading.Event(), []

    def work(item: int) -> None:
        if item == 0:
            never.wait(HANG_S)
            answered.append(item)
        raise HostKeyMismatch("worker1 is somebody else")

    with pytest.raises(HostKeyMismatch):
        fan_out([0, 1], work, Wakeup())
    assert answered == []
    never.set()


def test_canceling_ends_the_wait_at_once_though_the_work_hangs() -> None:
    wakeup, began, never = Wakeup(), threading.Event(), threading.Event()

    def work(_: int) -> None:
        began.set()
        never.wait(HANG_S)

    threading.Thread(target=lambda: (began.wait(HANG_S), wakeup.cancel())).start()
    with pytest.raises(FanOutAbandoned):
        fan_out([0], work, wakeup)
    never.set()


def test_workers_that_are_all_refused_are_a_refusal_and_not_a_broken_worker() -> None:
    refused = [TunnelRefused("worker0: no role", hint="ask for it"), TunnelRefused("worker1: no role")]
    error = combined_error(refused)
    assert isinstance(error, TunnelRefused) and error.hint == "ask for it"
    assert type(combined_error([*refused, Unreachable("worker2: cut")])) is RemoteError
