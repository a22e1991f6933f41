"""The whole terminal, for a table that is drawn again and again: its keys, its size, and its return to what was there before.

It is drawn on the alternate screen, and left in whatever way the command ends, also while Ctrl-Z stops it. A process that is
killed leaves the terminal to `reset`, as every program does that reads single keys.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from orchestrator.system.lazy import Later

TYPE_CHECKING = False
if TYPE_CHECKING:
    import termios
    import tty
else:  # not on every system
    termios, tty = Later("termios"), Later("tty")

# The alternate screen without a cursor, where a line that is too long ends at the edge.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME, CLEAR_LINE, BELOW = "\x1b[H", "\x1b[2K", "\x1b[J"
KEYS = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1bOA": "up", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\r": "enter", "\n": "enter", "\x7f": "erase", "\b": "erase", "\x1b": "escape", "\x03": "interrupt",
}  # fmt: skip
ESCAPE_S = 0.05  # in which the rest of a key comes that begins with an escape
LOOK_S = 0.25  # between two looks at the size, and at what signals said
ENDS = ("SIGTERM", "SIGHUP")


class Screen:
    """The terminal while `whole_terminal` has it."""

    def __init__(self, keys: int) -> None:
        self._keys, self._before = keys, termios.tcgetattr(keys)
        self._stops = self._resumed = False
        self._told = shutil.get_terminal_size()

    def enter(self) -> None:
        """Take the terminal. Raises OSError, termios.error."""
        tty.setcbreak(self._keys)
        sys.stdout.write(ENTER)

    def leave(self) -> None:
        """Give it back as it was; one that is gone needs nothing."""
        with suppress(OSError, ValueError):
            sys.stdout.write(LEAVE)
            sys.stdout.flush()
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def stops(self, _number: int, _frame: object) -> None:
        """Ctrl-Z: noted here, and done where nothing is being drawn."""
        self._stops = True

    def resumed(self, _number: int, _frame: object) -> None:
        """The process goes on, and the shell has had the terminal meanwhile."""
        self._resumed = True

    def _obeyed(self) -> bool:
        """Do what signals asked for; return whether all is to be drawn anew."""
        if self._stops:
            self._stops = False
            self.leave()
            before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTSTP)  # here the process stops
            signal.signal(signal.SIGTSTP, before)
            self._resumed = True
        if not self._resumed:
            return False
        self._resumed = False
        self.enter()
        return True

    @property
    def size(self) -> tuple[int, int]:
        """Its columns and its lines, now. Once they are others, `key` lets all be drawn anew."""
        self._told = shutil.get_terminal_size()
        return self._told

    def draw(self, lines: Sequence[str]) -> None:
        """Draw these lines from the top; what is beyond the last line of the terminal is left out. Raises OSError."""
        shown = lines[: self._told[1]]
        # Cleared before it is written: after a line that fills its row, the cursor is on its last character.
        rest = f"\r\n{BELOW}" if len(shown) < self._told[1] else ""
        sys.stdout.write(HOME + "\r\n".join(CLEAR_LINE + line for line in shown) + rest)
        sys.stdout.flush()

    def key(self, within_s: float) -> str | None:
        """Return the next key: a character, or one of KEYS by its name; "interrupt" also where the terminal is gone.

        None: none came, or all is to be drawn anew.
        """
        give_up_at = time.monotonic() + within_s
        while (left_s := give_up_at - time.monotonic()) > 0:
            if select.select([self._keys], [], [], min(left_s, LOOK_S))[0]:
                return self._read()
            if self._obeyed() or shutil.get_terminal_size() != self._told:
                return None
        return None

    def _byte(self) -> bytes:
        """Return the next byte of a key; none: no other comes, or the terminal is gone."""
        with suppress(OSError):
            if select.select([self._keys], [], [], ESCAPE_S)[0]:
                return os.read(self._keys, 1)
        return b""

    def _read(self) -> str:
        data = self._byte()
        if not data:
            return "interrupt"  # the terminal is gone
        if data == b"\x1b":
            while len(data) < 8 and (byte := self._byte()):
                data += byte
                if (byte.isalpha() and data != b"\x1bO") or byte == b"~":
                    break
        elif data[0] >= 0xC0:  # a character of several bytes
            while len(data) < 4 and (byte := self._byte()):
                data += byte
                try:
                    data.decode()
                    break
                except UnicodeDecodeError:
                    continue
        text = data.decode(errors="replace")
        return KEYS.get(text, text)


@contextmanager
def whole_terminal() -> Iterator[Screen]:
    """Give a `with` block the whole terminal, and single keys. SIGTERM and SIGHUP end it with SystemExit."""
    screen = Screen(sys.stdin.fileno())
    handlers: dict[str, Callable[..., Any]] = dict.fromkeys(ENDS, _end)
    handlers |= {"SIGTSTP": screen.stops, "SIGCONT": screen.resumed}
    before = {}
    try:
        for name, handler in handlers.items():
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                before[number] = signal.signal(number, handler)
        screen.enter()
        yield screen
    finally:
        screen.leave()
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
