"""Step times in a bounded number of figures."""

import random
import statistics

import pytest

from orchestrator.report.files.step_times import PIECES, StepTimes


def steps_of(seconds: list[float], at_once: int = 1000) -> StepTimes:
    steps, at_s, clock = StepTimes(), [], 0.0
    for each in seconds:
        clock += each
        at_s.append(clock)
    for begin in range(0, len(seconds), at_once):
        steps.add(begin, seconds[begin : begin + at_once], at_s[begin : begin + at_once])
    return steps


def test_the_rates_of_a_long_training_are_those_of_its_pieces() -> None:
    steps = steps_of([0.01] * 50_000 + [0.02] * 50_000)
    assert len(steps.pieces) <= 2 * PIECES
    assert sum(piece.steps for piece in steps.pieces) == 100_000 and steps.pieces[-1].step == 100_000
    assert sum(piece.seconds for piece in steps.pieces) == pytest.approx(1500)
    rates = [piece.steps / piece.seconds for piece in steps.pieces]
    assert rates[0] == pytest.approx(100) and rates[-1] == pytest.approx(50)


def test_quantiles_are_within_a_fifth_of_a_percent() -> None:
    noise = random.Random(3)
    seconds = [noise.lognormvariate(-4, 0.3) for _ in range(20_000)]
    steps, exact = steps_of(seconds), statistics.quantiles(seconds, n=100)
    for share in (0.5, 0.95, 0.99):
        assert steps.quantile(share) == pytest.approx(exact[int(100 * share) - 1], rel=0.01)


def test_the_histogram_has_every_step_once_and_the_slowest_in_a_bin_of_their_own() -> None:
    found = steps_of([0.010, 0.011, 0.012] * 1000 + [3.0] * 3).histogram()
    assert sum(each.steps for each in found) == 3003
    assert (found[-1].high_s, found[-1].steps) == (None, 3)
    assert len(found) == 31 and all(each.low_s is not None for each in found)


@pytest.mark.parametrize("seconds", [[0.01] * 50, [0.01], [0.0, 0.0]])
def test_steps_that_are_all_alike_have_a_histogram_too(seconds: list[float]) -> None:
    found = steps_of(seconds).histogram()
    assert sum(each.steps for each in found) == sum(each > 0 for each in seconds)


def test_the_clock_knows_steps_that_compiled_too() -> None:
    steps = StepTimes()
    steps.add_compiled(1, 5.0, 5.0)
    steps.add(1, [0.1, 0.1], [5.1, 5.2])
    assert steps.clock() == [(1, 5.0), (2, 5.1), (3, 5.2)]
