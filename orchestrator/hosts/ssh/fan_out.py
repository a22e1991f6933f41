"""Run one function for each of N workers concurrently, in waves, cancellable at any moment.

Threads are daemons and are never joined: a `connect` without an answer may block one for seconds, and neither Ctrl-C nor
the end of the process waits for it.

Fresh items come first, then those that failed with Unreachable and are due again. A try without progress gives its slot to
another: the limit is for the processor, and a try that waits for a dead worker takes none. So dead workers hold up no other.
"""

import functools
import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from orchestrator.errors import HostKeyMismatch, RemoteError, TunnelRefused, Unreachable
from orchestrator.text.terminal import said_once

Item = TypeVar("Item")
Result = TypeVar("Result")

LIMIT = 32  # more connections at once gain nothing (measured)
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class Patience:
    """When a try is idle, and when an item is slow; in seconds."""

    idle_s: float = 3.0  # without progress: the try no longer counts toward the limit
    # Longer than the slowest of those that are done: named, and named again.
    slow_s: tuple[float, ...] = (10.0, 30.0, 60.0)
    say_s: float = 10.0  # while workers are connected to: when the last failure is said, and at most how often
    quiet_s: float = 5.0  # an item that made progress since then is not slow: it has more to do


PATIENCE = Patience()


def never(_item: object) -> float:
    return -math.inf


@dataclass(frozen=True, slots=True)
class Rules(Generic[Item]):
    """How a fan-out goes on. By itself it tries each item once, and names none."""

    until: Callable[[Item], float] = never  # (monotonic) an item that failed with Unreachable is tried again up to then
    moved: Callable[[Item], float] = never  # (monotonic) when it last made progress
    # Receives the items that take much longer than those that are done, and why one of them failed, if it did.
    on_slow: Callable[[Sequence[Item], Unreachable | None], None] = lambda _items, _why: None
    names_failed: bool = False  # `on_slow` receives what failed and is tried again, too, though none is done
    limit: int = LIMIT  # of tries at once
    patience: Patience = PATIENCE


@dataclass(slots=True)
class _Try:
    """What is known of one item."""

    first_at: float
    at: float  # when the newest try began
    running: bool = True
    pause_s: float = RETRY_FIRST_S
    failure: Unreachable | None = None  # of the try before
    named: int = 0  # how often


@dataclass(slots=True)
class Waves(Generic[Item, Result]):
    """Used by one thread at a time."""

    items: Sequence[Item]
    rules: Rules[Item]
    outcomes: dict[int, Result | Exception] = field(default_factory=dict)  # by position
    worst: BaseException | None = None  # ends the fan-out before the other items have answered
    news: int = 0  # grows with what makes `pause_s` shorter
    _fresh: deque[int] = field(init=False)
    _again: list[tuple[float, int]] = field(default_factory=list)  # a heap: when, and which
    _tries: dict[int, _Try] = field(default_factory=dict)  # of items without an outcome
    _running: int = 0
    _slowest_s: float | None = None  # of those that are done

    def __post_init__(self) -> None:
        self._fresh = deque(range(len(self.items)))

    def is_news(self, seen: int) -> bool:
        """Return whether `pause_s` has to be asked again, or nothing is left to wait for."""
        return self.over or self.news != seen

    @property
    def over(self) -> bool:
        return self.worst is not None or len(self.outcomes) == len(self.items)

    def next(self, now: float) -> int | None:
        """Return the position of the item to try now, which counts as begun; None if there is none, or no slot is free."""
        due = bool(self._again) and self._again[0][0] <= now
        if self.over or not (self._fresh or due) or self._slot_free_at(now) > now:
            return None
        self._running += 1
        if self._fresh:
            position = self._fresh.popleft()
            self._tries[position] = _Try(now, now)
        else:
            position = heapq.heappop(self._again)[1]
            known = self._tries[position]
            known.at, known.running = now, True
        return position

    def ended(self, position: int, outcome: Result | Exception, now: float) -> None:
        """Take the outcome of a try: of the item, or, while it may be tried again, of this try only."""
        known, item = self._tries[position], self.items[position]
        known.running = False
        self.news += bool(self._again) and self._running >= self.rules.limit  # a slot becomes free for one that waits
        self._running -= 1
        if isinstance(outcome, Unreachable) and now + known.pause_s <= self.rules.until(item):
            known.failure = outcome
            heapq.heappush(self._again, (now + known.pause_s, position))
            known.pause_s = min(2 * known.pause_s, RETRY_MOST_S)
            self.news += 1
            return
        del self._tries[position]
        self.outcomes[position] = outcome
        if isinstance(outcome, HostKeyMismatch):
            self.worst = outcome
        if not isinstance(outcome, Exception):
            self.news += self._slowest_s is None
            self._slowest_s = max(self._slowest_s or 0.0, now - known.first_at)

    def pause_s(self, now: float) -> float | None:
        """Return for how long neither `next` nor `slow` has anything to return, but for new outcomes; None: for ever."""
        moments = [slow_at for position in self._tries if (slow_at := self._slow_at(position)) is not None]
        if self._fresh or self._again:
            due = now if self._fresh else self._again[0][0]
            moments.append(max(due, self._slot_free_at(now)))
        return max(0.0, min(moments) - now) if moments else None

    def slow(self, now: float) -> list[int]:
        """Return the positions of all slow items, in order, if one of them is to be named now; otherwise nothing."""
        if not any(self._is_slow(position, now) for position in self._tries):
            return []
        together_s = self.rules.patience.slow_s[0] / 5  # those that become slow within it are named together
        for position, known in self._tries.items():
            while self._is_slow(position, now + together_s):
                known.named += 1
        return sorted(position for position, known in self._tries.items() if known.named)

    def failure(self, position: int) -> Unreachable | None:
        """Return why the newest try of an item without an outcome failed; None before a first failure."""
        return self._tries[position].failure

    def _is_slow(self, position: int, now: float) -> bool:
        slow_at = self._slow_at(position)
        return slow_at is not None and slow_at <= now

    def _slow_at(self, position: int) -> float | None:
        """Return when the item is to be named next; None: not before another one is done, or never again."""
        known, patience = self._tries[position], self.rules.patience
        counts = self._slowest_s is not None or (self.rules.names_failed and known.failure is not None)
        if not counts or known.named == len(patience.slow_s):
            return None
        slow_at = known.first_at + (self._slowest_s or 0.0) + patience.slow_s[known.named]
        return max(slow_at, self.rules.moved(self.items[position]) + patience.quiet_s)

    def _slot_free_at(self, now: float) -> float:
        """Return when the next try may begin: now, or when one of those under way counts as idle."""
        if self._running < self.rules.limit:
            return now
        tries = ((known, self.items[position]) for position, known in self._tries.items() if known.running)
        idle_at = sorted(max(known.at, self.rules.moved(item)) + self.rules.patience.idle_s for known, item in tries)
        return max(now, idle_at[self._running - self.rules.limit])


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
