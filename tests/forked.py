"""Children that are forked as a DataLoader's workers are: they do something, tell it, and stay until they are killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

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
