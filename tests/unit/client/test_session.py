"""How a session ends: interrupted from another thread, and closed by a process that lives on."""

import signal
import threading
from pathlib import Path

import pytest

from orchestrator import fork
from orchestrator.client.session import Session
from orchestrator.engine.effects.base import StartGuardian
from orchestrator.engine.guardian import process
from orchestrator.engine.guardian.process import Guardian
from orchestrator.engine.runtime.locks import FileLocks
from orchestrator.ledger.file import LedgerUnavailable
from orchestrator.settings import Target
from tests.forked import Child, in_thread
from tests.unit.engine.runtime.test_interpreter import hangs
from tests.waiting import HANG_S


async def quick() -> str:
    return "quick"


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(Target("emulated", "emulated"), tmp_path)


def test_it_is_interrupted_from_another_thread(session: Session) -> None:
    began, ended = threading.Event(), threading.Event()
    threading.Thread(target=lambda: (began.wait(HANG_S), session.interrupt(signal.SIGTERM, "`cancel`"))).start()
    assert session.run(hangs(ended, began)) == "interrupted by `cancel`"
    ended.set()


def test_an_interrupt_that_no_program_has_heard_reaches_the_next_one_and_only_one(session: Session) -> None:
    ended = threading.Event()
    session.interrupt()
    assert session.run(quick()) == "quick", "it never waited"
    assert session.run(hangs(ended, threading.Event())) == "interrupted by Ctrl-C"
    ended.set()
    assert session.run(hangs(ended, threading.Event())) == "late"


def test_closing_it_unlocks_and_wakes_the_guardian(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPUJOB_GUARDIAN", "on")
    started: list[Guardian] = []

    def start(*_: object) -> Guardian:
        started.append(Guardian(1, fork.pipe()[1]))
        return started[-1]

    async def arms() -> bool:
        return await StartGuardian()

    monkeypatch.setattr(process, "start_guardian", start)
    others = FileLocks(session.locks.directory)
    assert in_thread(lambda: session.run(arms())) and session.locks.lock("lease")
    assert started[0].waits and others.is_locked("lease")

    def in_child() -> str:
        session.close()
        return "closed"

    with Child(in_child) as child:
        assert child.said == "closed"
        assert others.is_locked("lease") and started[0].waits, "they are the parent's"
    session.close()
    assert not started[0].waits and not others.is_locked("lease")
    with pytest.raises(LedgerUnavailable):
        session.ledger.leases()


def test_it_waits_for_a_lock_without_spinning(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    others = FileLocks(session.locks.directory)
    assert others.lock("up alice")
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            others.unlock("up alice")

    monkeypatch.setattr("orchestrator.client.session.time.sleep", sleep)
    session.lock("up alice")
    assert len(slept) == 3 and min(slept) > 0.01
    assert session.locks.is_held("up alice")
