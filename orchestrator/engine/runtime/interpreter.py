"""The real driver of programs: performs each effect on the world, listens for signals, and can be told to crash.

Slow effects run in a thread while the main thread waits in an inbox that signal handlers also write to, so that Ctrl-C is
acted on at once even in the middle of a network call. The abandoned call ends by itself; whatever effect it has is found
by name afterwards, exactly as after a crash.
"""

from __future__ import annotations

import functools
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from orchestrator.engine.effects.base import Effect, Program, Report, Shield, Sleep, World
from orchestrator.errors import Interrupted

T = TypeVar("T")

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
CRASH_AT = "TPUJOB_CRASH_AT"
# Python runs a signal's handler in the main thread, once that does anything at all. One that arrived just before it began to
# wait, or that the system gave to another thread, wakes nobody.
HEARD_WITHIN_S = 0.5


class Abandoned(BaseException):
    """The third signal during a teardown: the person insists on leaving. Nothing is lost: the ledger knows."""


@dataclass(frozen=True, slots=True)
class _Done:
    ticket: int
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Signal:
    number: int


@dataclass(slots=True)
class Interpreter:
    """Drives one program at a time from the main thread."""

    world: World
    _inbox: queue.SimpleQueue[_Done | _Signal] = field(default_factory=queue.SimpleQueue)
    _ticket: int = 0
    _shielded: bool = False
    _received: list[int] = field(default_factory=list)
    pending: Interrupted | None = None  # came under a shield, and nobody has unwound for it yet
    _crash: _CrashPoint | None = None

    def run(self, program: Program[T]) -> T:
        """The program's result, or the exception that it ended with."""
        self._crash = _crash_point(os.environ.get(CRASH_AT, ""))
        self._shielded = False
        with self._signals():
            answer: Any = None
            error: BaseException | None = None
            while True:
                try:
                    effect = program.send(answer) if error is None else program.throw(error)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                answer, error = self._answer(effect)

    def _answer(self, effect: Effect[Any]) -> tuple[Any, BaseException | None]:
        if self._crash is not None:
            self._crash.before(effect)
        if isinstance(effect, Shield):
            self._shielded = effect.raised
        if self.pending is not None and not self._shielded:
            interrupted, self.pending = self.pending, None
            return None, interrupted
        answer: Any = None
        failure: Exception | None = None
        try:
            if isinstance(effect, Sleep):
                self._wait(None, effect.seconds)
            elif not isinstance(effect, Shield):
                answer = self._in_thread(effect) if effect.slow else effect.perform(self.world)
        except Exception as error:  # the program decides what it means
            failure = error
        if self._crash is not None:
            self._crash.after(effect)
        return answer, failure

    def _in_thread(self, effect: Effect[Any]) -> Any:
        self._ticket += 1
        ticket = self._ticket

        def perform() -> None:
            try:
                self._inbox.put(_Done(ticket, effect.perform(self.world)))
            except BaseException as error:
                self._inbox.put(_Done(ticket, error=error))

        threading.Thread(target=perform, name=type(effect).__name__, daemon=True).start()
        return self._wait(ticket, None)

    def _wait(self, ticket: int | None, seconds: float | None) -> Any:
        """Until the effect with this ticket is done, or the time is over; signals in between unwind or are counted."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left_s = HEARD_WITHIN_S if deadline is None else min(deadline - time.monotonic(), HEARD_WITHIN_S)
            if left_s <= 0:
                return None
            try:
                item = self._inbox.get(timeout=left_s)
            except queue.Empty:
                continue
            if isinstance(item, _Signal):
                self._interrupt(item.number)
            elif item.ticket == ticket:
                if item.error is not None:
                    raise item.error
                return item.value
            # else: the late answer of a call that was abandoned

    def _interrupt(self, number: int) -> None:
        self._received.append(number)
        if not self._shielded:
            raise Interrupted(number)
        self.pending = self.pending or Interrupted(number)
        name = signal.Signals(number).name
        if len(self._received) >= 3:
            raise Abandoned
        more = 3 - len(self._received)
        text = (
            f"{name}: already deleting; {more} more to leave before the proof (the next tpujob command goes on with it)"
        )
        self.world.report(Report("release", text))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]

        def arrived(number: int, _frame: object) -> None:
            self._inbox.put(_Signal(number))  # SimpleQueue.put is reentrant: safe in a handler

        # A signal that was ignored when we started (nohup) stays ignored.
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, arrived)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(slots=True)
class _CrashPoint:
    """`TPUJOB_CRASH_AT=Create:1:before` kills this process with SIGKILL at that effect: the tests' power cut.

    The name is an effect's, the number counts its occurrences in this process, the side is `before` or `after` it.
    `any:7:before` counts all effects; `Create:1:before:STOP` sends SIGSTOP instead, for whoever wants to kill more than this
    process at that moment. `record:FILE` kills nothing and writes down every effect: those are the points there are.
    """

    name: str
    nth: int
    side: str
    signal_name: str = "KILL"
    _seen: int = 0

    def before(self, effect: Effect[Any]) -> None:
        if self.name == "record":
            with open(self.side, "a") as file:  # noqa: PTH123
                file.write(f"{type(effect).__name__}\n")
        elif self.name in ("any", type(effect).__name__):
            self._seen += 1
            if self._seen == self.nth and self.side == "before":
                self._strike()

    def after(self, effect: Effect[Any]) -> None:
        if self.name in ("any", type(effect).__name__) and self._seen == self.nth and self.side == "after":
            self._strike()

    def _strike(self) -> None:
        os.kill(os.getpid(), getattr(signal, f"SIG{self.signal_name}"))


@functools.cache
def _crash_point(text: str) -> _CrashPoint | None:
    """One for the process: it may drive several programs, one after the other."""
    if not text:
        return None
    name, _, rest = text.partition(":")
    if name == "record":
        return _CrashPoint(name, 0, rest)
    nth, side, *other = rest.split(":")
    return _CrashPoint(name, int(nth), side, other[0] if other else "KILL")
