"""Run one function for each of N workers concurrently; cancellable at any moment. The order is that of `waves`.

Threads are daemons and are never joined: a `connect` without an answer may block one for seconds, and neither Ctrl-C nor
the end of the process waits for it.
"""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from orchestrator.core.text.alike import said_once
from orchestrator.errors import RemoteError, TunnelRefused, Unreachable
from orchestrator.remote.ssh.waves import Rules, Waves

Item = TypeVar("Item")
Result = TypeVar("Result")


class FanOutAbandoned(RemoteError):
    """The fleet was canceled; the outcome of running work is unknown."""

    def __init__(self) -> None:
        super().__init__("abandoned")


class Wakeup:
    """A condition shared by all threads of a fleet; canceling it ends every wait."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.canceled = threading.Event()

    def cancel(self) -> None:
        self.canceled.set()
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, happened: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until `happened()` or the timeout; return `happened()`. Call with `changed` held. Raises FanOutAbandoned."""
        self.changed.wait_for(lambda: self.canceled.is_set() or happened(), timeout_s)
        if self.canceled.is_set():
            raise FanOutAbandoned
        return happened()

    def sleep(self, seconds: float) -> None:
        if self.canceled.wait(seconds):
            raise FanOutAbandoned


def fan_out(
    items: Sequence[Item], work: Callable[[Item], Result], wakeup: Wakeup, rules: Rules[Item] | None = None
) -> list[Result]:
    """Return the results in order of `items`. Raises the only error, or one that combines several; HostKeyMismatch first."""
    found = outcomes(items, work, wakeup, rules)
    failures = [outcome for outcome in found if isinstance(outcome, Exception)]
    if failures:
        raise combined_error(failures)
    return [outcome for outcome in found if not isinstance(outcome, Exception)]


def outcomes(
    items: Sequence[Item], work: Callable[[Item], Result], wakeup: Wakeup, rules: Rules[Item] | None = None
) -> list[Result | Exception]:
    """Return the result or the error of each item, in order.

    Raises HostKeyMismatch at once, as well as what is no Exception, and a bug of what the rules call; and FanOutAbandoned.
    """
    rules = Rules() if rules is None else rules
    waves: Waves[Item, Result] = Waves(items, rules)

    def loop(position: int | None) -> None:
        try:
            while position is not None:
                try:
                    outcome: Result | Exception = work(items[position])
                except Exception as error:
                    outcome = error
                with wakeup.changed:
                    now = time.monotonic()
                    waves.ended(position, outcome, now)
                    wakeup.changed.notify_all()
                    position = None if wakeup.canceled.is_set() else waves.next(now)
        except BaseException as error:  # nothing of this item comes any more: the wait is to end
            with wakeup.changed:
                waves.worst = waves.worst or error
                wakeup.changed.notify_all()

    while True:
        with wakeup.changed:
            now = time.monotonic()
            while (position := waves.next(now)) is not None:
                threading.Thread(target=loop, args=(position,), name="fan-out", daemon=True).start()
            slow = waves.slow(now)
            why = next((failure for position in slow if (failure := waves.failure(position))), None)
            if not slow:
                wakeup.wait_for(functools.partial(waves.is_news, waves.news), waves.pause_s(now))
            if waves.worst is not None:
                raise waves.worst
            if waves.over:
                return [waves.outcomes[position] for position in range(len(items))]
        if slow:
            rules.on_slow([items[position] for position in slow], why)


def combined_error(failures: Sequence[Exception]) -> Exception:
    """Return the only failure, or one error with all messages, alike ones once. A foreign exception (a bug) comes first."""
    ours = [failure for failure in failures if isinstance(failure, RemoteError)]
    if len(ours) < len(failures):
        return next(failure for failure in failures if not isinstance(failure, RemoteError))
    if len(ours) == 1:
        return ours[0]
    alike = (kind for kind in (Unreachable, TunnelRefused) if all(isinstance(failure, kind) for failure in ours))
    return next(alike, RemoteError)(said_once([failure.message for failure in ours]), hint=ours[0].hint)
