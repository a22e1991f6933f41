"""Finding, starting and stopping a daemon that is on its way out: it still holds the lock, and is announced no more."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from orchestrator.emulator.daemon import control


@pytest.fixture
def leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a daemon that needs a hundred looks for its last steps."""
    looks = []
    daemon = (tmp_path / "daemon.lock").open("w")
    fcntl.flock(daemon, fcntl.LOCK_EX)

    def looked(pause_s: float) -> None:
        looks.append(pause_s)
        if len(looks) == 100:
            daemon.close()

    monkeypatch.setattr("orchestrator.emulator.daemon.control.time.sleep", looked)
    return tmp_path


def test_stop_waits_for_its_end(leaving: Path) -> None:
    control.stop(leaving)
    assert not control._is_running(leaving)


def test_a_start_waits_for_its_end_and_starts_another(leaving: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(state_dir: Path, port: int, ends_with: int | None) -> None:
        assert not control._is_running(state_dir)
        raise InterruptedError

    monkeypatch.setattr(control, "_spawn", spawn)
    with pytest.raises(InterruptedError):
        control.ensure_running(leaving)
