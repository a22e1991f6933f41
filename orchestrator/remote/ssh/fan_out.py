"""Run one function for each of N workers concurrently; cancellable at any moment.

Threads are daemons and are never joined: a `connect` without an answer may block one for seconds, and neither Ctrl-C nor
the end of the process waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from orchestrator.core.text.alike import said_once
from orchestrator.errors import HostKeyMismatch, RemoteError, TunnelRefused, Unreachable

Item = TypeVar("Item")
Result = TypeVar("Result")

LIMIT = 32  # more connections at once gain nothing (measured)


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
    items: Sequence[Item], work: Callable[[Item], Result], wakeup: Wakeup, *, limit: int = LIMIT
) -> list[Result]:
    """Return the results in order of `items`. Raises the only error, or one that combines several; HostKeyMismatch first."""
    outcomes: dict[int, Result | Exception] = {}
    waiting = list(enumerate(items))[::-1]

    def loop() -> None:
        while True:
            with wakeup.changed:
                if not waiting or wakeup.canceled.is_set():
                    return
                position, item = waiting.pop()
            try:
                outcome: Result | Exception = work(item)
            except Exception as error:
                outcome = error
            with wakeup.changed:
                outcomes[position] = outcome
                wakeup.changed.notify_all()

    for _ in range(min(limit, len(items))):
        threading.Thread(target=loop, name="fan-out", daemon=True).start()
    with wakeup.changed:
        wakeup.wait_for(lambda: len(outcomes) == len(items) or _worst(outcomes) is not None)
        results = [outcomes[position] for position in sorted(outcomes)]
    failures = [result for result in results if isinstance(result, Exception)]
    if failures:
        raise _worst(outcomes) or combined_error(failures)
    return [result for result in results if not isinstance(result, Exception)]


def _worst(outcomes: dict[int, Result | Exception]) -> HostKeyMismatch | None:
    """Return the error that ends the fan-out before the other workers answer."""
    return next((outcome for outcome in outcomes.values() if isinstance(outcome, HostKeyMismatch)), None)


def combined_error(failures: Sequence[Exception]) -> Exception:
    """Return the only failure, or one error with all messages, alike ones once. A foreign exception (a bug) comes first."""
    ours = [failure for failure in failures if isinstance(failure, RemoteError)]
    if len(ours) < len(failures):
        return next(failure for failure in failures if not isinstance(failure, RemoteError))
    if len(ours) == 1:
        return ours[0]
    alike = (kind for kind in (Unreachable, TunnelRefused) if all(isinstance(failure, kind) for failure in ours))
    return next(alike, RemoteError)(said_once([failure.message for failure in ours]), hint=ours[0].hint)
