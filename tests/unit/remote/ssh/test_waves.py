"""The order of tries and the naming of slow items, by a clock of numbers."""

import math
from collections.abc import Callable

from orchestrator.errors import HostKeyMismatch, Unreachable
from orchestrator.remote.ssh.waves import Patience, Rules, Waves

SILENT = Unreachable("silent")


def never(_: int) -> float:
    return -math.inf


def waves(
    count: int, *, limit: int = 32, moved: Callable[[int], float] = never, retried: bool = True
) -> Waves[int, int]:
    until = (lambda _: math.inf) if retried else never
    return Waves(range(count), Rules(until, moved, limit=limit, patience=Patience()))


def begun(wave: Waves[int, int], now: float) -> list[int]:
    """Return the positions that begin now."""
    found = []
    while (position := wave.next(now)) is not None:
        found.append(position)
    return found


def test_fresh_items_come_before_those_that_are_tried_again() -> None:
    wave = waves(3, limit=1)
    assert wave.next(0.0) == 0
    wave.ended(0, SILENT, 0.0)
    assert wave.next(60.0) == 1
    wave.ended(1, 1, 60.0)
    assert wave.next(60.0) == 2
    wave.ended(2, 2, 60.0)
    assert wave.next(60.0) == 0


def test_an_item_is_tried_again_after_a_pause_that_grows_up_to_two_seconds() -> None:
    wave, now, pauses = waves(1), 0.0, []
    for _ in range(7):
        assert wave.next(now) == 0
        wave.ended(0, SILENT, now)
        pause_s = wave.pause_s(now)
        assert pause_s is not None
        assert wave.next(now + pause_s / 2) is None
        pauses.append(round(pause_s, 6))
        now += pause_s
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_without_retries_the_first_failure_is_the_outcome() -> None:
    wave = waves(1, retried=False)
    wave.next(0.0)
    wave.ended(0, SILENT, 0.0)
    assert wave.over
    assert wave.outcomes == {0: SILENT}


def test_a_wrong_host_key_ends_the_waves_at_once() -> None:
    wave, error = waves(3, limit=2), HostKeyMismatch("another one")
    begun(wave, 0.0)
    wave.ended(1, error, 0.0)
    assert wave.over
    assert wave.worst is error
    assert wave.next(0.0) is None


def test_no_more_than_the_limit_begin_until_one_has_ended() -> None:
    wave = waves(5, limit=2)
    assert begun(wave, 0.0) == [0, 1]
    wave.ended(0, 0, 1.0)
    assert begun(wave, 1.0) == [2]


def test_a_try_without_progress_gives_its_slot_to_another_after_three_seconds() -> None:
    wave = waves(64)
    assert begun(wave, 0.0) == list(range(32))
    assert begun(wave, 2.9) == []
    assert wave.pause_s(2.0) == 1.0
    assert begun(wave, 3.0) == list(range(32, 64))


def test_a_slot_that_becomes_free_is_news_where_an_item_waits_to_be_tried_again() -> None:
    wave = waves(3, limit=1)
    begun(wave, 0.0)
    wave.ended(0, 0, 0.0)
    begun(wave, 0.0)
    wave.ended(1, SILENT, 0.0)
    begun(wave, 0.0)
    assert wave.pause_s(0.0) == 3.0
    seen = wave.news
    wave.ended(2, 2, 0.05)
    assert wave.next(0.05) is None and wave.is_news(seen)
    assert round(wave.pause_s(0.05) or 0.0, 6) == 0.05


def test_a_try_with_progress_keeps_its_slot() -> None:
    at = {0: 0.0}
    wave = waves(2, limit=1, moved=lambda item: at.get(item, 0.0))
    assert begun(wave, 0.0) == [0]
    at[0] = 9.0
    assert begun(wave, 11.9) == []
    assert begun(wave, 12.0) == [1]


def test_slow_items_are_named_together_ten_seconds_after_the_others_and_again_at_thirty_and_sixty() -> None:
    wave = waves(4)
    begun(wave, 0.0)
    wave.ended(0, 0, 1.0)
    wave.ended(3, 3, 2.0)
    assert wave.slow(11.9) == []
    assert wave.pause_s(11.0) == 1.0
    assert [at for at in range(2, 200) if wave.slow(at) == [1, 2]] == [12, 32, 62]


def test_items_are_not_slow_while_none_is_done() -> None:
    wave = waves(2)
    begun(wave, 0.0)
    assert wave.slow(1000.0) == []
    assert wave.pause_s(1000.0) is None
    wave.ended(0, 0, 1000.0)
    assert wave.slow(1009.0) == []
    assert wave.slow(2010.0) == [1]


def test_an_item_that_fails_again_and_again_is_named_though_none_is_done_where_that_is_asked_for() -> None:
    wave = Waves(range(2), Rules(lambda _: math.inf, names_failed=True))
    begun(wave, 0.0)
    assert wave.slow(1000.0) == []
    wave.ended(1, SILENT, 1000.0)
    assert wave.slow(1000.0) == [1] and wave.failure(1) is SILENT


def test_an_item_with_progress_is_not_slow_but_large() -> None:
    at = {1: 58.0}
    wave = waves(2, moved=lambda item: at.get(item, 0.0))
    begun(wave, 0.0)
    wave.ended(0, 0, 0.0)
    assert wave.slow(60.0) == []
    assert wave.slow(63.0) == [1]


def test_an_item_of_a_later_wave_is_named_by_its_own_time() -> None:
    wave = waves(3, limit=2)
    begun(wave, 0.0)
    wave.ended(0, 0, 8.0)
    begun(wave, 8.0)
    assert wave.slow(18.0) == [1]
    assert wave.slow(25.9) == []
    assert wave.slow(26.0) == [1, 2]


def test_the_failure_of_a_slow_item_is_known_while_it_is_tried_again() -> None:
    wave = waves(2)
    begun(wave, 0.0)
    wave.ended(0, 0, 0.0)
    wave.ended(1, SILENT, 5.0)
    assert wave.slow(10.0) == [1]
    assert wave.failure(1) is SILENT
