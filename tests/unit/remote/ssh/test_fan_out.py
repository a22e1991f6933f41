"""Work on many workers at once: every result, the right error, and an end at any moment."""

import math
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from orchestrator.errors import CommandFailed, HostKeyMismatch, RemoteError, TunnelRefused, Unreachable
from orchestrator.remote.ssh.fan_out import FanOutAbandoned, Wakeup, combined_error, fan_out, outcomes
from orchestrator.remote.ssh.waves import Patience, Rules
from tests.waiting import HANG_S


def test_results_come_in_the_order_of_the_items() -> None:
    assert fan_out(range(100), lambda item: item * 2, Wakeup(), Rules(limit=7)) == [item * 2 for item in range(100)]


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
        raise HostKeyMismatch("worker1 is another machine")

    with pytest.raises(HostKeyMismatch):
        fan_out([0, 1], work, Wakeup())
    assert answered == []
    never.set()


@pytest.mark.parametrize("end", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_ends_the_thread_of_an_item_ends_the_wait_and_is_raised(end: type[BaseException]) -> None:
    def work(item: int) -> None:
        if item == 1:
            raise end("of one")

    with pytest.raises(end, match="of one"):
        ended(lambda: fan_out([0, 1, 2], work, Wakeup()))


def test_a_bug_in_what_the_order_asks_ends_the_wait_and_is_raised() -> None:
    def until(_item: int) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ended(lambda: fan_out([0], _silent, Wakeup(), Rules(until=until)))


def test_canceling_ends_the_wait_at_once_though_the_work_hangs() -> None:
    wakeup, began, never = Wakeup(), threading.Event(), threading.Event()

    def work(_: int) -> None:
        began.set()
        never.wait(HANG_S)

    threading.Thread(target=_cancel_after, args=(began, wakeup)).start()
    with pytest.raises(FanOutAbandoned):
        fan_out([0], work, wakeup)
    never.set()


def test_workers_that_are_all_refused_are_a_refusal_and_not_a_broken_worker() -> None:
    refused = [TunnelRefused("worker0: no role", hint="ask for it"), TunnelRefused("worker1: no role")]
    error = combined_error(refused)
    assert isinstance(error, TunnelRefused) and error.hint == "ask for it"
    assert type(combined_error([*refused, Unreachable("worker2: cut")])) is RemoteError


def test_retries_end_at_their_time_with_the_last_failure() -> None:
    with pytest.raises(Unreachable, match="worker0 is silent"):
        fan_out([0], _silent, Wakeup(), Rules(until=lambda _: time.monotonic() + 0.15))


def test_a_slow_item_is_told_with_why_its_last_try_failed() -> None:
    told: list[tuple[list[int], str]] = []
    tries, tried_again, named = [], threading.Event(), threading.Event()

    def on_slow(slow: Sequence[int], why: Unreachable | None) -> None:
        told.append((list(slow), why.message if why else ""))
        named.set()

    def work(item: int) -> int:
        if item == 7 and not named.is_set():
            if tries:
                tried_again.set()
            tries.append(item)
            raise Unreachable("worker7 is silent")
        assert item == 7 or tried_again.wait(HANG_S)  # then the failure is known
        return item

    quick = Patience(slow_s=(0.05,), quiet_s=0.0)
    rules: Rules[int] = Rules(until=lambda _: math.inf, on_slow=on_slow, patience=quick)
    assert fan_out([3, 7], work, Wakeup(), rules) == [3, 7]
    assert told == [([7], "worker7 is silent")]


def test_outcomes_have_the_errors_in_the_place_of_the_results() -> None:
    def work(item: int) -> int:
        return item if item else _silent(item)

    first, second = outcomes([0, 1], work, Wakeup())
    assert isinstance(first, Unreachable)
    assert second == 1


def ended(call: Callable[[], object]) -> None:
    """Make the call in a thread of its own, so that one without an end fails the test; raise what it raises."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANG_S)
    assert raised, "it never ended"
    if raised[0] is not None:
        raise raised[0]


def _silent(item: int) -> int:
    raise Unreachable(f"worker{item} is silent")


def _cancel_after(event: threading.Event, wakeup: Wakeup) -> None:
    event.wait(HANG_S)
    wakeup.cancel()
