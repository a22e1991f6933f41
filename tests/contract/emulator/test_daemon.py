"""The daemon's life: one per state directory, found, stopped, killed and restarted."""

from __future__ import annotations

from tests.emulator_fixture import Emulator


def test_a_new_emulator_is_empty_and_bills_nothing(emulator: Emulator) -> None:
    assert emulator.status()["nodes"] == []
    assert emulator.billing()["totals"]["usd"] == 0
