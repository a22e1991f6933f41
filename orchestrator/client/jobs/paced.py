"""What changes often is passed on at a calm rate: at once the first time, then the newest state each time that it is due."""

import threading
import time
from collections.abc import Callable


class Paced:
    """Calls `show` for what changed: for each of several things once in `every_s` at most, and also if nothing follows.

    `lock` is held by the caller of each method, and by the timer while it calls `show`.
    """

    def __init__(self, every_s: float, show: Callable[[int], None], lock: threading.Lock) -> None:
        self._every_s, self._show, self._lock = every_s, show, lock
        self._not_before: dict[int, float] = {}
        self._waiting: set[int] = set()
        self._timer: threading.Timer | None = None
        self._closed = False

    def change(self, key: int) -> None:
        """This one has changed. After `close` that is not shown."""
        if self._closed:
            return
        now = time.monotonic()
        if (wait_s := self._not_before.get(key, now) - now) <= 0:
            self._not_before[key] = now + self._every_s
            self._show(key)
            return
        self._waiting.add(key)
        if self._timer is None:
            self._timer = threading.Timer(wait_s, self._ring)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Show what is left."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting, self._closed = self._waiting, set(), True  # the timer may wait for the lock already
        for key in sorted(waiting):
            self._show(key)

    def _ring(self) -> None:
        with self._lock:
            self._timer = None
            waiting, self._waiting = self._waiting, set()
            for key in waiting:
                self.change(key)
