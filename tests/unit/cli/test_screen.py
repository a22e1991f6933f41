"""The whole terminal of `tpujob top`, on a real one: keys, size, and that it comes back to what it was, whatever happens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.cli.console.screen import ENTER, LEAVE, Screen
from tests import ROOT
from tests.cli_fixture import take_terminal
from tests.waiting import HANG_S, until

PROGRAM = """
import os, sys
from orchestrator.cli.console.screen import whole_terminal
with whole_terminal() as screen:
    while True:
        screen.draw(["%d x %d" % screen.size, "x" * screen.size[0]])
        key = screen.key(600)
        print("key", ascii(key), end=" ", flush=True)
        if key == "q":
            break
        if key == "x":
            raise ValueError("a fault")
        if key == "interrupt":
            os._exit(9)
"""


class Terminal:
    """The program on a terminal that it controls."""

    def __init__(self, directory: Path, **env: str) -> None:
        self.ours, self.terminal = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(self.terminal)
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), self.terminal)
        environ = {name: each for name, each in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.errors = directory / "errors"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env={**environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), **env},
                stderr=errors,
                start_new_session=True,
                preexec_fn=take_terminal,  # noqa: PLW1509 - it makes few calls
                **streams,
            )
        self.seen = b""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read(self, word: str) -> None:
        """Read on to these characters; what came before them is forgotten."""
        while word.encode() not in self.seen:
            assert select.select([self.ours], [], [], HANG_S)[0], f"{word!r} never came: {self.seen!r}"
            self.seen += os.read(self.ours, 4096)
        self.seen = self.seen.partition(word.encode())[2]

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.terminal) == self.before

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        for fd in (self.ours, self.terminal):
            with contextlib.suppress(OSError):
                os.close(fd)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    made.read(ENTER)
    made.read("80 x 24")
    yield made
    made.close()


@pytest.mark.parametrize(
    "typed, key",
    [
        *[("a", "'a'"), ("\x1b[A", "'up'"), ("\x1bOB", "'down'"), ("\x1b[6~", "'page down'"), ("\r", "'enter'")],
        *[("\x7f", "'erase'"), ("\x1b", "'escape'"), ("é", r"'\xe9'"), ("訓", r"'\u8a13'")],
    ],
)
def test_a_key_comes_by_its_name_however_many_bytes_it_has(terminal: Terminal, typed: str, key: str) -> None:
    terminal.type(typed)
    terminal.read(f"key {key} ")


@pytest.mark.parametrize("typed, key", [(b"\x1b", "escape"), (b"\xe8", "\ufffd")])
def test_a_terminal_that_goes_within_a_key_ends_the_key(
    typed: bytes, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termios, "tcgetattr", lambda _: [])  # a pipe keeps what was typed, a terminal may not
    keys, typing = os.pipe()
    os.write(typing, typed)
    os.close(typing)
    try:
        screen = Screen(keys)
        assert [screen.key(HANG_S), screen.key(HANG_S)] == [key, "interrupt"]
    finally:
        os.close(keys)


def test_it_ends_with_the_terminal_as_it_was(terminal: Terminal) -> None:
    assert not terminal.is_as_before()
    terminal.type("q")
    terminal.read(LEAVE)
    assert terminal.process.wait(HANG_S) == 0 and terminal.is_as_before()


def test_so_it_does_after_a_fault_whose_traceback_is_on_the_usual_screen(terminal: Terminal) -> None:
    terminal.type("x")
    terminal.read(LEAVE)
    assert terminal.process.wait(HANG_S) == 1 and terminal.is_as_before() and "a fault" in terminal.errors.read_text()


@pytest.mark.parametrize("how, code", [("\x03", -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_so_it_does_after_a_signal(terminal: Terminal, how: str | int, code: int) -> None:
    terminal.type(how) if isinstance(how, str) else terminal.process.send_signal(how)
    terminal.read(LEAVE)
    assert terminal.process.wait(HANG_S) == code and terminal.is_as_before()


def test_ctrl_z_gives_the_terminal_back_and_it_is_taken_again_afterwards(terminal: Terminal) -> None:
    process = psutil.Process(terminal.process.pid)
    terminal.process.send_signal(signal.SIGTSTP)  # as the terminal does; here no shell is there to be told
    terminal.read(LEAVE)
    # The kernel stops no process whose group has no shell: this one goes on by itself.
    terminal.read(ENTER)
    terminal.read("80 x 24")
    assert not terminal.is_as_before() and process.is_running()
    terminal.type("q")
    assert terminal.process.wait(HANG_S) == 0 and terminal.is_as_before()


def test_after_a_stop_from_outside_it_takes_the_terminal_again(terminal: Terminal) -> None:
    terminal.process.send_signal(signal.SIGSTOP)
    until(lambda: psutil.Process(terminal.process.pid).status() == psutil.STATUS_STOPPED)
    termios.tcsetattr(terminal.terminal, termios.TCSANOW, terminal.before)  # a shell does so
    terminal.process.send_signal(signal.SIGCONT)
    terminal.read(ENTER)
    terminal.type("a")
    terminal.read("key 'a'")


def test_another_size_is_drawn_at_once(terminal: Terminal) -> None:
    terminal.resize(20, 10)
    terminal.read("key None")
    terminal.read("20 x 10")


def test_a_line_that_fills_its_row_is_not_cut_by_what_clears_the_row(terminal: Terminal) -> None:
    terminal.type("a")
    terminal.read("80 x 24\r\r\n\x1b[2K" + "x" * 80 + "\r\r\n")  # the terminal adds a return


def test_a_terminal_that_is_closed_ends_it(terminal: Terminal) -> None:
    os.close(terminal.terminal)
    os.close(terminal.ours)
    # 120: what is left for a terminal that is gone cannot be written, as Python finds when it ends.
    assert terminal.process.wait(HANG_S) in (9, 120, 129)
