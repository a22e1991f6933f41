"""Turns at a bastion: how many logins are under way at once, and which of them count no more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from orchestrator.remote.ssh import piped
from orchestrator.remote.ssh.piped import Turns, turns
from tests.waiting import HANG_S


class Clock:
    """Its time is what the test says; who waits for it looks again at once."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(piped, "time", made)
    return made


def taken(turns: Turns, held: ExitStack) -> threading.Event:
    """Take a turn in a thread of its own; the event is set once it has it. It is held as long as `held`."""
    has, over = threading.Event(), threading.Event()

    def take() -> None:
        with turns.turn():
            has.set()
            over.wait(HANG_S)

    thread = threading.Thread(target=take)
    thread.start()
    held.callback(thread.join)
    held.callback(over.set)
    return has


def test_a_login_waits_until_one_before_it_ends() -> None:
    one = Turns(1)
    with ExitStack() as second:
        with ExitStack() as first:
            assert taken(one, first).wait(HANG_S)
            waiting = taken(one, second)
            assert not waiting.wait(0.05)
        assert waiting.wait(HANG_S)


def test_a_login_that_takes_four_times_as_long_as_the_slowest_counts_no_more(clock: Clock) -> None:
    one = Turns(1)
    with one.turn():
        clock.now = 2.0
    with one.turn():
        clock.now = 2.5
    with ExitStack() as held:
        assert taken(one, held).wait(HANG_S)
        clock.now = 10.4
        assert one._wait_s() == pytest.approx(0.1)
        clock.now = 10.5
        assert taken(one, held).wait(HANG_S)


def test_no_login_counts_as_past_the_bastion_before_one_has_been() -> None:
    one = Turns(1)
    with ExitStack() as held:
        assert taken(one, held).wait(HANG_S)
        assert one._wait_s() is None


def test_a_login_that_fails_says_nothing_of_how_long_one_takes(clock: Clock) -> None:
    one = Turns(1)
    with pytest.raises(EOFError), one.turn():
        raise EOFError
    with one.turn():
        assert one._wait_s() is None


def test_all_slices_of_a_process_share_the_turns_of_a_command() -> None:
    assert turns(1, "ssh -W %h:%p bastion") is turns(1, "ssh -W %h:%p bastion")
    assert turns(1, "ssh -W %h:%p bastion") is not turns(2, "ssh -W %h:%p bastion")
    assert turns(1, "ssh -W %h:%p bastion") is not turns(1, "ssh -W %h:%p another")
