"""Makes the output of workers safe for a terminal: whole lines, no control characters, bounded length.

Remote output is data from a machine that may be hostile: it must not move the cursor, set the title, write to the
clipboard (OSC 52), or fill the memory with one endless line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

LINE_CHARS = 4_000
LINE_BYTES = 4 * LINE_CHARS  # of one line, kept before cleaning: UTF-8 needs 4 bytes a character at most

ESCAPES = re.compile(
    r"""
      (?:\x1b\[|\x9b) [0-?]* [ -/]* [@-~]?                      # CSI: colours, cursor
    | (?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f]) [^\x07\x1b\x9c]* (?:\x07|\x1b\\|\x9c)?   # OSC, DCS, SOS, PM, APC
    | \x1b [ -/]* [0-~]?                                        # everything else that ESC starts
    """,
    re.VERBOSE,
)
# Control characters but tab; line and paragraph separators; those that reorder or hide text.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def clean(line: bytes) -> str:
    """Return one line without its newline; of a progress bar that redraws itself with carriage returns, the last state."""
    states = [state for state in line.split(b"\r") if state.strip()]
    return printable(states[-1].decode(errors="replace") if states else "")


def printable(text: str) -> str:
    text = harmless(text)
    return text if len(text) <= LINE_CHARS else text[: LINE_CHARS - 1] + "…"


def harmless(text: str) -> str:
    """Return the text without escape sequences and control characters; tabs stay."""
    return UNPRINTABLE.sub("", ESCAPES.sub("", text))


class LineSplitter:
    """Bytes in, clean lines out, for one worker. Holds one line at most, and of that no more than `LINE_BYTES`."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._redrawn = False  # a carriage return came: the next byte starts the line anew

    def feed(self, data: bytes) -> Iterator[str]:
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._add(part)
            yield self._take()
        self._add(rest)

    def flush(self) -> Iterator[str]:
        """Yield the text after the last newline, at the end of the stream."""
        if self._line:
            yield self._take()

    def _add(self, part: bytes) -> None:
        for count, state in enumerate(part.split(b"\r")):
            self._redrawn |= count > 0
            if state and self._redrawn:
                self._line.clear()
                self._redrawn = False
            self._line += state[: LINE_BYTES - len(self._line)]

    def _take(self) -> str:
        line = clean(bytes(self._line))
        self._line.clear()
        self._redrawn = False
        return line
