"""What changes often is passed on at a calm rate: at once the first time, then the newest state each time that it is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Paced:
    """Calls `show` for what changed: for each of several things once in `every_s` at most, and also if nothing follows.

    `lock` is held by the caller of each method, and by the timer while it calls `show`.
    """

    def __init__(self, every_s: float, show: Callable[[int], None], lock: threading.Lock) -> None:
        self._every_s, self._show, self._lock = every_s, show, lock
        self._changed: dict[int, float] = {}  # what was not shown yet, with the time from which on it may be
        self._shown_at: dict[int, float] = {}
        self._timer: threading.Timer | None = None

    def change(self, key: int) -> None:
        """This one has changed."""
        self._changed[key] = self._shown_at.get(key, -self._every_s) + self._every_s
        self._show_due()

    def close(self) -> None:
        """Show what is left."""
        if self._timer is not None:
            self._timer.cancel()
        for key in list(self._changed):
            self._changed[key] = 0.0
        self._show_due()

    def _show_due(self) -> None:
        now = time.monotonic()
        for key in [key for key, due in self._changed.items() if due <= now]:
            del self._changed[key]
            self._shown_at[key] = now
            self._show(key)
        if self._changed and self._timer is None:
            self._timer = threading.Timer(min(self._changed.values()) - now, self._ring)
            self._timer.daemon = True
            self._timer.start()

    def _ring(self) -> None:
        with self._lock:
            self._timer = None
            self._show_due()
