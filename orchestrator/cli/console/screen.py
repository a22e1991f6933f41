"""The whole terminal, for a table that is drawn again and again: its keys, its size, and its return to what was there before.

It is drawn on the alternate screen, and left in whatever way the command ends. A process that is killed leaves the terminal to
`reset`, as every program does that reads single keys.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from orchestrator.system.lazy import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    import termios
    import tty
else:  # not on every system
    termios, tty = Later("termios"), Later("tty")

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, TO_END_OF_LINE, BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
KEYS = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\r": "enter", "\n": "enter", "\x7f": "erase", "\b": "erase", "\x1b": "escape", "\x03": "interrupt",
}  # fmt: skip
ESCAPE_S = 0.05  # in which the rest of a key comes that begins with an escape


class Screen:
    """The terminal while `whole_terminal` has it."""

    def __init__(self, keys: int) -> None:
        self._keys = keys

    @property
    def size(self) -> tuple[int, int]:
        """Its columns and its lines, now."""
        return shutil.get_terminal_size()

    def draw(self, lines: Sequence[str]) -> None:
        """Draw these lines from the top; what is beyond the last line of the terminal is left out. Raises OSError."""
        shown = lines[: self.size[1]]
        sys.stdout.write(HOME + f"{TO_END_OF_LINE}\r\n".join(shown) + TO_END_OF_LINE + BELOW)
        sys.stdout.flush()

    def key(self, within_s: float) -> str | None:
        """Return the next key: a character, or one of KEYS by its name; None: none came. "interrupt" also at its end."""
        give_up_at = time.monotonic() + within_s
        columns = self.size
        while (left_s := give_up_at - time.monotonic()) > 0:
            if select.select([self._keys], [], [], min(left_s, 0.25))[0]:
                return self._read()
            if self.size != columns:
                return None  # to be drawn anew
        return None

    def _read(self) -> str:
        data = os.read(self._keys, 1)
        if not data:
            return "interrupt"  # the terminal is gone
        if data == b"\x1b":
            while select.select([self._keys], [], [], ESCAPE_S)[0] and len(data) < 8:
                data += os.read(self._keys, 1)
                if (data[-1:].isalpha() and data != b"\x1bO") or data.endswith(b"~"):
                    break
        elif data[0] >= 0xC0:  # a character of several bytes
            while len(data) < 4 and select.select([self._keys], [], [], ESCAPE_S)[0]:
                data += os.read(self._keys, 1)
                try:
                    data.decode()
                    break
                except UnicodeDecodeError:
                    continue
        text = data.decode(errors="replace")
        return KEYS.get(text, text)


@contextmanager
def whole_terminal() -> Iterator[Screen]:
    """Give a `with` block the whole terminal, and single keys; without a terminal to read from, there are none."""
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    try:
        tty.setcbreak(keys)
        sys.stdout.write(ENTER)
        yield Screen(keys)
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
