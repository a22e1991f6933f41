"""Virtual time: one heap of events, and the clocks of machines, which run slightly wrong.

True time is the clock of the server, in Unix seconds. Nothing sleeps; `run` jumps from one event to the next.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

EPOCH = 1_800_000_000.0


class Timeline:
    __slots__ = ("_heap", "_seq", "events", "now", "stopped")

    def __init__(self) -> None:
        self.now = EPOCH
        self.events = 0
        self.stopped = False
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._seq = 0

    def at(self, when: float, act: Callable[..., Any], *args: Any) -> None:
        self._seq += 1
        heappush(self._heap, (when if when > self.now else self.now, self._seq, act, args))

    def after(self, delay_s: float, act: Callable[..., Any], *args: Any) -> None:
        self._seq += 1
        heappush(self._heap, (self.now + delay_s if delay_s > 0 else self.now, self._seq, act, args))

    def run(self, until: float) -> None:
        """Run until no event is left, `stop` is called, or `until` is reached."""
        heap = self._heap
        while heap and not self.stopped:
            when, _, act, args = heappop(heap)
            if when > until:
                self.now = until
                return
            self.now = when
            self.events += 1
            act(*args)

    def stop(self) -> None:
        self.stopped = True


class Clock:
    """The clocks of one machine: the wall clock is off by `offset_s`, and both clocks drift by `drift` (0.01: one percent)."""

    __slots__ = ("_boots", "_started_at", "_timeline", "drift", "offset_s")

    def __init__(self, timeline: Timeline, offset_s: float = 0.0, drift: float = 0.0) -> None:
        self._timeline = timeline
        self.offset_s, self.drift = offset_s, drift
        self._boots, self._started_at = 0, timeline.now

    def restart(self) -> None:
        self._boots, self._started_at = self._boots + 1, self._timeline.now

    def boot_id(self) -> str:
        return f"boot {self._boots}"

    def boot_s(self) -> float:
        return (self._timeline.now - self._started_at) * (1.0 + self.drift)

    def wall(self) -> float:
        return self._started_at + self.offset_s + self.boot_s()

    def true_s(self, seconds: float) -> float:
        """Return the true seconds in which this clock advances by `seconds`."""
        return seconds / (1.0 + self.drift)
