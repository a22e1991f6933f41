"""The log of one pod, over as many connections as it takes: its lines, each once, and of which phase they are.

A line of the API is a time, and what `vm/pod/output.py` wrote. Nothing in it is trusted: a control line that is not well formed
is a line of the job, for whatever runs in a container may write to its log.

A node gives each line a time, and a connection begins at a time: what it repeats is known by that, and where several lines have
the same one, by their count. So is a file that a kubelet sends twice on one connection, as it does where its reader is slower
than rotation. Control lines have numbers, too: one that is new, and older than the line before it, tells that the clock of the
node went back, and from it on lines count again. How much is gone is known at the end of a phase, by the bytes of its log.
"""

import base64
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.text import parsing

WORD = b"::tpujob"
LINE_BYTES = 1 << 20  # no line of ours is longer; of a longer one the rest is a line of its own
STAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) (.*)", re.DOTALL)
MOST = 1 << 60  # no honest number is larger
METRICS_BYTES = 64 << 10  # of one control line
HELD_BYTES = 1 << 20  # of lines before the first that says of which phase they are
MOMENT_NS = 10_000_000  # between a time and the writing of its line
PHASES = ("setup", "main")

Moment = tuple[bytes, bytes, bytes]  # which compare as times do, for a node keeps its zone


@dataclass(frozen=True, slots=True)
class LogText:
    """The next bytes of the log of a phase; None: from before the first one, or from another program."""

    of: str | None
    data: bytes


@dataclass(frozen=True, slots=True)
class Control:
    """A control line: the `n`th of its pod, in phase `of`."""

    n: int
    of: str | None
    said: Mapping[str, Any]

    def count(self, key: str) -> int:
        """Return a number of bytes that the line says; 0 if it is none."""
        value = self.said.get(key)
        return value if type(value) is int and 0 < value < MOST else 0


@dataclass(frozen=True, slots=True)
class NodeSays:
    """A sentence of the node in the place of the log."""

    text: bytes


Event = LogText | Control | NodeSays


def lines(pieces: Iterable[bytes]) -> Iterator[list[tuple[Moment | None, bytes]]]:
    """Yield the whole lines of a stream with their times, those of each piece together.

    None in the place of a time: the node itself says something, such as an error. What comes after the last line end is left
    out: it is of a line that was cut off.
    """
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece if rest else piece).split(b"\n")
        if len(rest) > LINE_BYTES:
            whole.append(rest)
            rest = b""
        found = [(STAMPED.match(line), line) for line in whole]
        yield [((it[1], (it[2] or b"").ljust(9, b"0"), it[3]), it[4]) if it else (None, line) for it, line in found]


def parse(content: bytes) -> bytes | Control:
    """Return what a line is: bytes of the log of the job, or a control line."""
    if content.startswith(WORD):
        rest = content[len(WORD) :]
        if rest.startswith(b"|") and len(rest) > 1 and rest[-1:] in (b"\\", b"|"):
            return rest[1:-1] + (b"\n" if rest.endswith(b"|") else b"")
        if rest.startswith(b" {") and (found := _control(rest)) is not None:
            return found
    return content + b"\n"


def _control(text: bytes) -> Control | None:
    try:
        said = parsing.loads(text.decode("utf-8", "strict"))
    except (ValueError, RecursionError):
        return None
    number, of = (said.get("n"), said.get("of")) if isinstance(said, dict) else (None, None)
    if type(number) is not int or not 0 <= number < MOST or not (of is None or of in PHASES):
        return None
    return Control(number, of, said)


def metrics_in(text: Any) -> list[bytes]:
    """Return the piece of metrics.jsonl of a control line; b"" says that the file begins anew; [] for what is damaged."""
    if text == "":
        return [b""]
    try:
        piece = zlib.decompressobj().decompress(base64.b64decode(str(text), validate=True), METRICS_BYTES)
    except (ValueError, zlib.error):
        return []
    return [piece] if piece else []


def _is_moment_before(moment: Moment, last: Moment) -> bool:
    return moment[0] == last[0] and int(last[1]) - int(moment[1]) < MOMENT_NS


class PodLog:
    """Where the reading of a pod's log is. `read` takes one connection after the other."""

    def __init__(self) -> None:
        self._n = -1  # of the last control line
        self._of: str | None = None
        self._last: Moment = (b"", b"", b"")  # of the last line
        self._count = 0  # of the lines that were read with this time
        self._held = bytearray()  # of a phase that is not known yet: the log does not begin at its beginning
        self._from_the_first = False

    @property
    def since(self) -> float | None:
        """Where the next connection is to begin, in unix seconds; None: with the first line."""
        if not self._count or self._from_the_first:
            return None
        try:
            return datetime.fromisoformat((self._last[0] + self._last[2]).decode("ascii")).timestamp()
        except (ValueError, OverflowError):
            return None

    def from_the_first(self) -> None:
        """Begin the next connection with the first line: the clock of the node may have gone back."""
        self._from_the_first = True

    def read(self, pieces: Iterable[bytes]) -> Iterator[Event]:
        """Yield what is new on a connection that began at `since`, until that ends."""
        count = 0  # of the lines on this connection that have the time of the last one
        is_new = False  # what comes: the connection has repeated what it repeats
        for batch in lines(pieces):
            run = bytearray()  # of text that is new
            for moment, content in batch:
                if moment is None:
                    if content:
                        yield NodeSays(content)
                    continue
                found = parse(content)
                if moment < self._last and is_new and _is_moment_before(moment, self._last):
                    pass  # of the other stream of the container, whose lines have times of their own
                elif moment < self._last and not (isinstance(found, Control) and found.n == self._n + 1):
                    count, is_new = 0, False
                    continue  # it was read before
                else:
                    if moment != self._last:
                        self._last, self._count, count = moment, 0, 0
                    count += 1
                    if count <= self._count:
                        continue
                    self._count, is_new = count, True
                if isinstance(found, bytes):
                    run += found
                    continue
                yield from self._text(run)
                run = bytearray()
                if found.n > self._n:
                    yield from self._control(found)
            yield from self._text(run)

    def rest(self) -> Iterator[Event]:
        """Yield what came last and belongs to no phase, once nothing comes any more."""
        if self._held:
            yield LogText(None, bytes(self._held))
            self._held.clear()

    def _text(self, run: bytearray) -> Iterator[Event]:
        if run and self._n >= 0:
            yield LogText(self._of, bytes(run))
        elif run:
            self._held += run
            del self._held[:-HELD_BYTES]

    def _control(self, found: Control) -> Iterator[Event]:
        if self._held:  # before the first line of ours, or of the phase that goes on, or that was before
            of = None if found.n == 0 else found.of
            if "began" in found.said and found.of in PHASES:
                of = PHASES[max(PHASES.index(found.of) - 1, 0)]
            yield LogText(of, bytes(self._held))
            self._held.clear()
        self._n, self._of = found.n, found.of
        yield found
