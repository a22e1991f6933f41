"""The clock of the emulated cloud is steady, also from one daemon to the next."""

from pathlib import Path

import pytest

from orchestrator import boot_clock
from orchestrator.emulator.state.steady_clock import FILE, steady_clock

NOW = 1_800_000_000.0


@pytest.fixture
def up_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds since the machine started, for the test to move."""
    now = [500.0]
    monkeypatch.setattr(boot_clock, "boot_s", lambda: now[0])
    return now


def test_a_step_of_the_wall_clock_does_not_change_it(tmp_path: Path, up_s: list[float]) -> None:
    clock = steady_clock(tmp_path, 0.0, wall=lambda: NOW)
    up_s[0] += 30.0
    assert clock() == NOW + 30.0
    assert steady_clock(tmp_path, 0.0, wall=lambda: NOW + 7200.0)() == NOW + 30.0, "the next daemon"


def test_after_a_restart_it_begins_with_the_wall_clock_and_never_goes_back(
    tmp_path: Path, up_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    steady_clock(tmp_path, 0.0, wall=lambda: NOW)
    monkeypatch.setattr(boot_clock, "boot_id", lambda: "the next boot")
    assert steady_clock(tmp_path, NOW + 900.0, wall=lambda: NOW + 600.0)() == NOW + 900.0
    monkeypatch.setattr(boot_clock, "boot_id", lambda: "one more")
    assert steady_clock(tmp_path, NOW + 900.0, wall=lambda: NOW + 3600.0)() == NOW + 3600.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": 1}', '{"boot": "b", "zero": []}'])
def test_a_file_that_cannot_be_read_is_replaced(tmp_path: Path, up_s: list[float], text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert steady_clock(tmp_path, 0.0, wall=lambda: NOW)() == NOW
    up_s[0] += 1.0
    assert steady_clock(tmp_path, 0.0, wall=lambda: 0.0)() == NOW + 1.0
