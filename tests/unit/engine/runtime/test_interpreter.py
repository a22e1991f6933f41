"""Signals while programs run: noticed at once, unwound once, never able to skip a teardown."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from orchestrator.engine.effects.base import Effect, Shield, Sleep, World
from orchestrator.engine.runtime.interpreter import Abandoned, Interpreter
from orchestrator.errors import CloudUnavailable, Interrupted
from tests.unit.engine.virtual import VirtualWorld
from tests.waiting import HANG_S


@dataclass(frozen=True)
class Hang(Effect[str]):
    """A call that blocks until it is let go, like a request that gets no reply."""

    let_go: threading.Event
    began: threading.Event

    def perform(self, world: World) -> str:
        self.began.set()
        self.let_go.wait(HANG_S)
        return "late"


@dataclass(frozen=True)
class Answer(Effect[int]):
    value: int

    def perform(self, world: World) -> int:
        return self.value


@dataclass(frozen=True)
class Signal(Effect[None]):
    """This process gets a signal, and the effect takes a moment longer."""

    slow: ClassVar[bool] = True
    number: int = signal.SIGINT

    def perform(self, world: World) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Whoever runs the tests in the background has SIGINT ignored, and the interpreter leaves ignored signals alone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    return Interpreter(VirtualWorld(tmp_path))


def test_answers_and_errors_reach_the_program(interpreter: Interpreter) -> None:
    @dataclass(frozen=True)
    class Fail(Effect[None]):
        def perform(self, world: World) -> None:
            raise CloudUnavailable("no")

    async def program() -> tuple[int, str]:
        first = await Answer(41)
        try:
            await Fail()
        except CloudUnavailable as error:
            return first + 1, error.message
        return 0, ""

    assert interpreter.run(program()) == (42, "no")


def test_a_signal_ends_a_call_that_hangs(interpreter: Interpreter) -> None:
    let_go, began = threading.Event(), threading.Event()

    def press() -> None:
        began.wait(HANG_S)
        os.kill(os.getpid(), signal.SIGINT)

    async def program() -> int:
        try:
            await Hang(let_go, began)
        except Interrupted as interrupted:
            return interrupted.exit_code
        raise AssertionError("nobody interrupted")

    threading.Thread(target=press).start()
    assert interpreter.run(program()) == 130, "while nobody has let the call go"
    let_go.set()


def test_a_signal_that_another_thread_received_is_heard_all_the_same(interpreter: Interpreter) -> None:
    """No system call of the main thread is interrupted then; the same happens when it comes just before that waits."""
    let_go, began = threading.Event(), threading.Event()

    def press() -> None:
        began.wait(HANG_S)
        time.sleep(0.05)  # the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        let_go.wait(HANG_S)

    async def program() -> str:
        try:
            return await Hang(let_go, began)
        except Interrupted:
            let_go.set()
            return "interrupted"

    threading.Thread(target=press).start()
    assert interpreter.run(program()) == "interrupted"


def test_the_late_answer_of_an_abandoned_call_is_not_taken_for_the_next_one(interpreter: Interpreter) -> None:
    let_go, began = threading.Event(), threading.Event()

    async def program() -> int:
        try:
            await Hang(let_go, began)
        except Interrupted:
            let_go.set()
            await Sleep(0.05)
            return await Answer(7)
        return 0

    threading.Thread(target=lambda: (began.wait(HANG_S), os.kill(os.getpid(), signal.SIGTERM))).start()
    assert interpreter.run(program()) == 7


def test_under_the_shield_two_signals_are_answered_in_words_and_the_third_leaves(interpreter: Interpreter) -> None:
    reached = []

    async def program() -> None:
        await Shield()
        for n in range(4):
            await Signal()
            reached.append(n)

    with pytest.raises(Abandoned):
        interpreter.run(program())
    assert reached == [0, 1]
    assert len(interpreter.world.told) == 2  # type: ignore[attr-defined]


def test_a_signal_under_the_shield_comes_through_when_it_is_lowered(interpreter: Interpreter) -> None:
    async def program() -> str:
        await Shield()
        await Signal()
        try:
            await Shield(raised=False)
        except Interrupted:
            return "interrupted"
        return "not"

    assert interpreter.run(program()) == "interrupted"


def test_a_signal_that_was_ignored_at_the_start_stays_ignored(interpreter: Interpreter) -> None:
    async def program() -> str:
        await Signal(signal.SIGHUP)
        return "went on"

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert interpreter.run(program()) == "went on"
    finally:
        signal.signal(signal.SIGHUP, before)
