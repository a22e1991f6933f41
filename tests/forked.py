"""Processes of the tests that are killed: forked as a DataLoader's workers are, or killed at a chosen line."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


class Child:
    """Forked at once. `said` is what `do` returned there, in words; then it stays, whatever becomes of its parent.

    `then` may fork a child of its own, with `keep`; its pid is `grandchild`. Leaving the context kills both.
    """

    def __init__(self, do: Callable[[], object], then: Callable[[], int] | None = None) -> None:
        self._news, tell = os.pipe()
        self._text: list[str] | None = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                words = [str(do())] if then is None else [str(do()), str(then())]
            except BaseException as error:
                words = [f"{type(error).__name__}: {error}"]
            try:
                os.write(tell, "\n".join(words).encode() + b"\0")
                while True:
                    signal.pause()
            finally:
                os._exit(1)  # never back into pytest
        os.close(tell)

    def _lines(self) -> list[str]:
        if self._text is None:
            news = b""
            while not news.endswith(b"\0"):  # not until the end of the pipe: its own children have it, too
                piece = os.read(self._news, 65536)
                assert piece, "it ended without a word"
                news += piece
            os.close(self._news)
            self._text = news[:-1].decode().split("\n")
        return self._text

    @property
    def said(self) -> str:
        return self._lines()[0]

    @property
    def grandchild(self) -> int | None:
        return int(self._lines()[1]) if len(self._lines()) > 1 else None

    def keep(self) -> int:
        """Return its pid, once it has told. Its parent may be killed: the test that reads the pid kills it."""
        self._lines()
        return self.pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.pid = 0

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in (self.pid, self.grandchild):
            if pid:
                os.kill(pid, signal.SIGKILL)
        if self.pid:
            os.waitpid(self.pid, 0)


def in_thread(do: Callable[[], T]) -> T:
    """What it returns in a thread of its own, which ends with it."""
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(do()))
    thread.start()
    thread.join()
    return answers[0]


def dies_at(line: int, module: ModuleType, do: Callable[[], object]) -> bool:
    """Call `do` in a child process that is killed before line number `line`, counted from 0, that it runs of the module.

    False: it finished before it came so far.
    """
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename != module.__file__:
                return None
            left -= event == "line"
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        try:
            sys.settrace(trace)
            do()
            os._exit(0)
        finally:
            os._exit(1)  # never back into pytest
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code == -signal.SIGKILL
