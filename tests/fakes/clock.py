"""A clock that stands until a test moves it, or until something sleeps: in place of a function, or of the module `time`."""

from collections.abc import Callable


class Clock:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now
        self.on_sleep: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    monotonic = __call__

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()
