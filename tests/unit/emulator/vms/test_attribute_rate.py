"""The documented rate of guest attributes: 10 queries a minute, 3 in a second."""

import pytest

from orchestrator.emulator.vms.metadata_server import AttributeRate


def kept(times: list[float], speed: float = 1.0) -> list[bool]:
    rate = AttributeRate()
    return [rate.within(at, speed) for at in times]


def test_three_in_a_second_are_kept_and_a_fourth_is_dropped() -> None:
    assert kept([0.0, 0.1, 0.2, 0.9, 2.0]) == [True, True, True, False, True]


def test_ten_in_a_minute_are_kept_and_an_eleventh_is_dropped() -> None:
    assert kept([2.0 * n for n in range(11)]) == 10 * [True] + [False]
    assert kept([6.1 * n for n in range(30)]) == 30 * [True]


@pytest.mark.parametrize(("speed", "dropped"), [(0.0, 0), (1.0, 10), (30.0, 10)])
def test_the_limits_scale_with_the_speed_and_speed_0_means_no_limit(speed: float, dropped: int) -> None:
    assert kept([1.9 / (speed or 1.0) * n for n in range(20)], speed).count(False) == dropped
