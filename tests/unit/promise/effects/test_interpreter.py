"""Signals while programs run: noticed at once, unwound once, never able to skip a teardown."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from orchestrator.errors import CloudUnavailable, Interrupted
from orchestrator.promise.effects import interpreter as interpreters
from orchestrator.promise.effects.base import (
    Effect,
    MaskSignals,
    OwnCreates,
    SetServerTime,
    Sleep,
    StartGuardian,
    StoodStill,
    Unlock,
    UnmaskSignals,
    World,
)
from orchestrator.promise.effects.cloud import Create, LapsesAfter, OwnCreate, RevokeLogin
from orchestrator.promise.effects.interpreter import CRASH_AT, Abandoned, Interpreter, signals_to
from orchestrator.promise.lease.changes import Began, Intent, ReleaseBegan, RunCanceled
from orchestrator.promise.lease.cloud_api import NO_CLOUD, Operation
from orchestrator.promise.lease.run_and_attempt import Attempt, RunRecord
from orchestrator.promise.ledger.file import LedgerUnavailable
from orchestrator.system import fork
from tests.fakes.leases import LedgerInMemory, lease_and_request
from tests.forked import Child, in_thread
from tests.simulation.model.bench import CAN
from tests.waiting import HANG_S, until


@dataclass(frozen=True)
class Hang(Effect[str]):
    """A call that blocks until it is let go, like a request that gets no reply."""

    let_go: threading.Event
    began: threading.Event

    def perform(self, world: World) -> str:
        self.began.set()
        self.let_go.wait(HANG_S)
        return "late"


async def hangs(let_go: threading.Event, began: threading.Event) -> str:
    """Its end, in a word."""
    try:
        return await Hang(let_go, began)
    except Interrupted as interrupted:
        let_go.set()
        return interrupted.message


async def caught(*effects: Effect[Any], word: str = "interrupted") -> str:
    """The word, if a signal ends these effects."""
    try:
        for effect in effects:
            await effect
    except Interrupted:
        return word
    return "not"


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
    """Tests that run in the background have SIGINT ignored, and the interpreter leaves ignored signals alone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def a_world() -> Any:
    told: list[str] = []
    report = lambda line: told.append(f"{line.stage} {line.text}")  # noqa: E731
    return SimpleNamespace(ledger=LedgerInMemory(), told=told, report=report)


@pytest.fixture
def interpreter() -> Interpreter:
    return Interpreter(a_world())


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


def test_an_interrupt_abandons_a_create_call_and_does_not_end_it() -> None:
    lease, request = lease_and_request()
    world, sent, answered = a_world(), threading.Event(), threading.Event()
    world.now, world.own_creates = lambda: 7.0, OwnCreates()

    def create(request: Any, in_time: Callable[[], bool]) -> Operation:
        sent.set()
        assert answered.wait(HANG_S)
        return Operation("operation-1", done=True)

    world.cloud = SimpleNamespace(create=create, capabilities=CAN)
    interpreter, seen = Interpreter(world), []

    async def program() -> None:
        seen.append(await OwnCreate(lease.name))
        try:
            await Create(request, at=7.0)
        except Interrupted:
            await MaskSignals()
            seen.append(await OwnCreate(lease.name))
            answered.set()
            until(lambda: world.own_creates.ended_at(lease.name) == 7.0, "its end")
            seen.append(await OwnCreate(lease.name))

    with ThreadPoolExecutor() as pool:
        pool.submit(lambda: sent.wait(HANG_S) and interpreter.interrupt())
        interpreter.run(program())
    assert seen == [None, math.inf, 7.0]


@pytest.mark.parametrize(("now", "leaves"), [(17.0, True), (17.1, False)])
def test_a_create_call_that_could_not_leave_in_time_does_not_leave(now: float, leaves: bool) -> None:
    _, request = lease_and_request()
    world = a_world()
    world.now, world.own_creates = lambda: now, OwnCreates()
    asked: list[bool] = []
    world.cloud = SimpleNamespace(create=lambda request, in_time: asked.append(in_time()), capabilities=CAN)
    Create(request, at=7.0).perform(world)
    assert asked == [leaves] and CAN.leaves_within_s == 10.0


@pytest.mark.parametrize(
    ("seconds", "slept_s", "told"),
    [(2220.0, 2219.0, "this machine slept 37 m"), (2220.0, 0.0, "tpujob was stopped for 37 m"), (3.0, 3.0, None)],
)
def test_a_program_hears_that_it_stood_still_while_it_waited(
    interpreter: Interpreter, seconds: float, slept_s: float, told: str | None
) -> None:
    clocks = SimpleNamespace(boot_s=lambda: 9000.0, slept_s=lambda: 5000.0)
    interpreter.clock = clocks  # type: ignore[assignment]

    async def program() -> Any:
        before = await StoodStill()
        clocks.boot_s, clocks.slept_s = lambda: 9000.0 + seconds, lambda: 5000.0 + slept_s
        await Sleep(0.0)
        return before, await StoodStill()

    before, after = interpreter.run(program())
    assert before is None and after == (told and (seconds, told))
    assert interpreter.world.told == [f"warning {told}"] * (told is not None)  # type: ignore[attr-defined]
    assert interpreter.run(program())[0] is None, "what was before a program is not of it"


def test_a_call_that_takes_long_is_no_standstill(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "HEARD_WITHIN_S", 0.001)
    looks, looked = iter(range(100_000)), threading.Event()

    def boot_s() -> float:
        """Of a machine on which all but STANDSTILL_S passes between two looks."""
        number = next(looks)
        if number == 10:
            looked.set()
        return number * (interpreters.STANDSTILL_S - 1)

    interpreter.clock = SimpleNamespace(boot_s=boot_s, slept_s=lambda: 0.0)  # type: ignore[assignment]

    @dataclass(frozen=True)
    class Slow(Effect[bool]):
        def perform(self, world: World) -> bool:
            return looked.wait(HANG_S)

    async def program() -> Any:
        return await Slow(), await StoodStill()

    assert interpreter.run(program()) == (True, None)


def test_a_signal_ends_a_call_that_hangs(interpreter: Interpreter) -> None:
    let_go, began = threading.Event(), threading.Event()
    threading.Thread(target=lambda: (began.wait(HANG_S), os.kill(os.getpid(), signal.SIGINT))).start()
    assert interpreter.run(hangs(let_go, began)) == "interrupted by Ctrl-C", "though the call has not returned"
    assert interpreter.world.told == ["stop Ctrl-C: stopping; what this command owes is released first"]  # type: ignore[attr-defined]


LEASE, _ = lease_and_request()
RUN = RunRecord("r1", "job", "job.yaml", "emulated", 1.0, "runs/r1")
WAITED_FOR = [
    ({"attempt_id": "r1-1"}, Began(RUN, Attempt("r1-1", "r1")), RunCanceled("r1", 2.0, "tpujob cancel")),
    ({"lease_id": LEASE.id}, Intent(LEASE), ReleaseBegan(LEASE.id, 2.0, "tpujob down")),
]


@pytest.mark.parametrize(("waits", "begin", "end"), WAITED_FOR, ids=["attempt", "lease"])
def test_a_wait_ends_when_another_process_has_ended_what_it_waits_for_and_not_before(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, waits: dict[str, Any], begin: Any, end: Any
) -> None:
    monkeypatch.setattr(interpreters, "LOOK_S", 0.001)
    ledger = interpreter.world.ledger
    ledger.record(begin)

    async def program() -> float:
        before = time.monotonic()
        await Sleep(0.02, **waits)
        slept_s = time.monotonic() - before
        threading.Timer(0.02, lambda: ledger.record(end)).start()
        await Sleep(10 * HANG_S, **waits)
        return slept_s

    assert interpreter.run(program()) >= 0.02


@pytest.mark.parametrize(("attempt", "lease", "over"), [
    (None, None, False), (False, None, False), (True, None, True), (None, False, False), (None, True, True),
    (False, True, True), ("unknown", None, False), (None, "unknown", False),
])  # fmt: skip
def test_a_wait_is_over_once_its_attempt_has_ended_or_its_lease_is_released(
    attempt: Any, lease: Any, over: bool
) -> None:
    def known(name: str) -> Any:
        if name == "unknown":
            raise LedgerUnavailable("the disk is full")
        return SimpleNamespace(state=SimpleNamespace(ended=name == "True"), down_at=9.0 if name == "True" else None)

    world: Any = SimpleNamespace(ledger=SimpleNamespace(attempt=known, lease=known))
    ids = [None if each is None else str(each) for each in (attempt, lease)]
    assert Sleep(1.0, *ids).is_over(world) is over


def test_each_effect_asks_its_part_of_the_world() -> None:
    """The real world: the simulated one performs most of these effects itself."""
    asked: list[Any] = []

    def part(name: str) -> Any:
        return lambda *args: asked.append((name, *args)) or name

    world: Any = SimpleNamespace(
        set_server_time=part("time"), arm=part("arm"), locks=SimpleNamespace(unlock=part("unlock")),
        reach=SimpleNamespace(revoke_login=part("revoke")),
    )  # fmt: skip
    SetServerTime(5.0, 4.0).perform(world)
    Unlock("a").perform(world)
    RevokeLogin(cast(Any, "lease")).perform(world)
    assert StartGuardian().perform(world) == "arm"
    capable: Any = SimpleNamespace(cloud=SimpleNamespace(capabilities=NO_CLOUD))
    assert LapsesAfter().perform(capable) == NO_CLOUD.timings.ttl_s - NO_CLOUD.timings.heartbeat_s
    assert asked == [("time", 5.0, 4.0), ("unlock", "a"), ("revoke", "lease"), ("arm",)]


def test_a_signal_that_another_thread_received_is_heard_all_the_same(interpreter: Interpreter) -> None:
    """No system call of the main thread is interrupted then; the same happens when it comes just before that waits."""
    let_go, began = threading.Event(), threading.Event()

    def press() -> None:
        began.wait(HANG_S)
        time.sleep(0.05)  # the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        let_go.wait(HANG_S)

    threading.Thread(target=press).start()
    assert interpreter.run(hangs(let_go, began)) == "interrupted by Ctrl-C"


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
        await MaskSignals()
        for n in range(4):
            await Signal()
            reached.append(n)

    with pytest.raises(Abandoned):
        interpreter.run(program())
    assert reached == [0, 1]
    assert len(interpreter.world.told) == 2  # type: ignore[attr-defined]


def test_a_signal_under_the_shield_comes_through_when_it_is_lowered(interpreter: Interpreter) -> None:
    async def program() -> str:
        await MaskSignals()
        await Signal()
        return await caught(UnmaskSignals())

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


# -- other threads -----------------------------------------------------------------------------------------------------


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_a_program_runs_in_any_thread_and_leaves_the_signal_handlers_alone(interpreter: Interpreter) -> None:
    before = handlers()

    async def program() -> tuple[int, bool]:
        return await Answer(7), handlers() == before

    assert in_thread(lambda: interpreter.run(program())) == (7, True)


def test_interrupt_ends_a_program_in_another_thread_as_a_signal_does(interpreter: Interpreter) -> None:
    let_go, began = threading.Event(), threading.Event()
    threading.Thread(target=lambda: (began.wait(HANG_S), interpreter.interrupt(signal.SIGTERM, "`cancel`"))).start()
    assert in_thread(lambda: interpreter.run(hangs(let_go, began))) == "interrupted by `cancel`"
    assert interpreter.interrupted


def test_an_interrupt_before_the_program_runs_reaches_it(interpreter: Interpreter) -> None:
    interpreter.interrupt()
    assert interpreter.run(hangs(threading.Event(), threading.Event())) == "interrupted by Ctrl-C"


def test_a_signal_ends_the_program_of_the_main_thread_and_no_other_ones() -> None:
    ours, theirs = Interpreter(a_world()), Interpreter(a_world())
    ends: list[str] = []
    began, their_go = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: ends.append(theirs.run(hangs(their_go, began))))
    thread.start()
    began.wait(HANG_S)
    assert ours.run(caught(Signal(), Sleep(HANG_S))) == "interrupted"
    their_go.set()
    thread.join()
    assert ends == ["late"]


def test_a_signal_reaches_a_program_that_runs_inside_another_and_that_one() -> None:
    """A callback of the user's runs a program of its own."""
    outer, inner = Interpreter(a_world()), Interpreter(a_world())

    @dataclass(frozen=True)
    class Callback(Effect[str]):
        slow: ClassVar[bool] = False

        def perform(self, world: World) -> str:
            return inner.run(caught(Signal(), Sleep(HANG_S), word="inner"))

    async def program() -> tuple[str, str]:
        return await Callback(), await caught(Sleep(HANG_S), word="outer")

    before = handlers()
    assert outer.run(program()) == ("inner", "outer")
    assert handlers() == before


def test_the_handlers_of_before_are_back_whatever_the_end_of_the_program(interpreter: Interpreter) -> None:
    def ours(number: int, frame: object) -> None:
        """A handler of the user's."""

    async def program() -> None:
        await Answer(1)
        raise ValueError("its end")

    signal.signal(signal.SIGTERM, ours)
    before = handlers()
    with pytest.raises(ValueError, match="its end"):
        interpreter.run(program())
    assert handlers() == before and signal.getsignal(signal.SIGTERM) is ours


def test_a_handler_that_python_did_not_install_stays(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be restored: `signal.getsignal` does not say what it is."""
    known, installed = signal.getsignal, []
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGHUP else known(number))
    install = signal.signal
    monkeypatch.setattr(signal, "signal", lambda number, handler: (installed.append(number), install(number, handler)))

    async def program() -> int:
        return await Answer(7)

    assert interpreter.run(program()) == 7
    assert signal.SIGTERM in installed and signal.SIGHUP not in installed


def test_signals_are_passed_on_within_a_block_and_the_handlers_of_before_are_back_after_it() -> None:
    heard: list[int] = []
    before = handlers()
    with signals_to(heard.append):
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM] and handlers() == before


# -- forks -------------------------------------------------------------------------------------------------------------


class SignalledInChild:
    """What a forked child closes first of all; a signal arrives there just then."""

    def close(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_that_reaches_a_child_before_its_handlers_are_restored_is_not_lost(interpreter: Interpreter) -> None:
    @dataclass(frozen=True)
    class ForkInThread(Effect[int]):
        def perform(self, world: World) -> int:
            thing = SignalledInChild()
            fork.close_in_child(thing)
            pid = os.fork()
            if pid == 0:
                time.sleep(HANG_S)
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def program() -> int:
        return await ForkInThread()

    assert interpreter.run(program()) == -signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_child_that_was_forked_while_a_program_ran(interpreter: Interpreter, number: int) -> None:
    """With its parent's handlers it would be deaf: `Process.terminate` of a DataLoader's worker would wait for ever.

    So it would be after a program of its own, if it took its parent's for one that goes on.
    """

    @dataclass(frozen=True)
    class ForkInThread(Effect[Child]):
        def perform(self, world: World) -> Child:
            return Child(lambda: "alive")

    async def of_the_child() -> str:
        await Answer(1)
        return "alive"

    @dataclass(frozen=True)
    class ForkHere(Effect[Child]):
        slow: ClassVar[bool] = False
        do: Callable[[], object]

        def perform(self, world: World) -> Child:
            return Child(self.do)

    async def program() -> list[Child]:
        ways = (lambda: "alive", lambda: Interpreter(a_world()).run(of_the_child()))
        return [await ForkInThread(), *[await ForkHere(do) for do in ways]]

    for child in interpreter.run(program()):
        with child:
            assert child.said == "alive"
            os.kill(child.pid, number)
            assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == -number
            child.pid = 0


def test_a_child_does_not_go_on_with_the_program_of_its_parent(interpreter: Interpreter) -> None:
    reached: list[str] = []

    @dataclass(frozen=True)
    class Fork(Effect[int]):
        slow: ClassVar[bool] = False

        def perform(self, world: World) -> int:
            return os.fork()

    async def program() -> int:
        pid = await Fork()
        reached.append("after the fork")
        return pid

    news, tell = os.pipe()
    parent = os.getpid()
    try:
        pid = interpreter.run(program())
    except RuntimeError as error:
        assert os.getpid() != parent
        os.write(tell, f"{error} {reached}".encode())
        os._exit(0)
    if os.getpid() != parent:
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0 and reached == ["after the fork"]
    assert os.read(news, 1000) == b"a forked child does not go on with the program of its parent []"
    os.close(news)
    os.close(tell)


# -- crash points --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note(Effect[None]):
    """It is in the file that this was performed."""

    letter: str

    def perform(self, world: World) -> None:
        with Path("noted").open("a") as file:
            file.write(self.letter)


@dataclass(frozen=True)
class Leave(Effect[None]):
    """The process ends in the middle of it."""

    slow: ClassVar[bool] = False

    def perform(self, world: World) -> None:
        os._exit(0)


def end_of_a_program(crash_at: str) -> tuple[str, int]:
    """Return what it noted, and the signal that killed or stopped its process."""

    async def program() -> None:
        for letter in "abc":
            await Note(letter)
            await Answer(1)
        await Leave()

    Path("noted").touch()
    pid = os.fork()
    if pid == 0:
        try:
            os.environ[CRASH_AT] = crash_at
            Interpreter(a_world()).run(program())
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return Path("noted").read_text(), os.WSTOPSIG(status)
    return Path("noted").read_text(), -os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize(("crash_at", "noted", "number"), [
    ("Note:1:before", "", signal.SIGKILL), ("Note:2:before", "a", signal.SIGKILL), ("Note:2:after", "ab", signal.SIGKILL),
    ("any:3:before", "a", signal.SIGKILL), ("any:3:after", "ab", signal.SIGKILL), ("Note:3:after:STOP", "abc", signal.SIGSTOP),
    ("Note:4:before", "abc", 0), ("Sleep:1:before", "abc", 0), ("", "abc", 0),
])  # fmt: skip
def test_a_process_is_killed_at_the_effect_that_a_test_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash_at: str, noted: str, number: int
) -> None:
    monkeypatch.chdir(tmp_path)
    assert end_of_a_program(crash_at) == (noted, number)


def test_a_process_whose_effects_a_test_wants_to_know_names_each_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert end_of_a_program(f"record:{tmp_path / 'effects'}") == ("abc", 0)
    assert (tmp_path / "effects").read_text().split() == [*["Note", "Answer"] * 3, "Leave"]
