"""Wait for an event that the product publishes: a request in the log, a row in the ledger, a line on a pipe; and a clock.

No wait has a time of its own. `HANG_S` only ends what would never end, with words that say what did not come: a test that
needs it to be longer, or that passes because of it, is wrong.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")

HANG_S = 180.0
LOOK_S = 0.02


def until(question: Callable[[], T], what: str = "it", wanted: Callable[[T], object] = bool) -> T:
    """Ask until the answer is true, or a wanted one, and return it. AssertionError after HANG_S, with `what` and the last."""
    deadline = time.monotonic() + HANG_S
    while not wanted(answer := question()):
        assert time.monotonic() < deadline, f"{what} did not come about in {HANG_S:.0f} s: {answer!r}"
        time.sleep(LOOK_S)
    return answer


class Clock:
    """A clock that stands until a test moves it."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def has_ended(pid: int) -> bool:
    """Return whether the process has ended, also before the one that adopted it has read its exit status."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
