"""Finding, starting and stopping a daemon that is stopping: it has the lock, and no endpoint any more."""

import fcntl
from pathlib import Path

import pytest

from orchestrator.emulator.daemon import control


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
