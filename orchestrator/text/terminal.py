"""Text for a terminal: the output of workers made safe, what many say alike said once, what a log leaves out, and tables. Pure.

Remote output is data from a machine that may be hostile: it must not move the cursor, set the title, write to the
clipboard (OSC 52), or fill the memory with one endless line.
"""

import json
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from orchestrator.text.units import format_size

LINE_CHARS = 4_000
NAME_CHARS = 200
LINE_BYTES = 4 * LINE_CHARS  # of one line, kept before cleaning: UTF-8 needs 4 bytes a character at most

# No sequence goes on in the next line: one that never ends hides the rest of its own line only.
ESCAPES = re.compile(
    r"""
      (?:\x1b\[|\x9b) [0-?]* [ -/]* [@-~]?                      # CSI: colours, cursor
    | (?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f]) [^\x07\x1b\x9c\n]* (?:\x07|\x1b\\|\x9c)?   # OSC, DCS, SOS, PM, APC
    | \x1b [ -/]* [0-~]?                                        # everything else that ESC starts
    """,
    re.VERBOSE,
)
_NO_UTF8 = re.compile(r"(?<!\\)((?:\\\\)*)\\udc([89a-f][0-9a-f])")
UP = b"\x1b[A"
COLORS = re.compile(r"\x1b\[[0-9;]*m")  # nearly all that jobs print, and found faster
# Control characters but tab and newline; line and paragraph separators; those that reorder or hide text.
_UNPRINTABLE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff"
)
UNPRINTABLE = re.compile(f"[\n{_UNPRINTABLE}]")
UNPRINTABLE_IN_LINES = re.compile(f"[{_UNPRINTABLE}]")
PLAIN = bytes(range(0x20, 0x7F)) + b"\t\n"


def clean(line: bytes) -> str:
    """Return one line without its newline; of a progress bar that redraws itself with carriage returns, the last state."""
    return printable(_last_state(line).decode(errors="replace"))


def printable(text: str) -> str:
    """Return the text of one line without escape sequences and control characters, LINE_CHARS at most."""
    text = harmless(text)
    return text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 1] + "…"


def spelled(name: str) -> str:
    """Return a name of a file on one line; what a terminal does not show as it is, as an escape of JSON; a long one in part.

    A byte that is no UTF-8, a surrogate in Python, is `\\xff`.
    """
    if not name.isprintable():
        name = _NO_UTF8.sub(r"\1\\x\2", json.dumps(name)[1:-1])
    return name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS // 2 - 1]}…{name[-NAME_CHARS // 2 :]}"


def harmless(text: str) -> str:
    """Return the text without escape sequences and control characters; tabs stay."""
    return text if text.isprintable() else UNPRINTABLE.sub("", ESCAPES.sub("", COLORS.sub("", text)))


def harmless_lines(text: str) -> str:
    """Return `harmless` of each line."""
    text = COLORS.sub("", text)
    return text if _is_printable(text) else UNPRINTABLE_IN_LINES.sub("", ESCAPES.sub("", text))


def _is_printable(lines: str) -> bool:
    return lines.replace("\n", "").replace("\t", "").isprintable()


class LineSplitter:
    """Bytes in, clean lines out, for one worker. Holds one line at most, and of that no more than `LINE_BYTES`.

    Whole lines are cleaned many at once: a job may print hundreds of thousands of lines a second. `hide` is applied to what the
    cleaning changed, because what an escape sequence tore apart may be a secret without it.
    """

    def __init__(self, hide: Callable[[str], str] = lambda text: text) -> None:
        self._hide = hide
        self._line = bytearray()
        self._torn = b""  # what may lead from one bar to the other once it is whole
        self._redrawn = False  # a carriage return came: the next byte starts the line anew
        self._returns = 0  # how many came in this line: one alone may be of a line end

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; return the lines that end in them."""
        data = self._torn + data
        begin = data.rfind(b"\x1b", -len(UP) - 1)  # here `UP` and a line end may have begun
        self._torn = data[begin:] if begin >= 0 and (UP + b"\r").startswith(data[begin:]) else b""
        # Of two progress bars the lower one: this leads from the upper one to it again, so the line is drawn anew.
        data = data[: len(data) - len(self._torn)].replace(UP + b"\r\n", b"\r").replace(UP + b"\n", b"\r")
        begin, end, lines = 0, data.rfind(b"\n"), []
        if end >= 0 and (self._line or self._redrawn):
            begin = data.find(b"\n") + 1
            lines.append(self._one(data[: begin - 1]))
        if begin <= end:
            lines += self._whole(data[begin:end])
        self._add(data[end + 1 :])
        return lines

    def flush(self) -> list[str]:
        """Return the text after the last newline, at the end of the stream."""
        self._add(self._torn)
        self._torn = b""
        return [self._take()] if self._line else []

    @property
    def is_bar(self) -> bool:
        """Whether the line that has not ended yet redraws itself."""
        return self._returns > 1 and bool(self._line)

    def bar(self) -> str:
        """Return that line as it is now."""
        return self._hide(clean(bytes(self._line)))

    def _whole(self, data: bytes) -> list[str]:
        """Return these lines, clean: the same as each by itself, and much faster."""
        is_plain = data.isascii() and not data.translate(None, PLAIN)
        if b"\r" in data:
            data = b"\n".join(_last_state(line) if b"\r" in line else line for line in data.split(b"\n"))
        text = data.decode(errors="replace")
        lines = text.split("\n")
        if max(map(len, lines)) > LINE_CHARS:
            return [self._one(line) for line in data.split(b"\n")]
        if is_plain or ("\x1b" not in text and _is_printable(text)):
            return lines
        return self._hide(harmless_lines(text)).split("\n")

    def _one(self, line: bytes) -> str:
        self._add(line)
        return self._take()

    def _add(self, part: bytes) -> None:
        self._returns += part.count(b"\r")
        if state := _last_state(part):
            if self._redrawn or b"\r" in part.rstrip(b"\r"):
                self._line.clear()
            self._line += state[: LINE_BYTES - len(self._line)]
            self._redrawn = False
        self._redrawn |= part.endswith(b"\r")

    def _take(self) -> str:
        line = self._hide(clean(bytes(self._line)))
        self._line.clear()
        self._redrawn, self._returns = False, 0
        return line


def _last_state(line: bytes) -> bytes:
    """Return what a line shows that redraws itself: what came last."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class LeftOut(bytes):
    """A piece of a log without a byte, in whose place the log has `size_bytes` that are left out."""

    size_bytes: int

    def __new__(cls, size_bytes: int) -> "LeftOut":
        piece = super().__new__(cls)
        piece.size_bytes = size_bytes
        return piece


def gap_line(size_bytes: int) -> str:
    """Return the line that stands in the place of what is left out."""
    return f"tpujob: {format_size(size_bytes)} of the log left out here (limits.max_log)"


MOST_RANGES = 4  # of workers, in a text
MOST_KINDS = 3  # of messages, in an error
TEXT_CHARS = 500  # of a text are compared

_WORKER = re.compile(r"\bworker(\d+)\b")
_VARYING = re.compile(
    r"""
      \bworker\d+\b
    | \b0x[0-9a-f]+\b
    | \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b           # UUID
    | (?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![\w:])   # IPv6, and times of day
    | \b(?=[a-f]*\d)[0-9a-f]{7,}\b                              # hashes and ids
    | \d+(?:[.,:]\d+)*(?:e[+-]?\d+)?                            # numbers, IPv4, ports
    """,
    re.VERBOSE | re.IGNORECASE,
)

Item = TypeVar("Item")


def masked(text: str) -> str:
    """Return the text with `#` in place of everything in which alike texts differ."""
    return _VARYING.sub("#", text[:TEXT_CHARS])


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Return the items with the same key together, in the order of the first of each group."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def worker_names(indexes: Iterable[int]) -> str:
    """Return the names of workers, neighbors as a range: `worker0 to worker62 and worker64`; of many ranges the first."""
    ranges: list[list[int]] = []
    for index in sorted(set(indexes)):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    parts = [part for first, last in ranges for part in _parts(first, last)]
    names = [name for name, _ in parts[:MOST_RANGES]]
    if left := sum(count for _, count in parts[MOST_RANGES:]):
        names.append(f"{left} more")
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def said_once(messages: Sequence[str]) -> str:
    """Return messages of several workers as one: the first of those that are alike, with the names of their workers."""
    groups = grouped(messages, masked)
    parts = [group[0] if len(group) == 1 else f"{group[0]} ({_alike(group)})" for group in groups[:MOST_KINDS]]
    if left := sum(map(len, groups[MOST_KINDS:])):
        parts.append(f"and {left:,} more")
    return "; ".join(parts)


def _alike(messages: Sequence[str]) -> str:
    named = [found for message in messages if (found := _WORKER.search(message))]
    if len(named) < len(messages):
        return f"{len(messages)} alike"
    return f"{len(messages)} alike: {worker_names(int(found[1]) for found in named)}"


def _parts(first: int, last: int) -> list[tuple[str, int]]:
    """Return a range as it is named, and how many workers each name stands for; two neighbors are named each."""
    if last - first > 1:
        return [(f"worker{first} to worker{last}", last - first + 1)]
    return [(f"worker{index}", 1) for index in range(first, last + 1)]


class Table(NamedTuple):
    """A table as cells of text. Columns, from 0: `right` are aligned right, `optional` are left out where there is no room."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[int, ...] = ()
    optional: tuple[int, ...] = ()

    def lines(self) -> list[str]:
        """Return one line for the heading and for each row, aligned, two spaces between columns."""
        every = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        return [
            "  ".join(
                cell.rjust(width) if number in self.right else cell.ljust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in every
        ]
