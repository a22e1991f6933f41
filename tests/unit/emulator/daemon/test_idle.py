"""When a daemon without requests ends, under virtual time; a stop and a start wait for the end of the last one."""

import asyncio
import fcntl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.emulator.daemon import control, daemon


class World:
    """A daemon's driver and clock; `on_sleep` is called after each sleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit_s: float) -> None:
        self.now, self.holds_anything = 0.0, False
        self.on_sleep: Callable[[], None] = lambda: None
        monkeypatch.setenv("TPUJOB_EMULATOR_IDLE_S", str(limit_s))
        monkeypatch.setattr(daemon, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(daemon, "asyncio", SimpleNamespace(sleep=self._sleep))
        driver: Any = SimpleNamespace(state=self)
        self.idle = daemon._Idle(driver)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()

    def ends_at(self) -> float:
        shutdown = asyncio.Event()
        asyncio.run(self.idle.watch(shutdown))
        assert shutdown.is_set()
        return self.now


def test_it_ends_after_a_time_without_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert World(monkeypatch, 3600).ends_at() == 3600


def test_every_request_restarts_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 10)

    def request() -> None:
        if world.now == 10:
            world.idle.last = 7

    world.on_sleep = request
    assert world.ends_at() == 17


def test_it_runs_while_there_is_a_node_and_ends_soon_after(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 10)
    world.holds_anything = True

    def delete() -> None:
        world.holds_anything = world.now < 500

    world.on_sleep = delete
    assert 500 <= world.ends_at() <= 501


@pytest.fixture
def stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a daemon that stops after a hundred polls."""
    polls = []
    daemon = (tmp_path / "daemon.lock").open("w")
    fcntl.flock(daemon, fcntl.LOCK_EX)

    def slept(pause_s: float) -> None:
        polls.append(pause_s)
        if len(polls) == 100:
            daemon.close()

    monkeypatch.setattr("orchestrator.emulator.daemon.control.time.sleep", slept)
    return tmp_path


def test_stop_waits_for_the_end_of_the_daemon(stopping: Path) -> None:
    control.stop(stopping)
    assert not control._is_running(stopping)


def test_a_start_waits_for_the_end_of_the_last_daemon_and_starts_another(
    stopping: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spawn(state_dir: Path, port: int, ends_with: int | None) -> None:
        assert not control._is_running(state_dir)
        raise InterruptedError

    monkeypatch.setattr(control, "_spawn", spawn)
    with pytest.raises(InterruptedError):
        control.ensure_running(stopping)
