"""The log of one pod over as many connections as it takes: every byte once, or a count of those that are gone.

Time says only where a connection begins: a second before the last control line that came. What the connection repeats is
known by the number of that line and by the count of bytes that it has. A node keeps the last part of a log: what it has dropped
shows as a jump of that count. A kubelet may send a file twice on one connection, where its reader is slower than rotation: a
line that is older than the one before it has no place until the next control line.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.places.gke.pods.log_lines import Control, Text, batches, parse, time_of

MARGIN_S = 1.0
HELD_BYTES = 1 << 20  # of lines whose place is not known yet: more than between two control lines


@dataclass(frozen=True, slots=True)
class LogText:
    """The next bytes of the log of a phase; None: from before the first one, or from another program."""

    of: str | None
    data: bytes


@dataclass(frozen=True, slots=True)
class LogLost:
    """So many bytes of the log of a phase are gone, and control lines between them."""

    of: str | None
    size_bytes: int
    controls: int


@dataclass(frozen=True, slots=True)
class NodeSays:
    """A sentence of the node in the place of the log."""

    text: bytes


Event = LogText | LogLost | Control | NodeSays


class PodLog:
    """Where the reading of a pod's log is. `read` takes one connection after the other."""

    def __init__(self) -> None:
        self._n, self._at = -1, 0  # of the last control line, and of the last byte
        self._of: str | None = None
        self._marked_at: float | None = None  # the time of the last control line
        self._stamp = b""  # of the last line that was new
        self._before = b""  # the time of the line before, on this connection
        self._placed = False  # the place of the next line is known
        self._next = 0  # where it begins
        self._held: deque[tuple[bytes, bytes]] = deque()
        self._held_bytes = 0

    @property
    def since(self) -> float | None:
        """Where the next connection is to begin; None: with the first line."""
        return None if self._marked_at is None else self._marked_at - MARGIN_S

    def forget_time(self) -> None:
        """Begin the next connection with the first line: the clock of the node may have gone back."""
        self._marked_at = None

    def read(self, pieces: Iterable[bytes]) -> Iterator[Event]:
        """Yield what is new on a connection that began at `since`, until that ends."""
        self._placed, self._before = False, b""
        self._forget_held()
        for batch in batches(pieces):
            run: list[bytes] = []  # of text that is new
            for stamp, content in batch:
                found = parse(content) if stamp is not None else NodeSays(content)
                if isinstance(found, Text) and stamp is not None:
                    self._text(found.data, stamp, run)
                    continue
                if run:
                    yield LogText(self._of, b"".join(run))
                    run = []
                if isinstance(found, Control) and stamp is not None:
                    yield from self._control(found, stamp)
                elif isinstance(found, NodeSays) and content:
                    yield found
            if run:
                yield LogText(self._of, b"".join(run))

    def rest(self) -> Iterator[Event]:
        """Yield what came last without a place, once nothing comes any more: all that is newer than what was read."""
        read_until = time_of(self._stamp) or -math.inf
        for stamp, data in self._held:
            if (time_of(stamp) or 0.0) > read_until:
                yield LogText(self._of, data)
        self._forget_held()

    def _text(self, data: bytes, stamp: bytes, run: list[bytes]) -> None:
        """Add to `run` what is new of a line, or hold it."""
        self._placed = self._placed and stamp >= self._before
        self._before = stamp
        if not self._placed:
            self._held.append((stamp, data))
            self._held_bytes += len(data)
            while self._held_bytes > HELD_BYTES:
                self._held_bytes -= len(self._held.popleft()[1])
            return
        begin, self._next = self._next, self._next + len(data)
        if self._next > self._at:
            run.append(data[max(self._at - begin, 0) :])
            self._at, self._stamp = self._next, stamp

    def _control(self, found: Control, stamp: bytes) -> Iterator[Event]:
        self._before = stamp
        if found.n <= self._n:  # it was read before
            self._placed, self._next = found.n == self._n, found.at
            self._forget_held()
            return
        if not self._placed:
            yield from self._place_held(found)
        at = self._at if found.of == self._of else 0
        lost_bytes = found.at - at - found.left_out
        if lost_bytes > 0 or found.n > self._n + 1:
            yield LogLost(found.of, max(lost_bytes, 0), found.n - self._n - 1)
        self._n, self._at, self._of = found.n, found.at, found.of
        self._placed, self._next = True, found.at
        self._marked_at, self._stamp = time_of(stamp), stamp
        yield found

    def _place_held(self, before: Control) -> Iterator[Event]:
        """Yield what was held, which ends where this control line is."""
        data = b"".join(data for _, data in self._held)
        self._forget_held()
        if before.n == 0:  # from before the first line of ours
            if data:
                yield LogText(None, data)
            return
        begin = max(before.at - len(data), 0)
        if before.of != self._of:
            self._of, self._at = before.of, 0
        if begin > self._at:
            yield LogLost(before.of, begin - self._at, 0)
            self._at = begin
        data = data[max(self._at - begin, 0) :] if before.at else b""
        if data:
            self._at = before.at
            yield LogText(before.of, data)

    def _forget_held(self) -> None:
        self._held.clear()
        self._held_bytes = 0
