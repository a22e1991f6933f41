"""One piece of work for each of N workers, at the same time, abandonable at any moment.

Threads are daemons and are never joined: a `connect` to a black hole may hold one for seconds, and neither Ctrl-C nor
the end of the process shall wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from orchestrator.errors import HostKeyMismatch, RemoteError, Unreachable

Item = TypeVar("Item")
Result = TypeVar("Result")

LIMIT = 32  # more connections at once gain nothing (measured)


class FanOutAbandoned(RemoteError):
    """The fleet was told to let go of everything; whatever was under way is unknown."""

    def __init__(self) -> None:
        super().__init__("abandoned")


class Bell:
    """Wakes whoever waits when something happened, and for good once it is cancelled."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, happened: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Call with `changed` held."""
        self.changed.wait_for(lambda: self.cancelled.is_set() or happened(), timeout_s)
        if self.cancelled.is_set():
            raise FanOutAbandoned
        return happened()

    def sleep(self, seconds: float) -> None:
        if self.cancelled.wait(seconds):
            raise FanOutAbandoned


def fan_out(items: Sequence[Item], work: Callable[[Item], Result], bell: Bell, *, limit: int = LIMIT) -> list[Result]:
    """The results in order. If any failed: that error, or one that sums up several. A wrong host key comes first."""
    outcomes: dict[int, Result | Exception] = {}
    waiting = list(enumerate(items))[::-1]

    def loop() -> None:
        while True:
            with bell.changed:
                if not waiting or bell.cancelled.is_set():
                    return
                position, item = waiting.pop()
            try:
                outcome: Result | Exception = work(item)
            except Exception as error:
                outcome = error
            with bell.changed:
                outcomes[position] = outcome
                bell.changed.notify_all()

    for _ in range(min(limit, len(items))):
        threading.Thread(target=loop, name="fan-out", daemon=True).start()
    with bell.changed:
        bell.wait_for(lambda: len(outcomes) == len(items) or _worst(outcomes) is not None)
        results = [outcomes[position] for position in sorted(outcomes)]
    failures = [result for result in results if isinstance(result, Exception)]
    if failures:
        raise _worst(outcomes) or summed_up(failures)
    return [result for result in results if not isinstance(result, Exception)]


def _worst(outcomes: dict[int, Result | Exception]) -> HostKeyMismatch | None:
    """Worth stopping for before the others have answered."""
    return next((outcome for outcome in outcomes.values() if isinstance(outcome, HostKeyMismatch)), None)


def summed_up(failures: Sequence[Exception]) -> Exception:
    """The only failure itself; several of ours as one with all their messages."""
    ours = [failure for failure in failures if isinstance(failure, RemoteError)]
    if len(ours) < len(failures):
        return next(failure for failure in failures if not isinstance(failure, RemoteError))
    if len(ours) == 1:
        return ours[0]
    kind = Unreachable if all(isinstance(failure, Unreachable) for failure in ours) else RemoteError
    return kind("; ".join(failure.message for failure in ours), hint=ours[0].hint)
