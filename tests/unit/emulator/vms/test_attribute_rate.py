"""Guest attributes are kept as often as Google documents: 10 queries a minute, 3 in a second."""

from __future__ import annotations

import pytest

from orchestrator.emulator.vms.attribute_rate import AttributeRate


def kept(times: list[float], speed: float = 1.0) -> list[bool]:
    rate = AttributeRate()
    return [rate.within(at, speed) for at in times]


def test_three_in_a_second_are_kept_and_a_fourth_is_lost() -> None:
    assert kept([0.0, 0.1, 0.2, 0.9, 2.0]) == [True, True, True, False, True]


def test_ten_in_a_minute_are_kept_and_an_eleventh_is_lost() -> None:
    assert kept([2.0 * n for n in range(11)]) == 10 * [True] + [False]
    assert kept([6.1 * n for n in range(30)]) == 30 * [True]


@pytest.mark.parametrize(("speed", "lost"), [(0.0, 0), (1.0, 10), (30.0, 10)])
def test_at_another_speed_the_limits_are_as_much_faster_and_at_none_there_are_none(speed: float, lost: int) -> None:
    assert kept([1.9 / (speed or 1.0) * n for n in range(20)], speed).count(False) == lost
