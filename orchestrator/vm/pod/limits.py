"""What ends the job of a pod before its own end: its time limit, silence, and SIGTERM, which Kubernetes sends before it kills.

A thread watches, so that a stdout that nothing reads keeps no limit from being kept.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

LOOK_S = 0.1
STOP_GRACE_S, LEAST_GRACE_S = 10.0, 0.5
LAST_MINUTE_S = 60.0  # kept free before the end, to stop the job and to send its results
SENDING_S = 30.0  # after SIGTERM and the grace of the job, for its results: 20 s less than the pod has


class Limits:
    """`why` is set when the job is to end: "deadline", "stalled" or "stopped"."""

    def __init__(self, max_duration_s: float, stall_s: float | None, grace_s: float) -> None:
        """`grace_s`: what the job has after SIGTERM."""
        self.began_at = began = time.monotonic()
        self.stall_s, self.grace_s = stall_s, grace_s
        self.why: str | None = None
        self._job_ends_at: float | None = began + max_duration_s - min(LAST_MINUTE_S, max_duration_s / 10)
        self._all_ends_at = began + max_duration_s
        self.terminated = False  # SIGTERM arrived
        self._stop: Callable[[float], None] | None = None
        self._log: str | None = None
        self._size, self._moved_at = -1, began
        self._lock = threading.Lock()
        threading.Thread(target=self._keep, name="limits", daemon=True).start()

    def terminate(self, *_: Any) -> None:
        """Note SIGTERM. A signal handler."""
        if not self.terminated:
            self._all_ends_at = min(self._all_ends_at, time.monotonic() + self.grace_s + SENDING_S)
            self.terminated = True

    def shorten(self, used_s: float) -> None:
        """Leave the job so much less time: starts before this one have used it."""
        with self._lock:
            self._all_ends_at -= used_s
            if self._job_ends_at is not None:
                self._job_ends_at -= used_s

    def left_s(self) -> float:
        """Return the seconds until everything is to end."""
        return self._all_ends_at - time.monotonic()

    def watch(self, stop: Callable[[float], None] | None, log: str | None) -> None:
        """Call `stop` with a grace period, once, when the phase is to end; None: no more. `log`: None if it may be silent."""
        with self._lock:
            self._stop, self._log, self._size, self._moved_at = stop, log, -1, time.monotonic()

    def job_ended(self, *, by_itself: bool = False) -> None:
        """Leave `why` as it is. `by_itself`: forget what came since, while the log of the job was sent."""
        with self._lock:
            self._job_ends_at = None
            if by_itself:
                self.why = None

    def _keep(self) -> None:
        while True:
            with self._lock:
                if self.why is None and self._job_ends_at is not None:
                    self.why = self._reason(self._job_ends_at)
                if self.why is not None and self._stop is not None:
                    stop, self._stop = self._stop, None
                    grace_s = self.left_s() - SENDING_S if self.terminated else min(STOP_GRACE_S, self.left_s() / 2)
                    stop(max(LEAST_GRACE_S, grace_s))
            time.sleep(LOOK_S)

    def _reason(self, job_ends_at: float) -> str | None:
        now = time.monotonic()
        if self.terminated:
            return "stopped"
        if now >= job_ends_at:
            return "deadline"
        if self.stall_s is None or self._log is None:
            return None
        try:
            size = os.stat(self._log).st_size  # noqa: PTH116 - as in `phases`
        except OSError:
            size = 0
        if size != self._size:
            self._size, self._moved_at = size, now
        return "stalled" if now - self._moved_at > self.stall_s else None
