"""The log of one pod: its lines, and all of them over as many connections as it takes, or a count of the bytes that are gone.

A line of the API is a time, and what `vm/pod/output.py` wrote. Nothing in it is trusted: a control line that is not well formed
is a line of the job, for whatever runs in a container may write to its log.

Time says only where a connection begins: a second before the last control line that came. What the connection repeats is
known by the number of that line and by the count of bytes that it has. A node keeps the last part of a log: what it has dropped
shows as a jump of that count. A kubelet may send a file twice on one connection, where its reader is slower than rotation: a
line that is older than the one before it has no place until the next control line.
"""

import base64
import math
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeGuard

from orchestrator.text import parsing

WORD = b"::tpujob"
LINE_BYTES = 1 << 20  # no line of ours is longer; of a longer one the rest is a line of its own
STAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (.*)", re.DOTALL)
MOST = 1 << 60  # no honest number is larger
METRICS_BYTES = 64 << 10  # of one control line


@dataclass(frozen=True, slots=True)
class Text:
    """The next bytes of a phase's log."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Control:
    """A control line: the `n`th of its pod, after `at` bytes of the log of phase `of`."""

    n: int
    at: int
    of: str | None
    said: Mapping[str, Any]

    @property
    def left_out(self) -> int:
        """How many bytes of the log the pod itself has left out before this line."""
        size_bytes = self.said.get("left_out")
        return size_bytes if type(size_bytes) is int and 0 < size_bytes <= self.at else 0


class Line(NamedTuple):
    """A line and its time, in RFC 3339 by the node's clock. None: the node itself says something, such as an error."""

    stamp: bytes | None
    content: bytes


def batches(pieces: Iterable[bytes]) -> Iterator[list[Line]]:
    """Yield the whole lines of a stream, those of each piece together. What comes after the last line end is left out: it is
    of a line that was cut off."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece if rest else piece).split(b"\n")
        if len(rest) > LINE_BYTES:
            whole.append(rest)
            rest = b""
        yield [Line(found[1], found[2]) if (found := STAMPED.match(line)) else Line(None, line) for line in whole]


def time_of(stamp: bytes) -> float | None:
    """Return unix seconds; None for a time that is none."""
    try:
        return datetime.fromisoformat(stamp.decode("ascii")).timestamp()
    except (ValueError, OverflowError):
        return None


def parse(content: bytes) -> Text | Control:
    """Return what a line is."""
    if not content.startswith(WORD):
        return Text(content + b"\n")
    rest = content[len(WORD) :]
    if rest.startswith(b"|") and len(rest) > 1:
        if rest.endswith(b"\\"):
            return Text(rest[1:-1])
        if rest.endswith(b"|"):
            return Text(rest[1:-1] + b"\n")
    if rest.startswith(b" {") and (found := _control(rest)) is not None:
        return found
    return Text(content + b"\n")


def _control(text: bytes) -> Control | None:
    try:
        said = parsing.loads(text.decode("utf-8", "strict"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    number, at, of = said.get("n"), said.get("at"), said.get("of")
    if not (_is_count(number) and _is_count(at) and (of is None or isinstance(of, str))):
        return None
    return Control(number, at, of, said)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < MOST


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


def metrics_in(text: Any) -> list[bytes]:
    """Return the piece of metrics.jsonl of a control line; b"" says that the file begins anew; [] for what is damaged."""
    if text == "":
        return [b""]
    try:
        packed = base64.b64decode(str(text), validate=True)
        piece = zlib.decompressobj().decompress(packed, METRICS_BYTES)
    except (ValueError, zlib.error):
        return []
    return [piece] if piece else []


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
