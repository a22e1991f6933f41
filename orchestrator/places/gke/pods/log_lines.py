"""The lines of a pod's log as the API sends them: a time, and what `vm/pod_output.py` wrote. Nothing in them is trusted.

A control line that is not well formed is a line of the job: whatever runs in a container may write to its log.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypeGuard

from orchestrator.core.text import json_text

WORD = b"::tpujob"
LINE_BYTES = 1 << 20  # no line of ours is longer; of a longer one the rest is a line of its own
STAMPED = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (.*)", re.DOTALL)
MOST = 1 << 60  # no honest number is larger


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
    if rest.startswith(b" {"):
        found = _control(rest)
        if found is not None:
            return found
    return Text(content + b"\n")


def _control(text: bytes) -> Control | None:
    try:
        said = json_text.loads(text.decode("utf-8", "strict"))
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
