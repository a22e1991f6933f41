"""The interpreter of programs: performs each effect on the world, hears signals, and crashes where a test says so.

Slow effects run in a thread of their own while the program's thread waits in an inbox that signal handlers also write to,
so that Ctrl-C acts at once even in the middle of a network call. The abandoned call ends by itself; whatever effect it has
is found by name afterwards, exactly as after a crash.

Programs run in any thread, several at once. Signals reach those in the main thread; `Interpreter.interrupt` ends any.
"""

from __future__ import annotations

import functools
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import Interrupted
from orchestrator.promise.effects.base import (
    Effect,
    MaskSignals,
    Program,
    Report,
    Sleep,
    StoodStill,
    T,
    UnmaskSignals,
    World,
)
from orchestrator.promise.ledger.clocks import ThisHostClock
from orchestrator.system import fork
from orchestrator.text.units import format_duration

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
CRASH_AT = "TPUJOB_CRASH_AT"
# Python runs a signal's handler in the main thread, once that does anything at all. A signal that arrived just before it began
# to wait, or that the system gave to another thread, does not end the wait.
HEARD_WITHIN_S = 0.5
STANDSTILL_S, NOTABLE_S = 20.0, 300.0  # a program that did not even wait for so long stood still; that is reported
LOOK_S = 0.5  # between two looks at the ledger while a program waits


class Abandoned(BaseException):
    """The third signal during a teardown: the user insists on leaving. Nothing is lost: the ledger knows."""


@dataclass(frozen=True, slots=True)
class _Done:
    ticket: int
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Signal:
    number: int
    by: str = ""
    told: bool = False  # the user has been told what follows


@dataclass(slots=True, eq=False)
class Interpreter:
    """Drives one program at a time, in the thread that calls `run`."""

    world: World
    clock: ThisHostClock = field(default_factory=ThisHostClock)
    _inbox: queue.SimpleQueue[_Done | _Signal] = field(default_factory=queue.SimpleQueue)
    _ticket: int = 0
    _masked: bool = False
    _received: list[int] = field(default_factory=list)
    pending: Interrupted | None = None  # came under a shield, and the program has not unwound for it yet
    _crash: _CrashPoint | None = None
    # When this program was noticed to run last, and for how long the machine had slept by then.
    _looked: tuple[float, float] = 0.0, 0.0
    _stood_still: tuple[float, str] | None = None

    def run(self, program: Program[T]) -> T:
        """Return the program's result, or raise the exception that it ended with.

        Raises Interrupted after a signal or `interrupt`, Abandoned after the third one during a teardown.
        """
        self._crash = _crash_point(os.environ.get(CRASH_AT, ""))
        self._masked = False
        self._looked, self._stood_still = (self.clock.boot_s(), self.clock.slept_s()), None
        pid = os.getpid()
        with _signals.heard_by(self.interrupt):
            answer: Any = None
            error: BaseException | None = None
            while True:
                if os.getpid() != pid:  # an effect called back into code that forked and returned here
                    raise RuntimeError("a forked child does not go on with the program of its parent")
                try:
                    effect = program.send(answer) if error is None else program.throw(error)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                answer, error = self._answer(effect)

    @property
    def interrupted(self) -> bool:
        """Whether the program was told of a signal or an `interrupt`."""
        return bool(self._received)

    def interrupt(self, number: int = signal.SIGINT, by: str = "", *, told: bool = False) -> None:
        """Act on the program as this signal does, from any thread. Without a program, the next one gets it.

        `told`: report nothing, the user has been told.
        """
        self._inbox.put(_Signal(number, by, told))  # SimpleQueue.put is reentrant: safe in a signal handler

    def _answer(self, effect: Effect[Any]) -> tuple[Any, BaseException | None]:
        if self._crash is not None:
            self._crash.reached("before", effect)
        if isinstance(effect, MaskSignals | UnmaskSignals):
            self._masked = isinstance(effect, MaskSignals)
        if self.pending is not None and not self._masked:
            interrupted, self.pending = self.pending, None
            return None, interrupted
        answer: Any = None
        failure: Exception | None = None
        try:
            if isinstance(effect, Sleep):
                self._sleep(effect)
            elif isinstance(effect, StoodStill):
                self._look()
                answer = self._stood_still
            else:
                answer = self._in_thread(effect) if effect.slow else effect.perform(self.world)
        except Exception as error:  # the program decides what it means
            failure = error
        if self._crash is not None:
            self._crash.reached("after", effect)
        return answer, failure

    def _sleep(self, effect: Sleep) -> None:
        """Wait, and look now and then whether there is something left to wait for."""
        ends_at = time.monotonic() + effect.seconds
        watched = effect.attempt_id is not None or effect.lease_id is not None
        while (left_s := ends_at - time.monotonic()) > 0:
            self._wait(None, min(left_s, LOOK_S) if watched else left_s)
            if watched and effect.is_over(self.world):
                return

    def _look(self) -> None:
        """Notice that the program stood still since the last look. A call that is waited for is looked at all the time."""
        before, self._looked = self._looked, (self.clock.boot_s(), self.clock.slept_s())
        seconds, slept_s = self._looked[0] - before[0], self._looked[1] - before[1]
        if seconds >= STANDSTILL_S:
            what = "this machine slept" if slept_s > seconds / 2 else "tpujob was stopped for"
            said = f"{what} {format_duration(seconds)}"
            self._stood_still = max(self._stood_still or (0.0, ""), (seconds, said))
            if seconds >= NOTABLE_S:
                self.world.report(Report("warning", said))

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
            self._look()
            left_s = HEARD_WITHIN_S if deadline is None else min(deadline - time.monotonic(), HEARD_WITHIN_S)
            if left_s <= 0:
                return None
            try:
                item = self._inbox.get(timeout=left_s)
            except queue.Empty:
                continue
            if isinstance(item, _Signal):
                self._interrupt(item)
            elif item.ticket == ticket:
                if item.error is not None:
                    raise item.error
                return item.value
            # else: the late answer of a call that was abandoned

    def _interrupt(self, received: _Signal) -> None:
        self._received.append(received.number)
        name = received.by or ("Ctrl-C" if received.number == signal.SIGINT else signal.Signals(received.number).name)
        if not self._masked:
            if not received.told:
                self.world.report(Report("stop", f"{name}: stopping; what this command owes is released first"))
            raise Interrupted(received.number, by=received.by)
        self.pending = self.pending or Interrupted(received.number, by=received.by)
        more = 3 - len(self._received)
        if more <= 0:
            raise Abandoned
        if received.told:
            return
        text = f"{name}: already deleting; {more} more to leave before the proof"
        self.world.report(Report("release", f"{text} (the next tpujob command goes on with it)"))


Listener = Callable[[int], object]  # called in a signal handler: it may wait for nothing


class _Signals:
    """The signal handlers, while any program runs in the main thread: each of those hears every signal."""

    def __init__(self) -> None:
        self._hearing: list[Listener] = []
        self._before: dict[int, Any] = {}
        self._mask: set[int] | None = None  # of the forking thread, during a fork
        fork.register(self)

    @contextmanager
    def heard_by(self, listener: Listener) -> Iterator[None]:
        """Install the handlers, and restore those of before at the end. Nothing in other threads than the main one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._hearing.append(listener)
        try:
            if not self._before:
                self._install()
            yield
        finally:
            if self._hearing == [listener]:
                self._restore()
            if listener in self._hearing:  # not in a forked child
                self._hearing.remove(listener)

    def _install(self) -> None:
        for number in (getattr(signal, name) for name in SIGNALS if hasattr(signal, name)):
            handler = signal.getsignal(number)
            # A signal that was ignored when the program started (nohup) stays ignored; a handler that was not installed
            # by Python (None) could not be restored.
            if handler not in (signal.SIG_IGN, None):
                self._before[number] = handler
                signal.signal(number, self._arrived)

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _arrived(self, number: int, _frame: object) -> None:
        for listener in self._hearing:
            listener(number)

    def before_fork(self) -> None:
        """Block the signals: one that reaches the child before its handlers are restored would be lost there."""
        if self._before:
            self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._before))

    def after_fork(self, *, in_child: bool) -> None:
        """A child runs no program: signals must end it as they would have without one in its parent."""
        if in_child:
            self._hearing.clear()
            self._restore()
        mask, self._mask = self._mask, None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


_signals = _Signals()


def signals_to(listener: Listener) -> AbstractContextManager[None]:
    """Pass signals to `listener` within the block: for programs that run in other threads. Without effect in such a thread."""
    return _signals.heard_by(listener)


@dataclass(slots=True)
class _CrashPoint:
    """`TPUJOB_CRASH_AT=Create:1:before` kills this process with SIGKILL at that effect: the tests' power cut.

    The name is an effect's, the number counts its occurrences in this process, the side is `before` or `after` it.
    `any:7:before` counts all effects; `Create:1:before:STOP` sends SIGSTOP instead, for tests that kill more than this
    process at that moment. `record:FILE` kills nothing and appends the name of every effect to the file.
    """

    name: str
    nth: int
    side: str
    signal_name: str = "KILL"
    _seen: int = 0

    def reached(self, side: str, effect: Effect[Any]) -> None:
        name = type(effect).__name__
        if self.name == "record" and side == "before":
            with open(self.side, "a") as file:  # noqa: PTH123
                file.write(f"{name}\n")
        elif self.name in ("any", name):
            self._seen += side == "before"
            if (self._seen, self.side) == (self.nth, side):
                os.kill(os.getpid(), getattr(signal, f"SIG{self.signal_name}"))


@functools.cache
def _crash_point(text: str) -> _CrashPoint | None:
    """Return the crash point of this process, which counts the effects of all its programs."""
    if not text:
        return None
    name, _, rest = text.partition(":")
    if name == "record":
        return _CrashPoint(name, 0, rest)
    nth, side, *other = rest.split(":")
    return _CrashPoint(name, int(nth), side, other[0] if other else "KILL")
